"""What follows from the records of a benchmark, and how that is shown; needs no device."""
