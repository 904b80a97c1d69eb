"""Files that are there whole or not at all, whatever happens while they are written.

A file is written under a temporary name and renamed when it is complete. Readers meanwhile, or
after a crash, find the old file.

Arrays of a trial by name. A trial's variables come in parts (trainable, non-trainable, optimizer
and metric variables). A part is a list of arrays. A checkpoint holds arrays by name. Array ``at``
of part ``part`` is called ``NAME.PART.AT``, or ``PART.AT`` where the parts have no name of their
own.

The module stands in ``program``, beside ``trace.State``, because ``executor`` and ``tuner`` both
write checkpoints and ``executor`` must not import ``tuner``.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

#: How a temporary file begins; a process that was killed leaves some.
TEMPORARY = ".tmp-"

_numbers = itertools.count()


def as_shown(path: Path) -> Path:
    """A path as messages call it: one below the working directory is relative to that."""
    try:
        return path.relative_to(Path.cwd())
    except (OSError, ValueError):  # no working directory: it was removed; or not below it
        return path


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """The path of a temporary file in the folder of ``path``, to write to and to rename.

    No other thread and no other process on this machine has the same. Its name ends like ``path``,
    since some libraries look at a file's suffix. The folder must exist. A file that is still there
    at the end is removed.
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
    """A temporary file to write to; it replaces ``path`` when the block ends without an error."""
    with temporary_beside(path) as temporary:
        yield temporary
        os.replace(temporary, path)


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file into a folder that exists; the old file stays until the new one is complete."""
    with written_atomically(path) as temporary:
        temporary.write_bytes(data)


def file_digest(path: Path) -> str:
    """The SHA-256 of what a file holds, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_durably(temporary: Path, path: Path) -> None:
    """Renames ``temporary``, which is in the folder of ``path``, to ``path``.

    The file survives a loss of power from then on, where the system can do that.
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


def put_parts(
    name: str, parts: Sequence[Sequence[np.ndarray]], arrays: dict[str, np.ndarray]
) -> list[int]:
    """Adds lists of arrays, on the host or a device, to a dict of arrays on the host.

    What is added shares memory with ``parts`` where it can. ``name`` may be empty. Returns the
    number of arrays of each part, which ``get_parts`` needs.
    """
    for part, leaves in enumerate(parts):
        for at, leaf in enumerate(leaves):
            arrays[_key(name, part, at)] = np.asarray(leaf)
    return [len(leaves) for leaves in parts]


def get_parts(
    name: str, sizes: Sequence[int], arrays: Mapping[str, np.ndarray]
) -> list[list[np.ndarray]]:
    """Finds the parts that ``put_parts`` has added; raises KeyError where an array is missing."""
    return [[arrays[_key(name, part, at)] for at in range(n)] for part, n in enumerate(sizes)]


def _key(name: str, part: int, at: int) -> str:
    return f"{name}.{part}.{at}" if name else f"{part}.{at}"
