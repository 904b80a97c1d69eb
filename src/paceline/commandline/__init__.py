"""What the commands do; ``paceline.cli`` only declares them."""
