"""One search at a time in a study's folder: two would take each other's trials for dead ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import filelock

from paceline.errors import StudyError

NAME = ".lock"


@contextlib.contextmanager
def study_lock(folder: Path) -> Iterator[None]:
    """Hold a study while it is searched; the lock of a process that died is free.

    Args:
        folder: The study's; made if need be.

    Raises:
        StudyError: Another process searches it.
    """
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / NAME)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise StudyError(
            f"study {folder.name!r} is being searched by another process (or another search of "
            "this one); wait for it, or give this search another study name."
        ) from None
    except (OSError, RuntimeError):  # no folder, or no locks on that file system: the storage tells
        yield
        return
    try:
        yield
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
