"""Checkpoints on disk: a search between two epochs, for the next search to continue from.

``SavePolicy`` says when one is due: often enough that a dead process costs little, seldom enough to
be cheap. That is every 60 s (PACELINE_CHECKPOINT_SECONDS), and not before 40 times as long has
passed as the last one held the search up. So checkpoints take at most 2.5 % of a search.

A checkpoint is one safetensors file: arrays by name, and facts as JSON in its header. The name of
the file holds a running number and the beginning of the file's SHA-256, which shows whether the
file is damaged. The file is written under a temporary name and then renamed, so that no reader
finds half of a checkpoint. Two checkpoints are kept: where the newest is damaged, the one before
it is read.

The variables of paused trials do not change from one checkpoint to the next. They are written
once: each checkpoint puts those that are new into one safetensors file beside it. The header of a
checkpoint names these files and what it needs of each, and checkpoints share them. A file of which
less than half is needed is written again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paceline.errors import StudyError, UsageError
from paceline.program.files import as_shown, file_digest, replace_durably, temporary_beside
from paceline.study.storage import schema
from paceline.study.trials.trial_codec import plain

#: The format of the facts that this version writes and reads.
FORMAT = 7
#: The number of checkpoints that are kept.
KEPT = 2
#: Seconds between checkpoints, or an epoch where that is longer.
EVERY = 60.0
#: How many times as long as a checkpoint held the search up must pass before the next one.
_REPAYS = 40.0
_VARIABLE = "PACELINE_CHECKPOINT_SECONDS"
_NAME = re.compile(r"checkpoint-(\d{6,})-([0-9a-f]{16})\.safetensors")
_SHARED = re.compile(r"paused-[0-9]+-([0-9a-f]{16})\.safetensors")


F = TypeVar("F")
G = TypeVar("G")


@dataclass
class Snapshot(Generic[F]):
    """What a checkpoint holds."""

    facts: F  # of its owner, a Struct; JSON values as they are written and read
    arrays: dict[str, np.ndarray] = field(default_factory=dict)  # on the host; not changed any more
    # Key -> arrays by name, in files that checkpoints share. A key has the same arrays for as long
    # as this process lives. A snapshot that was read has these arrays among ``arrays``.
    shared_files: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def encoded(self) -> Snapshot[dict[str, Any]]:
        """A copy as it is written: arrays in the facts are among the others, by name."""
        arrays = dict(self.arrays)

        def put(value: Any) -> Any:
            if isinstance(value, float):  # NumPy's float64
                return float(value)
            name = f"facts.{len(arrays)}"
            arrays[name] = np.asarray(value)
            return name

        facts = msgspec.to_builtins(self.facts, str_keys=True, enc_hook=put)
        return Snapshot(facts, arrays, self.shared_files)

    def decoded(self, kind: type[G]) -> Snapshot[G]:
        """The inverse of ``encoded``; raises ``schema.UNREADABLE`` for facts of another kind."""

        def get(_: type, value: Any) -> np.ndarray:
            if isinstance(value, float):  # a float64 without a shape
                return np.asarray(value)
            if not isinstance(value, str) or value not in self.arrays:
                raise ValueError(f"there is no array {value!r}")
            return self.arrays[value]

        facts = msgspec.convert(self.facts, kind, str_keys=True, dec_hook=get)
        return Snapshot(facts, self.arrays, self.shared_files)


class CheckpointHeader(msgspec.Struct):
    """The header of a checkpoint file."""

    format: Any
    facts: dict[str, Any]
    # Array -> dtype and shape, of arrays whose dtype is none of NumPy's own.
    kinds: dict[str, tuple[str, list[schema.Count]]] = {}
    # Shared file -> keys of the arrays in it that belong to this checkpoint.
    beside: dict[str, list[str]] = {}


@dataclass
class _SharedFile:
    """A file with arrays of several keys."""

    path: Path
    size: int  # keys that it was written with
    keys: list[str] = field(default_factory=list)  # those that the last checkpoint needs


@dataclass(eq=False, repr=False)
class CheckpointManager:
    """Writes and reads the checkpoints of one study, or of one of its workers."""

    folder: Path  # made with the first checkpoint
    note: Callable[[str], None]  # told of a checkpoint that cannot be written or read
    _thread: ThreadPoolExecutor | None = field(init=False, default=None)
    _writing: Future[None] | None = field(init=False, default=None)
    _noted: bool = field(init=False, default=False)
    _shared: list[_SharedFile] = field(init=False, default_factory=list)

    def save(self, snapshot: Snapshot[dict[str, Any]]) -> None:
        """Writes a snapshot in a thread of its own; waits for the snapshot before it."""
        self.flush()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="paceline-checkpoint")
        self._writing = self._thread.submit(self._write, snapshot)

    def flush(self) -> None:
        """Waits until the last snapshot is on disk; notes once that it cannot be written."""
        if self._writing is None:
            return
        try:
            self._writing.result()
        except Exception as error:  # no error here is a reason to stop training
            if not self._noted:
                self._noted = True
                self.note(
                    f"could not write a checkpoint to {as_shown(self.folder)}: {error}. Training "
                    "continues. Finished trials are kept, but an unfinished trial would restart"
                )
        finally:
            self._writing = None

    def close(self) -> None:
        """Waits for the last snapshot, and ends the thread."""
        self.flush()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def clear(self) -> None:
        """Removes all checkpoints when no trial is unfinished, or notes that it cannot."""
        self.flush()
        try:
            for _, _, path in reversed(self._found()):  # the oldest first, in case of a kill
                path.unlink(missing_ok=True)
            self._drop_shared(())
            _tidy(self.folder)
        except OSError as error:
            self.note(
                f"could not delete the checkpoints in {as_shown(self.folder)}: "
                f"{error.strerror or error}. This is harmless: the next search resumes from the "
                "last one and gives the same result"
            )
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def load(self) -> Snapshot[dict[str, Any]] | None:
        """The newest checkpoint that is whole; None if there is none."""
        found = self._found()
        for at, (_, digest, path) in enumerate(found):
            snapshot, why = self._read(path, digest)
            if snapshot is not None:
                return snapshot
            then = "using the one before" if at + 1 < len(found) else "there is no other"
            self.note(f"checkpoint {path.name} {why}: {then}")
        return None

    @property
    def any(self) -> bool:
        """Whether there is a checkpoint file, damaged or not."""
        return bool(self._found())

    def _write(self, snapshot: Snapshot[dict[str, Any]]) -> None:
        found = self._found()
        number = found[0][0] + 1 if found else 1
        self._shared = self._write_shared(number, snapshot.shared_files)
        beside = {file.path.name: file.keys for file in self._shared}
        save_checkpoint(self.folder, f"checkpoint-{number:06d}", snapshot, beside=beside)
        for _, _, path in found[KEPT - 1 :]:
            path.unlink(missing_ok=True)
        kept = [_shared_of(path) for _, _, path in found[: KEPT - 1]]
        self._drop_shared({*beside, *(name for others in kept for name in others)})

    def _write_shared(
        self, number: int, arrays: Mapping[str, Mapping[str, np.ndarray]]
    ) -> list[_SharedFile]:
        """Writes what no shared file holds yet; returns the files that hold all of it."""
        files, new = [], dict(arrays)
        for file in self._shared:
            keys = [key for key in file.keys if key in arrays]
            if 2 * len(keys) >= file.size and file.path.exists():
                files.append(_SharedFile(file.path, file.size, keys))
                for key in keys:
                    del new[key]
        if new:
            named = {f"{key}/{name}": a for key, of in new.items() for name, a in of.items()}
            path = save_checkpoint(self.folder, f"paused-{number}", Snapshot({}, named))
            files.append(_SharedFile(path, len(new), list(new)))
        return files

    def _read(self, path: Path, digest: str) -> tuple[Snapshot[dict[str, Any]] | None, str]:
        """A checkpoint with the arrays of its shared files; or None, and why it cannot be read."""
        snapshot, why = load_checkpoint(path, digest)
        if snapshot is None:
            return None, why
        for name, keys in _shared_of(path).items():
            match, needed = _SHARED.fullmatch(name), set(keys)
            if match is None:
                return None, "names a file that is none of a checkpoint's"
            part, why = load_checkpoint(self.folder / name, match[1])
            if part is None:
                return None, f"needs {name}, which {why}"
            for full, array in part.arrays.items():
                key, _, own = full.partition("/")
                if key in needed:
                    snapshot.arrays[own] = array
        return snapshot, ""

    def _drop_shared(self, kept: Collection[str]) -> None:
        """Removes shared files, all but those of the given names."""
        with contextlib.suppress(OSError):
            for path in list(self.folder.iterdir()):
                if _SHARED.fullmatch(path.name) and path.name not in kept:
                    path.unlink(missing_ok=True)

    def _found(self) -> list[tuple[int, str, Path]]:
        """Number, digest and path of each checkpoint, the newest first."""
        found = []
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if match := _NAME.fullmatch(path.name):
                    found.append((int(match[1]), match[2], path))
        return sorted(found, reverse=True)


def save_checkpoint(
    folder: Path,
    stem: str,
    snapshot: Snapshot[dict[str, Any]],
    *,
    beside: Mapping[str, list[str]] | None = None,
) -> Path:
    """Writes the facts and arrays of a snapshot to a file of its own, whole or not at all.

    No other process writes to ``folder`` now. The file's name is ``stem`` and the beginning of its
    SHA-256. ``beside`` has the names of shared files in the folder, and which keys of each belong
    to the snapshot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _tidy(folder)  # a process that was killed here may have left a temporary file
    arrays, header = {}, CheckpointHeader(FORMAT, snapshot.facts, beside=dict(beside or {}))
    for name, array in snapshot.arrays.items():
        arrays[name] = np.asarray(array, order="C")
        if array.dtype.isbuiltin != 1:  # bfloat16 and its like are not NumPy's own
            header.kinds[name] = array.dtype.name, list(array.shape)
            arrays[name] = np.frombuffer(arrays[name].tobytes(), np.uint8)
    try:
        with temporary_beside(folder / stem) as temporary:
            # Not by msgspec, which writes null for NaN.
            text = json.dumps(msgspec.structs.asdict(header))
            save_file(arrays, temporary, {"paceline": text})
            path = folder / f"{stem}-{file_digest(temporary)[:16]}.safetensors"
            replace_durably(temporary, path)
    except BaseException:
        _tidy(folder)
        raise
    return path


