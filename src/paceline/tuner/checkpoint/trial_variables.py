"""Running trials of a worker on disk, for a worker that takes them over when it dies.

A study that several workers search cannot be taken back to an earlier state, because other workers
change it meanwhile. So a worker's checkpoint holds each of its running trials by itself, with
variables and history, and the worker that takes a trial over goes on from there. The checkpoint
lies in the folder of the worker that wrote it, and is of use to workers that see the same folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct
from optuna.trial import FrozenTrial

from paceline.executor.base import Parts
from paceline.study import trial_codec
from paceline.study.storage import schema
from paceline.study.storage.folder import study_lock
from paceline.study.trial import Trial
from paceline.study.workers.worker import WORKERS
from paceline.tuner.checkpoint.files import CheckpointManager
from paceline.tuner.checkpoint.kept_trials import HeldTrial

if TYPE_CHECKING:
    from paceline.data.inputs import TrialInputs
    from paceline.program.trace import State
    from paceline.study.study import Study

#: Folder of checkpoints, in the folder of a study or of one of its workers.
FOLDER = "checkpoints"


class HandedOverTrial(Struct):
    """A trial between two epochs, as the worker that trained it left it."""

    hparams: dict[str, schema.Scalar]
    seed: schema.Count
    epoch: Annotated[int, Meta(ge=1)]  # epochs trained
    seconds: float  # the trial's share of the time that its packs took
    history: dict[str, list[float]]  # metric name -> values, one for each epoch
    parts: Parts  # trainable, non-trainable, optimizer and metric variables
    best: HeldTrial | None  # None where it was not among the best of the worker's trials

    @classmethod
    def of(
        cls, trial: Trial, epoch: int, seconds: float, state: State, best: HeldTrial | None
    ) -> HandedOverTrial:
        """A running trial between two epochs."""
        hparams, parts = trial_codec.plain(trial.hparams), state.lists()
        return cls(hparams, trial.seed, epoch, seconds, trial.history, parts, best)

    def is_of(self, trial: Trial) -> bool:
        """Whether it is a trial of the storage, which has another number by now."""
        return (self.hparams, self.seed) == (trial_codec.plain(trial.hparams), trial.seed)


class HandedOverTrials(Struct):
    """The running trials of one worker of several."""

    trials: list[HandedOverTrial]
    shared: bool = True  # what tells it from a search's checkpoint
    key: dict[str, Any] = {}  # of ``SavePolicy``


@dataclass(eq=False, repr=False)
class TrialHandoff:
    """Reads the trials that workers of a study have left when they died."""

    folder: Path  # the study's
    # What a search must have in common with this one for its trials to be of use here; JSON values.
    key: Mapping[str, Any]
    note: Callable[[str], None]  # told of a checkpoint that is damaged, but not in ``own``
    own: Path | None = None  # this worker's folder, whose damaged checkpoints are told of elsewhere
    _found: list[HandedOverTrial] | None = field(init=False, default=None)

    def has(self, stored: FrozenTrial) -> bool:
        """Whether the variables of a trial of the storage are kept, so that it can go on."""
        trial = trial_codec.from_frozen(stored)
        return trial is not None and self.take(trial) is not None

    def take(self, trial: Trial) -> HandedOverTrial | None:
        """What is kept of a trial, known by its hparams and seed; None where nothing whole is."""
        if self._found is None:
            self._found = self._read()
        return next((left for left in self._found if left.is_of(trial)), None)

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

    def _read(self) -> list[HandedOverTrial]:
        """The trials that workers have left, in searches like this one."""
        found: list[HandedOverTrial] = []
        for folder in (self.folder / FOLDER, *sorted(self.folder.glob(f"{WORKERS}/*/{FOLDER}"))):
            told_elsewhere = self.own is not None and folder == self.own / FOLDER
            note = (lambda text: None) if told_elsewhere else self.note
            snapshot = CheckpointManager(folder, note).load()
            if snapshot is None or snapshot.facts.get("key") != self.key:
                continue
            if snapshot.facts.get("shared") is not True:
                continue
            with suppress(*schema.UNREADABLE):
                found += snapshot.decoded(HandedOverTrials).facts.trials
        return [
            left
            for left in found
            if all(len(column) >= left.epoch for column in left.history.values())
        ]


def apply_weights(model: Any, weights: Parts) -> None:
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
