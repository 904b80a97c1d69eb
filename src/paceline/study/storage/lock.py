"""Whose a study's folder is: the first search that works on the study; others have their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import filelock

NAME = ".lock"


@contextlib.contextmanager
def study_lock(folder: Path) -> Iterator[bool]:
    """Hold a study's folder while it is searched; the lock of a process that died is free.

    Args:
        folder: The study's; made if need be.

    Yields:
        Whether the folder is this search's; else another search has it.
    """
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / NAME)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    except (OSError, RuntimeError):  # no folder, or no locks on that file system: the storage tells
        yield True
        return
    try:
        yield True
    finally:
        lock.release()
        if new:
            _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    """Nothing is left of a search that wrote nothing."""
    with contextlib.suppress(OSError):
        if [entry.name for entry in folder.iterdir()] == [NAME]:
            (folder / NAME).unlink()
            folder.rmdir()
            folder.parent.rmdir()  # if nothing else is there
