"""Checkpoints: a search as it stood between two epochs, on disk, to go on from.

A checkpoint is one safetensors file: arrays by name, and facts as JSON in its header. Its name
holds a running number and the beginning of its SHA-256, so that a damaged one is known as such. It
is written beside its place and moved there, so that there is no half of one. Two are kept: where
the newest is damaged the one before is taken.

What does not change from one checkpoint to the next, the variables of paused trials, is written
once, to files beside it of the same kind, which its header names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paceline.program.files import replace_durably, temporary_beside

#: Of what the facts hold; a file of another format is not read.
FORMAT = 2
READS = (1, FORMAT)  # 1 had no files beside it
KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{6,})-([0-9a-f]{16})\.safetensors")
_BESIDE = re.compile(r"paused-[0-9.]+-([0-9a-f]{16})\.safetensors")


@dataclass
class Snapshot:
    """A search between two epochs.

    Attributes:
        facts: JSON values.
        arrays: Name -> array on the host, which nobody changes any more.
        lasting: More of them, by keys of digits and dots: under a key are the same arrays for as
            long as this process lives. What is read has them among ``arrays``.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    lasting: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)


class CheckpointManager:
    """The checkpoints of one study.

    Args:
        folder: Where they go; made at the first one.
        note: Told of one that cannot be written or read.
    """

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self._folder, self._note = folder, note
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._noted = False
        self._beside: dict[str, Path] = {}  # key of what lasts -> its file

    @property
    def idle(self) -> bool:
        """Whether none is being written."""
        return self._writing is None or self._writing.done()

    def save(self, snapshot: Snapshot) -> None:
        """Has a snapshot written; waits for the one before."""
        self.flush()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-checkpoint")
        self._writing = self._thread.submit(self._write, snapshot)

    def flush(self) -> None:
        """Waits until what was to be saved is on disk; one that cannot be is told of once."""
        if self._writing is None:
            return
        try:
            self._writing.result()
        except Exception as error:  # whatever it is, training goes on
            if not self._noted:
                self._noted = True
                self._note(
                    f"no checkpoint can be written to {self._folder}: {error}; training goes on, "
                    "and what has ended is kept, but a trial under way would begin again"
                )
        finally:
            self._writing = None

    def close(self) -> None:
        """Waits for the last one."""
        self.flush()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def clear(self) -> None:
        """Removes all: nothing is under way."""
        self.flush()
        for _, _, path in reversed(self._found()):  # the oldest first
            path.unlink(missing_ok=True)
        self._drop_beside(())
        _tidy(self._folder)
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def load(self) -> Snapshot | None:
        """The newest that is whole; None where there is none."""
        found = self._found()
        for at, (_, digest, path) in enumerate(found):
            snapshot, why = self._read(path, digest)
            if snapshot is not None:
                return snapshot
            then = "the one before is taken" if at + 1 < len(found) else "there is no other"
            self._note(f"checkpoint {path.name} {why}: {then}")
        return None

    @property
    def any(self) -> bool:
        """Whether there is a file of one, damaged or not."""
        return bool(self._found())

    def _write(self, snapshot: Snapshot) -> None:
        found = self._found()
        number = found[0][0] + 1 if found else 1
        before, self._beside = self._beside, {}
        for key, arrays in snapshot.lasting.items():
            there = before.get(key)
            if there is None or not there.exists():
                there = save_checkpoint(self._folder, f"paused-{key}", Snapshot({}, arrays))
            self._beside[key] = there
        names = sorted(path.name for path in self._beside.values())
        save_checkpoint(self._folder, f"checkpoint-{number:06d}", snapshot, beside=names)
        for _, _, path in found[KEPT - 1 :]:
            path.unlink(missing_ok=True)
        kept = [_beside_of(path) for _, _, path in found[: KEPT - 1]]
        self._drop_beside({*names, *(name for others in kept for name in others)})

    def _read(self, path: Path, digest: str) -> tuple[Snapshot | None, str]:
        """A checkpoint with all that is beside it; or None, and why there is nothing."""
        snapshot, why = load_checkpoint(path, digest)
        if snapshot is None:
            return None, why
        for name in _beside_of(path):
            match = _BESIDE.fullmatch(name)
            if match is None:
                return None, "names a file that is none of a checkpoint's"
            part, why = load_checkpoint(self._folder / name, match[1])
            if part is None:
                return None, f"needs {name}, which {why}"
            snapshot.arrays |= part.arrays
        return snapshot, ""

    def _drop_beside(self, kept: Collection[str]) -> None:
        """Removes what no checkpoint needs any more of what is written beside them."""
        with contextlib.suppress(OSError):
            for path in list(self._folder.iterdir()):
                if _BESIDE.fullmatch(path.name) and path.name not in kept:
                    path.unlink(missing_ok=True)

    def _found(self) -> list[tuple[int, str, Path]]:
        """Number, digest and path of each, the newest first."""
        found = []
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if match := _NAME.fullmatch(path.name):
                    found.append((int(match[1]), match[2], path))
        return sorted(found, reverse=True)


