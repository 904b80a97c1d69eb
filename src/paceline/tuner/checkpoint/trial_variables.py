"""The variables of single trials on disk, for a search or a worker that trains them on.

``LastVariables`` keeps those of the best trials after their last epoch, for ``continue_best``. The
best models on disk (``best_models.py``) are of no use for that: they are of the best epoch, and
lack the variables of the optimizer and the metrics, and the seeds. Each trial has a file of its
own, and there are as many files as best models.

``TrialHandoff`` is for studies that several workers search. Such a study cannot be taken back to
an earlier state, because other workers change it meanwhile. So a worker's checkpoint holds each of
its running trials by itself, with variables and history, and the worker that takes a trial over
goes on from there. The checkpoint lies in the folder of the worker that wrote it, and is of use to
workers that see the same folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from optuna.trial import FrozenTrial

from paceline.executor.base import Parts, Weights
from paceline.program.files import get_parts, put_parts
from paceline.study import trial_codec
from paceline.study.sharing.worker import WORKERS
from paceline.study.storage import schema
from paceline.study.storage.folder import study_lock
from paceline.study.trial import Trial
from paceline.tuner.checkpoint.files import (
    CheckpointManager,
    Snapshot,
    load_checkpoint,
    save_checkpoint,
)

if TYPE_CHECKING:
    from paceline.data.inputs import TrialInputs
    from paceline.study.study import Study

#: Folder of checkpoints, in the folder of a study or of one of its workers.
FOLDER = "checkpoints"
_NAME = re.compile(r"trial-(\d+)-epoch-(\d+)-([0-9a-f]{16})\.safetensors")


class LastVariables:
    """Keeps the last variables of the k best complete trials; ``keep`` is k.

    ``folder`` is made at the first save. ``rank`` maps the value of a trial to a number; the best
    trial has the lowest. ``values`` are those of all complete trials, by number. For ``study``, see
    ``BestModels``.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        rank: Callable[[float], float],
        values: Mapping[int, float],
        study: Callable[[], str] = str,
    ) -> None:
        self._folder, self._keep, self._rank, self._study = folder, keep, rank, study
        self._values = dict(values)
        # Trials that this search is to train longer: their files stay until it has.
        self.awaited: set[int] = set()
        self._held: dict[int, tuple[int, Parts]] = {}
        self._saved = {number: path for number, path in _found(folder) if number in self._values}

    def offer(self, number: int, epoch: int, value: float, fetch: Callable[[], Parts]) -> None:
        """Holds a complete trial's variables when it is among the k best.

        ``epoch`` is its last, from 1. ``fetch`` copies the variables from the device; it is called
        only when they are held.
        """
        self._values[number] = value
        kept = sorted({*self._held, *self._saved, number}, key=self._place)[: self._keep]
        if number in kept:
            # Copies: what is fetched may be a view of the arrays of all slots.
            self._held[number] = epoch, [[np.array(leaf) for leaf in part] for part in fetch()]
        self._held = {n: held for n, held in self._held.items() if n in kept}

    def load(self, number: int, epoch: int) -> Parts | None:
        """Finds the variables of a trial after its last epoch, counted from 1.

        They are the trainable, non-trainable, optimizer and metric variables; None where they are
        not kept, or the file is of another epoch or another trial, or damaged.
        """
        if number in self._held:
            found, parts = self._held[number]
            return parts if found == epoch else None
        path = self._saved.get(number)
        match = _NAME.fullmatch(path.name) if path is not None else None
        if path is None or match is None or int(match[2]) != epoch:
            return None
        snapshot, _ = load_checkpoint(path, match[3])
        if snapshot is None:
            return None
        value = self._values[number]
        try:
            # Where the storage was removed or cut and this file was not, its number is that of
            # another trial.
            facts = msgspec.convert(snapshot.facts, schema.VariablesFacts)
            found = value if facts.value is None else facts.value
            of_study = snapshot.facts.get("study", "") == self._study()
            if not of_study or not math.isclose(found, value, rel_tol=1e-9):
                return None
            return get_parts("", facts.sizes, snapshot.arrays)
        except (KeyError, *schema.UNREADABLE):
            return None

    def save(self) -> None:
        """Writes what is held; removes files of trials no longer among the best nor awaited.

        Raises OSError where a file cannot be written.
        """
        for number, (epoch, parts) in self._held.items():
            arrays: dict[str, np.ndarray] = {}
            sizes = put_parts("", parts, arrays)
            value = self._values[number]
            facts = {"number": number, "epoch": epoch, "value": value, "sizes": sizes}
            facts["study"] = self._study()
            stem = f"trial-{number}-epoch-{epoch}"
            self._saved[number] = save_checkpoint(self._folder, stem, Snapshot(facts, arrays))
        self._held.clear()
        kept = {*sorted(self._saved, key=self._place)[: self._keep], *self.awaited}
        self._saved = {n: path for n, path in self._saved.items() if n in kept}
        names = {path.name for path in self._saved.values()}
        for _, path in _found(self._folder):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def _place(self, number: int) -> tuple[float, int]:
        """Sorts the best first; of equal trials the later one, which may continue the earlier."""
        return self._rank(self._values[number]), -number


def _found(folder: Path) -> list[tuple[int, Path]]:
    """Number of the trial, and path, of each file of last variables."""
    try:
        paths = sorted(folder.iterdir())
    except OSError:
        return []
    return [(int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name))]


