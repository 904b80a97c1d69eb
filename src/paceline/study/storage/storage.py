"""Where a study is kept: a journal file by default, or any storage of Optuna."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from paceline.errors import PacelineError, StorageError, StudyError
from paceline.imports import uncollected
from paceline.program.files import as_shown
from paceline.study.metadata import META, StoredStudy, check_meta
from paceline.study.objectives import Direction
from paceline.study.samplers.values import n_missing
from paceline.study.storage.folder import check_writable
from paceline.study.storage.journal import HOW_TO_REPAIR, JournalFile
from paceline.study.storage.journal_storage import JournalStorage
from paceline.study.storage.rdb import (
    PasswordMask,
    check_url,
    close_connections,
    has_tables,
    hide_password,
    open_database,
    sqlite_path,
)
from paceline.study.trials.trial_codec import check_attributes, check_values, is_ours

if TYPE_CHECKING:
    from paceline.study.storage.rdb_bulk import BulkWriter


class StudyStorage(ABC):
    """One storage, opened when something is to be read, made when something is to be written.

    Methods raise StorageError where the storage cannot be opened, read, made or written.
    """

    # Seconds for which a record may wait for others. A call of a database takes milliseconds of
    # processor time, and a trial that begins and ends within ``linger`` takes one call.
    linger = 5.0
    whole = False  # whether a batch that fails has left nothing behind
    # A lock that a thread holds while it reads, where threads must take turns.
    turn: AbstractContextManager[Any] = contextlib.nullcontext()

    def __init__(self, label: str, path: Path | None = None) -> None:
        self.label = label  # its name in messages; holds no password
        self._path = path  # of its file, for one that is a file
        self._storage: BaseStorage | None = None
        self._rows: BulkWriter | None = None
        self._has_rows: bool | None = None  # None: not looked at yet

    @classmethod
    def of(cls, storage: str | BaseStorage | None, study: str, directory: Path) -> StudyStorage:
        """Return the storage that a user's argument means: ``journal:PATH``, a URL or an object.

        None is for the file ``<directory>/<study>/journal.log``.
        """
        if storage is None:
            return _JournalFile(directory / study / "journal.log")
        if isinstance(storage, BaseStorage):
            return _GivenStorage(storage)
        if not isinstance(storage, str):
            raise StorageError(
                "storage must be journal:PATH, an Optuna URL such as sqlite:///study.db, or an "
                f"optuna.storages object, got {storage!r}."
            )
        if storage.startswith("journal:"):
            path = storage.removeprefix("journal:").strip()
            if not path:
                raise StorageError(
                    "storage 'journal:' has no file. Name the file, as in journal:study.log."
                )
            return _JournalFile(Path(path).expanduser())
        return _Database(storage)

    @property
    def storage(self) -> BaseStorage:
        """The storage, opened."""
        if self._storage is None:
            with self.errors("opened"), quiet_optuna(), uncollected():
                self._storage = self._open()
        return self._storage

    @property
    def rows(self) -> BulkWriter | None:
        """The writer of whole batches to a database; None if the storage's own calls write."""
        if self._has_rows is None:
            storage = self.storage
            if isinstance(storage, optuna.storages.RDBStorage):
                from paceline.study.storage.rdb_bulk import BulkWriter  # SQLAlchemy loads here

                self._rows = BulkWriter.of(storage)
            self._has_rows = self._rows is not None
        return self._rows

    def batch(self, written: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """A block inside which one thread reads and writes; its writes go out when it ends.

        ``written`` is called when others can read them, where the disk may have them later.
        """
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A batch of one thread: reads see the storage as it is, writes go out at the end."""
        with self.errors("written"), self.turn:
            try:
                with self.batch():
                    yield
            except BaseException:
                self.reopen()
                raise

    def reopen(self) -> None:
        """After a failure, open the storage again at the next call.

        This is for storages that keep what they have read, such as journals. Databases are asked
        each time, and renew their connections themselves.
        """
        if self.whole:
            self._storage = None

    def compact(self) -> None:
        """Leave a long journal so that the next reader is quicker; others stay as they are."""
        return

    def close(self) -> None:
        """Close the connections of a database; the next call opens new ones."""
        return

    # What differs between storages

    @abstractmethod
    def _open(self) -> BaseStorage:
        """Open it, and make it if need be."""

    def _is_there(self) -> bool:
        """Whether it exists, so that it can be opened without making anything."""
        return self._path is None or self._path.is_file()

    def _check(self) -> None:
        """Raise StorageError where it does not exist and could not be made."""
        if self._path is not None:
            check_writable(self._path.parent, self.label)

    def _hide(self, text: str) -> str:
        """Show passwords in a text as stars."""
        return hide_password(text)

    # Studies

    def find(self, name: str) -> int | None:
        """Return the storage's id of a study; None when there is no such study. Writes nothing."""
        if not self._exists():
            return None
        storage = self.storage
        with contextlib.closing(self), self.errors("read"), self.turn:
            try:
                return storage.get_study_id_from_name(name)
            except KeyError:
                return None

    def load(self, name: str) -> StoredStudy | None:
        """Return what is stored of a study; None when there is no such study. Writes nothing."""
        if not self._exists():
            return None
        storage = self.storage
        with contextlib.closing(self), self.errors("read"), self.turn:
            try:
                study = storage.get_study_id_from_name(name)
            except KeyError:
                return None
            directions = storage.get_study_directions(study)
            meta = storage.get_study_user_attrs(study).get(META)
            attrs = dict(storage.get_study_system_attrs(study))
            trials = storage.get_all_trials(study, deepcopy=False)
        if isinstance(storage, JournalStorage):  # which has checked every line
            self._check_numbers(name, meta, trials)
        else:
            self._check_stored(name, meta, trials, len(directions))
        named: tuple[Direction, ...] = tuple(
            "maximize" if each == StudyDirection.MAXIMIZE else "minimize" for each in directions
        )
        return StoredStudy(named, dict(meta or {}), trials, attrs)

    def _check_numbers(self, name: str, meta: Any, trials: Sequence[FrozenTrial]) -> None:
        """Refuse a journal that has lost lines which began trials: later trials moved down.

        The seeds of its last trials are those of higher numbers.
        """
        seed = (meta or {}).get("seed")
        for trial in trials[-3:]:
            if n := n_missing(seed, trial.number, trial.user_attrs):
                lines = (
                    "the line that began a trial is"
                    if n == 1
                    else f"the lines that began {n} trials are"
                )
                raise StorageError(
                    f'storage {self.label}, study "{name}": {lines} missing before trial '
                    f"{trial.number}, whose seed is that of trial {trial.number + n}. "
                    f"{HOW_TO_REPAIR.format(shlex.quote(name), shlex.quote(self.label))}"
                )

    def _check_stored(self, name: str, meta: Any, trials: Sequence[FrozenTrial], n: int) -> None:
        """Refuse what Paceline would not have written."""
        where = ""
        try:
            if meta is not None:
                check_meta(meta)
            for trial in trials:
                where = f"trial {trial.number}: "
                check_values(trial.state, trial.values, n)
                if meta is not None and is_ours(trial.user_attrs):
                    check_attributes(trial.user_attrs)
        except ValueError as error:
            raise StorageError(
                f'storage {self.label}, study "{name}": {where}{error}. Another program, or a '
                "fault, changed it. Repair it with Optuna, or choose another study name."
            ) from None

    def names(self) -> list[str]:
        """Names of all studies in it. Writes nothing."""
        if not self._exists():
            return []
        storage = self.storage
        with contextlib.closing(self), self.errors("read"), self.turn:
            return sorted(study.study_name for study in storage.get_all_studies())

    def _exists(self) -> bool:
        """Whether the storage exists; StorageError where it does not, and could not be made."""
        with self.errors("opened"):
            if self._is_there():
                return True
            self._check()
        return False

    def create(self, name: str, directions: Sequence[Direction], meta: dict[str, Any]) -> None:
        """Make a study; StudyError where another process has just made one of this name."""
        with self.errors("written"), quiet_optuna():
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            storage = self.storage
            wanted = [
                StudyDirection.MAXIMIZE if each == "maximize" else StudyDirection.MINIMIZE
                for each in directions
            ]
            with self.writing():  # in a journal, who finds the study finds what describes it
                try:
                    study = storage.create_new_study(wanted, name)
                except DuplicatedStudyError:
                    made = f'study "{name}" in {self.label} was just created by another process'
                    raise StudyError(f"{made}. Start again to continue it.") from None
                storage.set_study_user_attr(study, META, meta)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                # Optuna's plots and its dashboard show it, instead of "Objective 0".
                names = meta.get("objectives") or [str(meta.get("objective", "value"))]
                if len(names) == len(wanted):
                    optuna.load_study(study_name=name, storage=storage).set_metric_names(names)

    def study_id(self, name: str) -> int:
        """Return the storage's id of a study; StorageError also if there is none any more."""
        with self.errors("read"), self.turn:
            return self.storage.get_study_id_from_name(name)

    @contextlib.contextmanager
    def errors(self, done: str) -> Iterator[None]:
        """Turn an error into a StorageError without passwords; ``done``: opened, read, written."""
        try:
            yield
        except PacelineError:
            raise
        except Exception as error:  # errors of database drivers have no common base
            if isinstance(error, StorageInternalError) and error.__cause__ is not None:
                error = error.__cause__  # Optuna's own text does not say what is wrong
            text = self._hide(str(error).strip().split("\n")[0]) or type(error).__name__
            if isinstance(error, LookupError | TypeError | AttributeError | AssertionError):
                text = f"it holds data that Optuna does not write ({type(error).__name__}: {text})"
            # The chain is cut: a driver's message may hold the URL with its password.
            raise StorageError(
                f"storage {self.label} cannot be {done}: {text.rstrip('.')}. Check the path or "
                "the URL, and that you may write to it."
            ) from None


class _GivenStorage(StudyStorage):
    """A storage that the user has opened."""

    def __init__(self, storage: BaseStorage) -> None:
        super().__init__(type(storage).__name__)
        self._storage = self._given = storage

    def _open(self) -> BaseStorage:
        return self._given


class _JournalFile(StudyStorage):
    """A journal in a file."""

    linger, whole = 0.1, True

    def __init__(self, path: Path) -> None:
        absolute = path.absolute()  # a user's function may change the working directory
        super().__init__(f"journal:{as_shown(path)}", absolute)
        self._file = JournalFile(absolute)
        self.turn = self._file.turn

    def batch(self, written: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        return self._file.batch(written)

    def compact(self) -> None:
        with contextlib.suppress(OSError, LookupError, PacelineError):
            if isinstance(self._storage, JournalStorage):
                self._storage.compact()

    def _open(self) -> BaseStorage:
        return JournalStorage(self._file)

    def _check(self) -> None:
        path = self._file.path
        if path.is_dir():
            raise StorageError(f"storage {self.label} is a folder. Name a file in it.")
        if path.exists() and not path.is_file():  # another process may have made it just now
            raise StorageError(f"storage {self.label} is not a file. Name another.")
        super()._check()


class _Database(StudyStorage):
    """A database, by its URL."""

    def __init__(self, url: str) -> None:
        label, path = check_url(url), sqlite_path(url)
        if path is not None:
            label = label.replace(str(path), str(as_shown(path)))
        super().__init__(label, path)
        self._url, self._hider, self._made = url, PasswordMask(url), False

    def close(self) -> None:
        if self._storage is not None:
            close_connections(self._storage)

    def _open(self) -> BaseStorage:
        return open_database(self._url)

    def _is_there(self) -> bool:
        # Optuna makes tables when it opens a database, and SQLite the file: too soon for a reader.
        self._made = super()._is_there() and (self._made or has_tables(self._url))
        return self._made

    def _hide(self, text: str) -> str:
        return self._hider(text)


class _QuietOptuna:
    """Keeps Optuna's log lines off the screen inside of blocks; then the user's level is back.

    The setting is the process's. The search, the writer of records and the heartbeats enter blocks,
    each in a thread of its own, and blocks may be nested. The first to enter notes the user's
    level, and the last to leave restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0  # blocks that have not ended
        self._users = self._ours = 0  # levels: before the first block, and inside

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._entered == 0:
                self._users = optuna.logging.get_verbosity()
                self._ours = max(self._users, optuna.logging.ERROR)
                optuna.logging.set_verbosity(self._ours)
            self._entered += 1
        try:
            yield
        finally:
            with self._lock:
                self._entered -= 1
                # A level that the user has set meanwhile stays.
                if self._entered == 0 and optuna.logging.get_verbosity() == self._ours:
                    optuna.logging.set_verbosity(self._users)


quiet_optuna = _QuietOptuna()


class Stopwatch:
    """Adds up the time of blocks, those that raise included, in ``seconds``."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A block that counts."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began
