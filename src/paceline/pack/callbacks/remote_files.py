"""Files of callbacks whose trial trains on another machine than that of the search.

There Keras' own callbacks write below a folder of the machine's own, and the search writes what it
is sent where the user wanted it. A message names a callback by its place in the trial's list, and a
file by its path below the folder that this callback fills. What a callback may write follows from
the user's path, so no message decides where the search writes.

A trial that continues on another machine takes the files along that its callbacks append to. How
much of them counts is in the callbacks' state.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import filelock
import keras

from paceline.pack.callbacks.per_trial import place_of
from paceline.program.files import write_atomically

#: How a machine's own folder begins, and the file in it that a living machine has locked.
_PREFIX, _LOCK = "paceline-files-", ".lock"


@dataclass(frozen=True)
class WrittenFile:
    """A file that a callback has written."""

    at: int  # the callback, in the trial's list
    path: str  # below the callback's folder, with "/" between the parts
    data: bytes  # what it holds


@dataclass(frozen=True)
class _CallbackOutput:
    """What one callback writes on this machine."""

    folder: Path  # all of it lies below
    log: Path | None = None  # the one file that it appends to; None: it writes whole files
    # What matches the paths of its files below the folder; None: all do.
    pattern: re.Pattern[str] | None = None
    kept: int = 0  # bytes of the log that were there before the trial began, and stay

    @classmethod
    def of(cls, callback: Any) -> _CallbackOutput | None:
        """The output of a callback; None if it is none of Keras' that write."""
        place = place_of(callback)
        if place is None:
            return None
        key, is_file = place
        path = Path(getattr(callback, key)).absolute()
        folder, rest = _split(path, is_file)
        if not is_file:
            return cls(folder)
        if isinstance(callback, keras.callbacks.CSVLogger):
            there = callback.append and path.is_file()
            return cls(path.parent, path, kept=path.stat().st_size if there else 0)
        # Fields such as {epoch:02d} stand for text within one name.
        parts = re.split(r"\{[^{}]*\}", rest.as_posix())
        return cls(folder, pattern=re.compile("[^/]+".join(map(re.escape, parts))))

    def put(self, file: WrittenFile) -> Path:
        """Writes a file of the callback; returns where it lies.

        Raises OSError where the file cannot be written, and ValueError for one that the callback
        would not write.
        """
        path, rest = self.log, PurePosixPath(file.path)
        if path is None:
            inside = rest.parts and not rest.is_absolute() and ".." not in rest.parts
            fits = self.pattern is None or self.pattern.fullmatch(rest.as_posix())
            if not inside or not fits or "\0" in file.path:
                raise _unknown_file_error(file)
            path = self.folder / rest
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, file.data)
        return path


