"""The command line, run in the process of a test."""

from __future__ import annotations

import pytest

from paceline.cli.app import main


def command(*words: str) -> int:
    """Runs ``paceline WORDS...``; returns its exit code."""
    with pytest.raises(SystemExit, match=r"^\d$") as end:
        main(words)
    assert isinstance(end.value.code, int)
    return end.value.code
