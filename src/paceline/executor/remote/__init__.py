"""An executor on other machines: the driver's half, and what a machine runs; both without Ray."""
