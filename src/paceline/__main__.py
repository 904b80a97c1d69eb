"""``python -m paceline``: the command, where it is not on the path."""

from paceline.cli.app import main

if __name__ == "__main__":
    main()
