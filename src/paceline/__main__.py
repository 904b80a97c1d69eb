"""``python -m paceline``: the same command as ``paceline``, for when that is not on the path."""

from paceline.cli.app import main

if __name__ == "__main__":
    main()
