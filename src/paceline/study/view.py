"""A study that is read and not searched: no sampler, no writer, no worker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from paceline.errors import StorageError, StudyError
from paceline.imports import uncollected
from paceline.study.metadata import META, StoredStudy, check_name, stored_space
from paceline.study.objectives import objective_names
from paceline.study.sharing.heartbeat import BEAT, is_searched
from paceline.study.sharing.requests import asks_to_pause
from paceline.study.sharing.worker import WORKERS
from paceline.study.storage.folder import (
    check_folder,
    check_pickles,
    check_storage_text,
    journal_path,
    raise_renamed,
)
from paceline.study.storage.journal import DamagedLineError, JournalFile, damaged, lines_of
from paceline.study.storage.journal_storage import JournalReplay
from paceline.study.storage.storage import StudyStorage
from paceline.study.trials import trial_codec
from paceline.study.trials.table import TrialTable, rank
from paceline.study.trials.trial import Trial

# How lines of a journal begin that are about trials.
_OF_TRIALS = tuple(b'{"op_code":%d,' % operation for operation in range(4, 10))


def meta_in_journal(name: str, *, storage: str | None, directory: Path) -> dict[str, Any] | None:
    """Return the attribute ``paceline`` of a study in a journal, without reading its trials.

    None if the study is in another storage than ``journal:PATH`` or None, or not there.
    """
    check_name(name)
    check_storage_text(storage)
    check_folder(directory / name)
    path = journal_path(storage, name, directory)
    if path is None or not path.is_file():
        return None
    file, replay = JournalFile(path), JournalReplay()
    try:
        for number, line in enumerate(file.read(0, lines_of)):
            if not line.startswith(_OF_TRIALS):
                replay.n_lines = number
                replay.apply(line)
    except DamagedLineError as error:
        raise damaged(file, error) from None
    except OSError as error:
        raise StorageError(
            f"storage journal:{path} cannot be read: {error.strerror or error}."
        ) from None
    studies = (study for study in replay.studies.values() if study.study_name == name)
    return next((study.user_attrs.get(META) for study in studies), None)


@dataclass(frozen=True)
class StudyView:
    """What is stored of a study."""

    name: str
    meta: dict[str, Any]  # the attribute ``paceline``; empty for a study of another program
    _stored: StoredStudy
    _workers: Path

    @property
    def searched(self) -> bool | None:
        """Whether a search of it runs; None if that is not known."""
        return is_searched(self._stored.attrs, self._workers)

    def check_searched(self) -> None:
        """Refuses a study that no search works on, as far as one can tell: nobody would hear."""
        known = any(key.startswith(BEAT) for key in self._stored.attrs)
        if not known or self.searched is False:
            raise StudyError(f"no search is running on {self.name!r}")

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return asks_to_pause(self._stored.attrs)

    @property
    def stored_trials(self) -> list[FrozenTrial]:
        """Its trials as Optuna has them, by number."""
        return self._stored.trials

    @cached_property
    def trials(self) -> TrialTable:
        """Its trials; an unfinished one has the value of its best epoch so far."""
        table = TrialTable(self.name)
        table.set_direction(*self._stored.directions)
        with uncollected():
            for frozen in self._stored.trials:
                trial = trial_codec.from_frozen(frozen, maximize=table.sign < 0)
                if trial is not None:
                    table.add(trial)
        return table

    @property
    def several(self) -> bool:
        """Whether it has several objectives."""
        return len(self._stored.directions) > 1

    @property
    def objectives(self) -> list[str]:
        """The names of several objectives; empty for one."""
        return objective_names(self.meta, len(self._stored.directions))

    @property
    def best(self) -> Trial | None:
        """As ``trials.best``, without making all of ``trials``."""
        direction = self._stored.directions[0]
        maximize = direction == "maximize"
        there = [(_best_value(t, maximize), t) for t in self._stored.trials]
        numbers = [(value, t) for value, t in there if value is not None and not math.isnan(value)]
        numbers.sort(key=lambda pair: rank(pair[0], direction))
        for _, frozen in numbers:
            trial = trial_codec.from_frozen(frozen, maximize=maximize)
            if trial is not None and TrialTable.may_be_best(trial):
                return trial
        return None

    @classmethod
    def open(
        cls, name: str, *, storage: str | None = None, directory: Path = Path("runs")
    ) -> StudyView | None:
        """Read a study, and write nothing; None if there is none of this name.

        ``storage`` is ``journal:PATH``, an Optuna URL, or None for the journal in ``directory``,
        the folder of the studies.
        """
        check_name(name)
        check_storage_text(storage)
        check_folder(directory / name)
        store = StudyStorage.of(storage, name, directory)
        stored = store.load(name)
        if stored is None:
            others = store.names() if storage is None else []
            if others and name not in others:  # it may have been made just now
                raise_renamed(name, directory, others)
            return None
        check_pickles(name, stored.trials)
        stored_space(name, stored.meta)
        return cls(name, stored.meta, stored, directory / name / WORKERS)


def _best_value(stored: FrozenTrial, maximize: bool) -> float | None:
    """The value of a stored trial; of an unfinished one, that of its best epoch so far."""
    if stored.values:
        return stored.values[0]
    best = None if stored.state.is_finished() else trial_codec.best_so_far(stored, maximize)
    return None if best is None else best[1]
