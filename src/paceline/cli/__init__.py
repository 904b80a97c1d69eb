"""What the commands do; ``paceline.cli.app`` only declares them."""
