"""Files of callbacks whose trial trains on another machine than that of the search.

There Keras' own callbacks write below a folder of the machine's own, and the search writes what it
is sent where the user wanted it. Both sides know a place, the folder below which a callback writes,
by a name that follows from the user's path. So a message holds no path but one below a place.

A trial that goes on on another machine takes the files along that its callbacks append to. How much
of them counts is in the callbacks' state.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    """A file that a callback has written.

    Attributes:
        place: The name of its place.
        path: Its path below the place, with "/" between the parts.
        data: What it holds.
    """

    place: str
    path: str
    data: bytes


class OwnFolder:
    """Where the callbacks of a machine write.

    It goes with the machine, or else when another machine begins on the same disk.

    Args:
        parent: The folder in which it is made; None: the system's for temporary files.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        _remove_abandoned(parent)
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = filelock.FileLock(self._folder / _LOCK, thread_local=False)
        self._lock.acquire(blocking=False)
        self._places: dict[int, dict[str, Path]] = {}  # of the jobs that are here
        self._seen: dict[Path, tuple[int, int]] = {}  # size and time of what was sent

    def here(self, path: Path, trial: str, is_file: bool) -> Path:
        """The path on this machine for a path of the user's.

        Args:
            path: The trial's own path.
            trial: The trial's number, or the name of a fold or repetition of it.
            is_file: Whether it is one of a file.
        """
        place, rest = _split(path, is_file)
        return self._folder / trial / _name(place) / rest

    def add(self, number: int, callbacks: Iterable[Any], files: Sequence[WrittenFile]) -> None:
        """Takes a job in, with the files that its callbacks have written elsewhere.

        Args:
            number: The job's.
            callbacks: Its callbacks, which write where ``here`` has said.
            files: The files.
        """
        self._places[number] = places = {place.name: place for place in _places(callbacks)}
        for file in files:
            path = _inside(places, file)
            if path is not None:
                write_atomically(path, file.data)
                self._seen[path] = _facts(path)

    def news(self, number: int) -> list[WrittenFile]:
        """The files of a job that are others than those that this returned before."""
        found = []
        for name, place in self._places.get(number, {}).items():
            for path in sorted(place.rglob("*")):
                # A callback may remove a file at any time, as a checkpoint that is not the best.
                with contextlib.suppress(OSError):
                    facts = _facts(path)
                    if not path.is_file() or self._seen.get(path) == facts:
                        continue
                    rest = path.relative_to(place).as_posix()
                    found.append(WrittenFile(name, rest, path.read_bytes()))
                    self._seen[path] = facts
        return found

    def remove(self, number: int) -> None:
        """Forgets a job that has ended here, and removes its files."""
        for place in self._places.pop(number, {}).values():
            self._seen = {p: facts for p, facts in self._seen.items() if place not in p.parents}
            shutil.rmtree(place, ignore_errors=True)

    def close(self) -> None:
        """Removes the folder."""
        self._lock.release()
        shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True)
class UserPlaces:
    """Where the callbacks of one job write on the machine of the search.

    Attributes:
        places: The name of a place -> its path.
        appended: The files that callbacks append to.
    """

    places: Mapping[str, Path]
    appended: Sequence[Path]

    @classmethod
    def of(cls, callbacks: Sequence[Any]) -> UserPlaces:
        """The places of callbacks that write as the user wants it."""
        places = {_name(place): place.absolute() for place in _places(callbacks)}
        loggers = (each for each in callbacks if isinstance(each, keras.callbacks.CSVLogger))
        return cls(places, [Path(each.filename).absolute() for each in loggers])

    def put(self, file: WrittenFile) -> None:
        """Writes a file that another machine has sent.

        Raises:
            OSError: It cannot be written.
        """
        path = _inside(self.places, file)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, file.data)

    def taken_along(self) -> list[WrittenFile]:
        """The files that callbacks append to, for a machine on which the job goes on."""
        found = []
        for path in self.appended:
            places = self.places.items()
            name, place = next((n, each) for n, each in places if each in path.parents)
            with contextlib.suppress(OSError):  # none has been written yet
                rest = path.relative_to(place).as_posix()
                found.append(WrittenFile(name, rest, path.read_bytes()))
        return found


def _places(callbacks: Iterable[Any]) -> list[Path]:
    """The places of Keras' callbacks that write."""
    found = []
    for callback in callbacks:
        place = place_of(callback)
        if place is not None:
            key, is_file = place
            found.append(_split(Path(getattr(callback, key)), is_file)[0])
    return found


def _split(path: Path, is_file: bool) -> tuple[Path, Path]:
    """The folder below which a callback writes, and the rest, which may hold "{epoch}"."""
    if not is_file:
        return path, Path()
    place = next(each for each in path.parents if "{" not in str(each))
    return place, path.relative_to(place)


def _name(place: Path) -> str:
    return hashlib.sha256(str(place).encode()).hexdigest()[:16]


def _inside(places: Mapping[str, Path], file: WrittenFile) -> Path | None:
    """Where a file belongs; None for one of no such place, or beside it."""
    place, rest = places.get(file.place), PurePosixPath(file.path)
    if place is None or rest.is_absolute() or ".." in rest.parts or not rest.parts:
        return None
    return place / rest


def _facts(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _remove_abandoned(parent: Path) -> None:
    """Removes the folders of machines that were killed."""
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError, filelock.Timeout), filelock.FileLock(lock, 0):
            shutil.rmtree(lock.parent, ignore_errors=True)
