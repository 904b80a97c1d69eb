"""A relay: what a worker that shares a study keeps of its trials, for whoever takes them over.

A study that others change meanwhile cannot be taken back to where it was, so this is no checkpoint
of a search: each trial stands for itself, with its variables and its history. It is kept where a
checkpoint would be, in its worker's folder, and is of use to those who see the same folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from paceline.executor.base import Parts, Weights
from paceline.study import trial_codec
from paceline.study.storage.folder import study_lock
from paceline.study.trial import Trial
from paceline.study.workers.worker import WORKERS
from paceline.tuner.checkpoint.files import CheckpointManager, Snapshot

#: Folder of checkpoints, in a study's or in that of one of its workers.
FOLDER = "checkpoints"


@dataclass
class HandedOverTrial:
    """A trial between two epochs, as its worker left it.

    Attributes:
        epoch: Epochs trained.
        seconds: Its share of the time.
        history: Metric name -> values, one for each epoch.
        parts: Its variables.
        best: Its best epoch so far, the objective then, and the weights; None where they were not
            among the best of the worker's trials.
    """

    epoch: int
    seconds: float
    history: dict[str, list[float]]
    parts: Parts
    best: tuple[int, float, Weights] | None = None


def taken(trials: Iterable[tuple[Trial, HandedOverTrial]]) -> Snapshot:
    """Trials under way as a snapshot, for ``Keeper.keep``."""
    facts: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for trial, left in trials:
        best, best_sizes = None, []
        if left.best is not None:
            epoch, value, weights = left.best
            best, best_sizes = [epoch, value], _put(f"best.{trial.number}", weights, arrays)
        facts[str(trial.number)] = {
            **trial_codec.to_json(trial, afresh=False),
            "at": [left.epoch, left.seconds],
            "sizes": _put(f"last.{trial.number}", left.parts, arrays),
            "best": best,
            "best_sizes": best_sizes,
        }
    return Snapshot({"shared": True, "trials": facts}, arrays)


class TrialHandoff:
    """What workers that are gone have left of a study's trials.

    Args:
        folder: The study's.
        key: What a search must share with this one to go on with its trials, JSON values.
        note: Told of what is damaged.
        own: Where this worker's own checkpoints are, of which others tell.
    """

    def __init__(
        self,
        folder: Path,
        key: Mapping[str, Any],
        note: Callable[[str], None],
        own: Path | None = None,
    ) -> None:
        self._folder, self._key, self._note = folder, key, note
        self._own = None if own is None else own / FOLDER
        self._found: list[Snapshot] | None = None

    def has(self, stored: FrozenTrial) -> bool:
        """Whether a trial of the storage can be gone on with."""
        trial = trial_codec.from_frozen(stored)
        return trial is not None and self._entry(trial) is not None

    def take(self, trial: Trial) -> HandedOverTrial | None:
        """What is kept of a trial, known by its hparams and seed; None where nothing is."""
        entry = self._entry(trial)
        if entry is None:
            return None
        number, was, arrays = entry
        try:
            epoch, seconds = int(was["at"][0]), float(was["at"][1])
            best = None
            if was["best"] is not None:
                weights = _parts(f"best.{number}", was["best_sizes"], arrays)
                best = int(was["best"][0]), float(was["best"][1]), (weights[0], weights[1])
            history = {name: list(map(float, column)) for name, column in was["history"].items()}
            parts = _parts(f"last.{number}", was["sizes"], arrays)
            whole = epoch > 0 and all(len(column) >= epoch for column in history.values())
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            return None
        return HandedOverTrial(epoch, seconds, history, parts, best) if whole else None

    def forget(self) -> None:
        """Look again the next time, and hold nothing until then."""
        self._found = None

    def clear(self) -> None:
        """Remove what workers that are gone have left: the study has no trial under way."""
        for folder in self._folder.glob(f"{WORKERS}/*/{FOLDER}"):
            CheckpointManager(folder, self._note).clear()
        with study_lock(self._folder) as free:
            if free:  # else a search has just begun there
                CheckpointManager(self._folder / FOLDER, self._note).clear()

    def _entry(self, trial: Trial) -> tuple[str, Mapping[str, Any], dict[str, np.ndarray]] | None:
        wanted = trial_codec.plain(trial.hparams), trial.seed
        for snapshot in self._snapshots():
            for number, was in snapshot.facts["trials"].items():
                if isinstance(was, dict) and (was.get("hparams"), was.get("seed")) == wanted:
                    return number, was, snapshot.arrays
        return None

    def _snapshots(self) -> list[Snapshot]:
        if self._found is None:
            folders = [self._folder / FOLDER, *sorted(self._folder.glob(f"{WORKERS}/*/{FOLDER}"))]
            found = [CheckpointManager(folder, self._note_of(folder)).load() for folder in folders]
            self._found = [one for one in found if one is not None and self._is_ours(one.facts)]
        return self._found

    def _note_of(self, folder: Path) -> Callable[[str], None]:
        return (lambda text: None) if folder == self._own else self._note

    def _is_ours(self, facts: Mapping[str, Any]) -> bool:
        shared = facts.get("shared") is True and isinstance(facts.get("trials"), dict)
        return shared and facts.get("key") == self._key


def _put(name: str, parts: Parts, arrays: dict[str, np.ndarray]) -> list[int]:
    for part, leaves in enumerate(parts):
        for at, leaf in enumerate(leaves):
            arrays[f"{name}.{part}.{at}"] = np.asarray(leaf)
    return [len(leaves) for leaves in parts]


def _parts(name: str, sizes: list[int], arrays: Mapping[str, np.ndarray]) -> list[list[np.ndarray]]:
    return [[arrays[f"{name}.{part}.{at}"] for at in range(n)] for part, n in enumerate(sizes)]
