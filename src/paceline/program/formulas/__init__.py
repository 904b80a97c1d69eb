"""What the steps of a model follow from, so that it needs no trace of its own."""