def save_checkpoint(
    folder: Path, stem: str, snapshot: Snapshot, *, beside: Sequence[str] = ()
) -> Path:
    """Writes a snapshot to a file of its own, whole or not at all.

    Args:
        folder: Made if need be; nobody else writes to it now.
        stem: Of the file's name, which ends with the beginning of its SHA-256.
        snapshot: What is written, but for what lasts.
        beside: Names of files in the folder that belong to it.

    Raises:
        OSError, SafetensorError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _tidy(folder)  # a process may have been killed here
    arrays, kinds = {}, {}
    for name, array in snapshot.arrays.items():
        arrays[name] = np.asarray(array, order="C")
        if array.dtype.isbuiltin != 1:  # bfloat16 and its like are none of NumPy's own
            kinds[name] = [array.dtype.name, list(array.shape)]
            arrays[name] = np.frombuffer(arrays[name].tobytes(), np.uint8)
    facts = {"format": FORMAT, "kinds": kinds, "facts": snapshot.facts, "beside": list(beside)}
    try:
        with temporary_beside(folder / stem) as temporary:
            save_file(arrays, temporary, {"paceline": json.dumps(facts)})
            path = folder / f"{stem}-{_digest(temporary)}.safetensors"
            replace_durably(temporary, path)
    except BaseException:
        _tidy(folder)
        raise
    return path


def _tidy(folder: Path) -> None:
    """Removes what writing left behind; safetensors writes to a file of its own first."""
    for path in folder.glob(".tmp*"):
        path.unlink(missing_ok=True)


def load_checkpoint(path: Path, digest: str) -> tuple[Snapshot | None, str]:
    """What ``save_checkpoint`` has written; or None, and why there is nothing.

    Args:
        path: Of the file.
        digest: The end of its name.
    """
    try:
        if _digest(path) != digest:
            return None, "is damaged"
        with safe_open(path, framework="numpy") as file:
            held = json.loads(file.metadata()["paceline"])
            if held["format"] not in READS:
                found = f"is of format {held['format']!r}, this version reads up to {FORMAT} (go on"
                return None, f"{found} with the version of Paceline that wrote it)"
            names = list(file.keys())
            arrays = {name: _array(file.get_tensor(name), held["kinds"], name) for name in names}
        return Snapshot(held["facts"], arrays), ""
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        return None, f"cannot be read ({type(error).__name__}: {error})"


def _beside_of(path: Path) -> list[str]:
    """Names of the files that belong to a checkpoint; none where it cannot be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            names = json.loads(file.metadata()["paceline"]).get("beside", [])
        return [name for name in names if isinstance(name, str)]
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError):
        return []


def _array(array: np.ndarray, kinds: Mapping[str, Any], name: str) -> np.ndarray:
    if name not in kinds:
        return array
    kind, shape = kinds[name]
    return array.view(np.dtype(kind)).reshape(shape)  # JAX has told NumPy of these


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
