"""The report of a study: one HTML page that needs no other file and no network."""