class MachineFolder:
    """Where the callbacks of a machine write.

    It goes with the machine, or else when another machine begins on the same disk. It is made in
    ``parent``; None: the system's folder for temporary files.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        _remove_abandoned(parent)
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = filelock.FileLock(self._folder / _LOCK, thread_local=False)
        self._lock.acquire(blocking=False)
        self._outputs: dict[int, dict[int, _CallbackOutput]] = {}  # of the jobs that are here
        # Size and time of what was sent of each job.
        self._seen: dict[int, dict[Path, tuple[int, int]]] = {}

    def here(self, at: int, path: Path, trial: str, is_file: bool) -> Path:
        """The path on this machine for a path of the user's (``path``, the trial's own).

        ``at``: the callback, in the trial's list. ``trial``: the trial's number, or the name of a
        fold or repetition of it.
        """
        return self._folder / trial / str(at) / _split(path, is_file)[1]

    def add(self, number: int, callbacks: Iterable[Any], files: Sequence[WrittenFile]) -> None:
        """Takes a job in, with the files that its callbacks have written elsewhere.

        The callbacks write where ``here`` has said.
        """
        self._outputs[number] = outputs = _outputs(callbacks)
        written = [outputs[file.at].put(file) for file in files]
        self._seen[number] = {path: _facts(path) for path in written}

    def news(self, number: int) -> list[WrittenFile]:
        """The files of a job that are others than those that this returned before."""
        found, seen = [], self._seen.get(number, {})
        for at, output in self._outputs.get(number, {}).items():
            for path in sorted(output.folder.rglob("*")):
                # A callback may remove a file at any time, as a checkpoint that is not the best.
                with contextlib.suppress(OSError):
                    facts = _facts(path)
                    if not path.is_file() or seen.get(path) == facts:
                        continue
                    rest = path.relative_to(output.folder).as_posix()
                    found.append(WrittenFile(at, rest, path.read_bytes()))
                    seen[path] = facts
        return found

    def remove(self, number: int) -> None:
        """Forgets a job that has ended here, and removes its files."""
        self._seen.pop(number, None)
        for output in self._outputs.pop(number, {}).values():
            shutil.rmtree(output.folder, ignore_errors=True)

    def close(self) -> None:
        """Removes the folder."""
        self._lock.release()
        shutil.rmtree(self._folder, ignore_errors=True)


class UserFolders:
    """Where the callbacks of one job write on the machine of the search.

    The callbacks write as the user wants it; the job has not begun.
    """

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self._outputs = _outputs(callbacks)

    def __bool__(self) -> bool:
        return bool(self._outputs)

    @property
    def kept(self) -> dict[str, int]:
        """For a checkpoint: bytes of each log that were there before the job began."""
        logs = ((at, each) for at, each in self._outputs.items() if each.log is not None)
        return {str(at): output.kept for at, output in logs}

    def begun_before(self, kept: Mapping[str, int]) -> None:
        """Notes that the job began in another process: logs keep what was there before.

        ``kept``: what ``kept`` was in that process.
        """
        for at, output in self._outputs.items():
            if output.log is not None and str(at) in kept:
                self._outputs[at] = replace(output, kept=min(output.kept, kept[str(at)]))

    def put(self, file: WrittenFile) -> None:
        """Writes a file that another machine has sent; raises as ``_CallbackOutput.put`` does."""
        if file.at not in self._outputs:
            raise _unknown_file_error(file)
        self._outputs[file.at].put(file)

    def begin(self) -> None:
        """Takes back what the job has appended to logs, since it begins, perhaps once more."""
        for output in self._outputs.values():
            if output.log is not None:
                with contextlib.suppress(OSError):  # none has been written yet
                    if output.log.stat().st_size > output.kept:
                        os.truncate(output.log, output.kept)

    def taken_along(self, begins: bool) -> list[WrittenFile]:
        """The files that callbacks append to, for the machine on which the job trains.

        ``begins``: whether the job begins there, rather than continues.
        """
        found = []
        for at, output in self._outputs.items():
            if output.log is None or (begins and not output.kept):
                continue
            with contextlib.suppress(OSError):  # none has been written yet
                data = output.log.read_bytes()
                data = data[: output.kept] if begins else data
                found.append(WrittenFile(at, output.log.name, data))
        return found


def _outputs(callbacks: Iterable[Any]) -> dict[int, _CallbackOutput]:
    """The outputs of those callbacks that have one, by their place in the list."""
    found = ((at, _CallbackOutput.of(each)) for at, each in enumerate(callbacks))
    return {at: output for at, output in found if output is not None}


def _split(path: Path, is_file: bool) -> tuple[Path, Path]:
    """The folder below which a callback writes, and the rest, which may hold "{epoch}"."""
    if not is_file:
        return path, Path()
    folder = next(each for each in path.parents if "{" not in str(each))
    return folder, path.relative_to(folder)


def _unknown_file_error(file: WrittenFile) -> ValueError:
    return ValueError(f"callback {file.at} of the trial does not write {file.path!r}")


def _facts(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _remove_abandoned(parent: Path) -> None:
    """Removes the folders of machines that were killed."""
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError, filelock.Timeout), filelock.FileLock(lock, 0):
            shutil.rmtree(lock.parent, ignore_errors=True)