def _tidy(folder: Path) -> None:
    """Removes temporary files of checkpoints; safetensors writes to one of its own first.

    ``stuck.json`` is in this folder too, and another thread or process may just be writing it.
    """
    for path in folder.glob(".tmp*"):
        if path.suffix != ".json":
            path.unlink(missing_ok=True)


def load_checkpoint(path: Path, digest: str) -> tuple[Snapshot[dict[str, Any]] | None, str]:
    """Reads a file of ``save_checkpoint``: the snapshot and "", or None and why it cannot."""
    held: Any = None
    try:
        if file_digest(path)[:16] != digest:
            return None, "is damaged"
        with safe_open(path, framework="numpy") as file:
            held = json.loads((file.metadata() or {})["paceline"])
            header = msgspec.convert(held, CheckpointHeader)
            if header.format != FORMAT:
                found = f"has format {header.format!r}, not {FORMAT} (continue"
                return None, f"{found} with the version of Paceline that wrote it)"
            names = list(file.keys())
            arrays = {name: _array(file.get_tensor(name), header.kinds, name) for name in names}
        return Snapshot(header.facts, arrays), ""
    except (msgspec.ValidationError, RecursionError) as error:
        return None, f"cannot be read ({schema.why(error, held)})"
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        return None, f"cannot be read ({type(error).__name__}: {error})"


