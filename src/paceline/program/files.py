"""Files that are there whole or not at all, whatever happens while they are written.

A file is written under a temporary name beside its own and renamed when it is complete: who reads
it meanwhile, or after a crash, finds the old one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

#: How a temporary file begins; a process that was killed leaves some.
TEMPORARY = ".tmp-"

_numbers = itertools.count()


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """The path of a temporary file in the folder of ``path``, to write to and to rename.

    No other thread and no other process on this machine has the same. Its name ends like ``path``,
    since some libraries look at a file's suffix. What is still there at the end is removed.

    Args:
        path: Of the file that is to be; its folder is there.
    """
    unique = f"{os.getpid()}-{threading.get_ident()}-{next(_numbers)}"
    temporary = path.with_name(f"{TEMPORARY}{unique}-{path.name}")
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):  # an error of the writer's comes first
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def written_atomically(path: Path) -> Iterator[Path]:
    """A temporary file to write to; it takes its place when the block ends without an error.

    Args:
        path: Of the file; one that is there is replaced.

    Raises:
        OSError: The file cannot be put into its place.
    """
    with temporary_beside(path) as temporary:
        yield temporary
        os.replace(temporary, path)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file; until it is complete, the old one stays.

    Args:
        path: Of the file; its folder is there.
        data: All of its content.

    Raises:
        OSError: It cannot be written; the old file is as it was.
    """
    with written_atomically(path) as temporary:
        temporary.write_bytes(data)


def replace_durably(temporary: Path, path: Path) -> None:
    """Renames a file; it survives a loss of power from then on, where the system can do that.

    Args:
        temporary: What was written, in the folder of ``path``.
        path: Its place.

    Raises:
        OSError: It cannot be renamed.
    """
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Has a file, or a folder's list of files, on the disk itself; not every system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