@dataclass
class HandedOverTrial:
    """A trial between two epochs, as the worker that trained it left it."""

    epoch: int  # epochs trained
    seconds: float  # the trial's share of the time that its packs took
    history: dict[str, list[float]]  # metric name -> values, one for each epoch
    parts: Parts  # trainable, non-trainable, optimizer and metric variables
    # Its best epoch so far, the objective and the weights then; None where it was not among the
    # best of the worker's trials.
    best: tuple[int, float, Weights] | None = None


def capture_trials(trials: Iterable[tuple[Trial, HandedOverTrial]]) -> Snapshot:
    """Puts running trials into a snapshot that ``TrialHandoff`` can read, each by itself."""
    facts: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    for trial, left in trials:
        best, best_sizes = None, []
        if left.best is not None:
            epoch, value, weights = left.best
            best, best_sizes = [epoch, value], put_parts(f"best.{trial.number}", weights, arrays)
        facts[str(trial.number)] = {
            **trial_codec.to_json(trial, afresh=False),
            "at": [left.epoch, left.seconds],
            "sizes": put_parts(f"last.{trial.number}", left.parts, arrays),
            "best": best,
            "best_sizes": best_sizes,
        }
    return Snapshot({"shared": True, "trials": facts}, arrays)


@dataclass(eq=False, repr=False)
class TrialHandoff:
    """Reads the trials that workers of a study have left when they died."""

    folder: Path  # the study's
    # What a search must have in common with this one for its trials to be of use here; JSON values.
    key: Mapping[str, Any]
    note: Callable[[str], None]  # told of a checkpoint that is damaged, but not in ``own``
    own: Path | None = None  # this worker's folder, whose damaged checkpoints are told of elsewhere
    _found: list[Snapshot] | None = field(init=False, default=None)

    def has(self, stored: FrozenTrial) -> bool:
        """Whether the variables of a trial of the storage are kept, so that it can go on."""
        trial = trial_codec.from_frozen(stored)
        return trial is not None and self._entry(trial) is not None

    def take(self, trial: Trial) -> HandedOverTrial | None:
        """What is kept of a trial, known by its hparams and seed; None where nothing whole is."""
        entry = self._entry(trial)
        if entry is None:
            return None
        number, was, arrays = entry
        try:
            epoch, seconds = int(was["at"][0]), float(was["at"][1])
            best = None
            if was["best"] is not None:
                weights = get_parts(f"best.{number}", was["best_sizes"], arrays)
                best = int(was["best"][0]), float(was["best"][1]), (weights[0], weights[1])
            history = {name: list(map(float, column)) for name, column in was["history"].items()}
            parts = get_parts(f"last.{number}", was["sizes"], arrays)
            whole = epoch > 0 and all(len(column) >= epoch for column in history.values())
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            return None
        return HandedOverTrial(epoch, seconds, history, parts, best) if whole else None

    def forget(self) -> None:
        """Drops what was read: the next question reads the files again."""
        self._found = None

    def clear(self) -> None:
        """Removes what dead workers have left, when no trial of the study is under way."""
        for folder in self.folder.glob(f"{WORKERS}/*/{FOLDER}"):
            CheckpointManager(folder, self.note).clear()
        with study_lock(self.folder) as free:
            if free:  # otherwise a search has just begun there
                CheckpointManager(self.folder / FOLDER, self.note).clear()

    def _entry(self, trial: Trial) -> tuple[str, Mapping[str, Any], dict[str, np.ndarray]] | None:
        """The number under which a trial was kept, its facts, and the arrays of the snapshot."""
        wanted = trial_codec.plain(trial.hparams), trial.seed
        for snapshot in self._snapshots():
            for number, was in snapshot.facts["trials"].items():
                if isinstance(was, dict) and (was.get("hparams"), was.get("seed")) == wanted:
                    return number, was, snapshot.arrays
        return None

    def _snapshots(self) -> list[Snapshot]:
        if self._found is None:
            folders = [self.folder / FOLDER, *sorted(self.folder.glob(f"{WORKERS}/*/{FOLDER}"))]
            found = [CheckpointManager(folder, self._note_of(folder)).load() for folder in folders]
            self._found = [one for one in found if one is not None and self._is_ours(one.facts)]
        return self._found

    def _note_of(self, folder: Path) -> Callable[[str], None]:
        return self.note if self.own is None or folder != self.own / FOLDER else lambda text: None

    def _is_ours(self, facts: Mapping[str, Any]) -> bool:
        """Whether a snapshot is of single trials, of a search like this one."""
        if facts.get("key") != self.key or facts.get("shared") is not True:
            return False
        try:
            msgspec.convert(facts, schema.TrialsFacts)
        except schema.UNREADABLE:
            return False
        return True


def apply_weights(model: Any, weights: Weights) -> None:
    """Assigns the weights of a trial to a built model: trainable and non-trainable variables."""
    trainable, non_trainable = weights
    for variables, values in (
        (model.trainable_variables, trainable),
        (model.non_trainable_variables, non_trainable),
    ):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def note_batch(study: Study, number: int, model: Any, inputs: TrialInputs) -> None:
    """Notes the shapes of a trial's batches, where those of the first build make another model.

    A model without an ``Input`` has its variables from the data, which may depend on hp.
    """
    from paceline.data.arrays import shapes_from_json, shapes_to_json

    usual = study.metadata.meta.get("batch")
    if model.built or usual is None or inputs.data is None:
        return
    own = inputs.data.batch_shapes(inputs.batch_size)
    if _examples(own) != _examples(shapes_from_json(usual)):
        study.trials.by_number(number).batch = shapes_to_json(own)


def _examples(batch: Any) -> list[Any]:
    """The shapes and dtypes of one example of a batch, in the order of its arrays."""
    import keras

    return [(leaf.shape[1:], leaf.dtype) for leaf in keras.tree.flatten(batch)]