def _shared_of(path: Path) -> dict[str, list[str]]:
    """Shared files of a checkpoint and what it needs of them; none where it cannot be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            held = json.loads((file.metadata() or {})["paceline"])
        return msgspec.convert(held, CheckpointHeader).beside
    except (OSError, SafetensorError, KeyError, *schema.UNREADABLE):
        return {}


def _array(array: np.ndarray, kinds: Mapping[str, Any], name: str) -> np.ndarray:
    if name not in kinds:
        return array
    kind, shape = kinds[name]
    return array.view(np.dtype(kind)).reshape(shape)  # ml_dtypes has registered these with NumPy


class SavePolicy:
    """Says when a checkpoint of a search is due, and writes it."""

    def __init__(self, checkpoints: CheckpointManager, key: Mapping[str, Any]) -> None:
        self._checkpoints = checkpoints
        # JSON values that a search must share with this one to continue with its checkpoints.
        self.key: Mapping[str, Any] = plain(dict(key))
        self._every = seconds_between()
        self._next = 0.0  # the first one is due at once
        self.seconds = 0.0  # that the search has waited for its checkpoints

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due."""
        return time.perf_counter() >= self._next

    def hasten(self) -> None:
        """Makes the next checkpoint due at once."""
        self._next = 0.0

    def save(self, snapshot: Snapshot[Any]) -> None:
        """Writes a snapshot in the background; the facts may change meanwhile."""
        written = snapshot.encoded()
        written.facts["key"] = self.key
        self._checkpoints.save(written)
        # The first snapshot is waited for: with it, a search that continues knows which trials have
        # begun since.
        if not written.arrays:
            self._checkpoints.flush()

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """A block in which a snapshot is taken; its time decides when the next one is due."""
        began = time.perf_counter()
        yield
        now = time.perf_counter()
        self.seconds += now - began
        self._next = now + max(self._every, _REPAYS * (now - began) if self._every else 0.0)

    def load(self, kind: type[F], note: Callable[[str], None]) -> Snapshot[F] | None:
        """The last snapshot; None, and a note says why, where this search cannot continue with it.

        Raises StudyError where it is of a search like this one, but its facts are not of ``kind``.
        """
        snapshot = self._checkpoints.load()
        if snapshot is None or snapshot.facts.get("shared"):  # of single trials: trial_variables.py
            return None
        before, trials = (snapshot.facts.get(name) for name in ("key", "trials"))
        if before == self.key:
            try:
                msgspec.convert(snapshot.facts, schema.StudyPartOfCheckpoint)
                return snapshot.decoded(kind)
            except schema.UNREADABLE as error:
                why = schema.why(error, snapshot.facts)
                raise unreadable("study", why, self._checkpoints.folder) from None
        if not isinstance(before, dict):
            before = {}
        names = ", ".join(name for name in self.key if before.get(name) != self.key[name])
        if trials and isinstance(trials, dict):
            note(
                f"the search arguments have changed ({names}): finished trials are kept; the "
                f"{len(trials)} unfinished trials restart as new trials"
            )
        return None

    @property
    def any(self) -> bool:
        """Whether there is a checkpoint, usable or not."""
        return self._checkpoints.any

    def forget_enqueued(self, values: Mapping[str, Any] | None) -> None:
        """Removes enqueued values that are an error from the last snapshot: none repeats them."""
        self._checkpoints.flush()
        snapshot = self._checkpoints.load()
        if values is None or snapshot is None or snapshot.facts.get("key") != self.key:
            return
        if snapshot.facts.get("shared"):
            return
        study = snapshot.facts["study"]
        study["queue"] = [one for one in study["queue"] if one != [values, True]]
        study["given"] = [one for one in study["given"] if one != values]
        self._checkpoints.save(snapshot)

    def clear(self) -> None:
        """Removes all checkpoints when no trial is unfinished."""
        self._checkpoints.clear()


def unreadable(study: str, why: str, folder: Path) -> StudyError:
    """The error of a checkpoint of this search that is not as this version writes it."""
    return StudyError(
        f"{study}: this version of Paceline cannot read its last checkpoint ({why}). Continue "
        f"with the version that wrote it, or remove {as_shown(folder)}: unfinished trials then "
        "restart, and finished ones are kept."
    )


def seconds_between() -> float:
    """Seconds between checkpoints: PACELINE_CHECKPOINT_SECONDS, or 60."""
    text = os.environ.get(_VARIABLE)
    try:
        seconds = EVERY if text is None else float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise UsageError(f"{_VARIABLE} must be a number of seconds of at least 0, got {text!r}.")
    return seconds
