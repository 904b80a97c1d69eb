"""The variables of single trials: held while a search runs, and on disk.

``BestTrialArrays`` keeps arrays of the best trials. The weights at each trial's best epoch are in
``best_models.py``. ``LastVariables`` keeps all variables after the last epoch, for
``continue_best``. The best models lack the variables of the optimizer and the metrics, and the
seeds.

``TrialHandoff`` is for studies that several workers search. Such a study cannot be taken back to an
earlier state, because other workers change it meanwhile. So a worker's checkpoint holds each of its
running trials separately, with variables and history. A worker that takes a trial over continues
from it. The checkpoint is in the folder of the worker that wrote it, and is of use to workers that
see the same folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct
from optuna.trial import FrozenTrial

from paceline.executor.base import Parts
from paceline.program.files import file_digest, write_atomically
from paceline.study.sharing.worker import WORKERS
from paceline.study.storage import schema
from paceline.study.storage.folder import study_lock
from paceline.study.trials import trial_codec
from paceline.study.trials.table import rank
from paceline.study.trials.trial import Trial
from paceline.tuner.checkpoint.files import (
    CheckpointManager,
    Snapshot,
    load_checkpoint,
    save_checkpoint,
)

if TYPE_CHECKING:
    from paceline.data.inputs import TrialInputs
    from paceline.program.trace import State
    from paceline.study.study import Study

#: Folder of checkpoints, in the folder of a study or of one of its workers.
FOLDER = "checkpoints"
MANIFEST = "manifest.json"
_HALF = re.compile(r"\.(tmp-)?\d+-")
_KINDS = r"\.keras|\.weights\.h5|-[0-9a-f]{16}\.safetensors"


class HeldTrial(Struct, frozen=True):
    """A trial's arrays, and the epoch and the objective that they are of."""

    value: float
    epoch: schema.Count
    arrays: Parts | None  # None: an earlier session has saved them, or this one holds them no more


class SavedTrial(Struct):
    """What the manifest says of a trial's file."""

    file: Annotated[str, Meta(pattern=rf"^trial-\d{{1,16}}-epoch-\d{{1,16}}({_KINDS})$")]
    epoch: Annotated[int, Meta(ge=1, le=2**53)]
    value: float
    sha256: str
    study: str = ""


class BestTrialArrays:
    """Keeps arrays of the k best trials that have ended; ``keep`` is k.

    ``study`` returns the study's id: another study may have left its files in ``folder``.
    """

    _order = 1  # of equal trials, the earlier one comes first, as in the study; -1: the later one

    def __init__(
        self, folder: Path, keep: int, direction: Any, study: Callable[[], str] = str
    ) -> None:
        self._folder, self._keep, self._direction, self._study = folder, keep, direction, study
        self._saved = read_manifest(folder, study())
        self._ended = {n: HeldTrial(e.value, e.epoch, None) for n, e in self._saved.items()}

    def expect(self, trials: Iterable[Trial]) -> None:
        """Ignores files of no such trial, as where a storage was cut, and they were not."""
        values = {trial.number: trial.value for trial in trials}
        self._ended = {n: h for n, h in self._ended.items() if is_of(h.value, values.get(n))}

    def _place(self, number: int, value: float) -> tuple[float, int]:
        """Sorts trials, the best first."""
        return rank(value, self._direction), self._order * number

    def _is_among_best(self, number: int, value: float) -> bool:
        place = self._place(number, value)
        better = sum(self._place(n, held.value) < place for n, held in self._ended.items())
        return better < self._keep

    def _best_of(self, trials: Mapping[int, HeldTrial]) -> dict[int, HeldTrial]:
        ranked = sorted(trials, key=lambda number: self._place(number, trials[number].value))
        return {number: trials[number] for number in ranked[: self._keep]}

    def _is_saved(self, number: int, held: HeldTrial) -> bool:
        old = self._saved.get(number)
        return old is not None and (old.epoch, old.value) == (held.epoch, held.value)

    def _save(
        self, kept: Mapping[int, HeldTrial], write: Callable[[int, HeldTrial], str | None]
    ) -> None:
        """Writes all that is missing on disk; removes files of trials that are no longer kept.

        ``write`` returns the name of the file that it has made, or None if it cannot.
        """
        if not kept:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        entries: dict[int, SavedTrial] = {}
        for number, held in kept.items():
            if self._is_saved(number, held):
                entries[number] = self._saved[number]
            elif held.arrays is not None and (name := write(number, held)) is not None:
                digest = file_digest(self._folder / name)
                entry = SavedTrial(name, held.epoch, held.value, digest, self._study())
                entries[number] = entry
        stale = {e.file for e in self._saved.values()} - {e.file for e in entries.values()}
        # Files that a killed process left half written; no other process writes here now.
        stale |= {path.name for path in self._folder.iterdir() if _HALF.match(path.name)}
        self._saved = entries
        text = msgspec.json.encode(entries, enc_hook=float)  # of NumPy's
        write_atomically(self._folder / MANIFEST, msgspec.json.format(text, indent=1))
        for name in stale:
            (self._folder / name).unlink(missing_ok=True)


class LastVariables(BestTrialArrays):
    """Keeps the variables of the k best complete trials after their last epochs."""

    _order = -1  # the later one may continue the earlier

    def __init__(
        self, folder: Path, keep: int, direction: Any, study: Callable[[], str] = str
    ) -> None:
        super().__init__(folder, keep, direction, study)
        # Trials that this search is to train longer: their files stay until it has.
        self.awaited: set[int] = set()

    def _best_of(self, trials: Mapping[int, HeldTrial]) -> dict[int, HeldTrial]:
        return super()._best_of(trials) | {n: trials[n] for n in self.awaited if n in trials}

    def _is_saved(self, number: int, held: HeldTrial) -> bool:
        """As in the base; what is saved is held no longer."""
        return held.arrays is None

    def offer(self, number: int, epoch: int, value: float, fetch: Callable[[], Parts]) -> None:
        """Holds a complete trial's variables, from the device, if it is among the k best."""
        if self._is_among_best(number, value):
            # Copies: what is fetched may be a view of the arrays of all slots.
            arrays = [[np.array(leaf) for leaf in part] for part in fetch()]
            self._ended[number] = HeldTrial(value, epoch, arrays)
            self._ended = self._best_of(self._ended)

    def load(self, number: int, epoch: int) -> Parts | None:
        """Finds all variables of a trial after its last epoch, if they are kept and whole."""
        held = self._ended.get(number)
        if held is None or held.epoch != epoch:
            return None
        if held.arrays is not None:
            return held.arrays
        entry = self._saved[number]
        snapshot, _ = load_checkpoint(self._folder / entry.file, entry.sha256[:16])
        if snapshot is not None:
            with suppress(*schema.UNREADABLE):
                return snapshot.decoded(_Variables).facts.parts
        return None

    def save(self) -> None:
        """Writes what is held; removes files of trials no longer among the best nor awaited."""
        self._ended = self._best_of(self._ended)
        saved = all(self._is_saved(number, held) for number, held in self._ended.items())
        if saved and self._ended.keys() == self._saved.keys():
            return
        self._save(self._ended, self._write)
        self._ended = {n: HeldTrial(h.value, h.epoch, None) for n, h in self._ended.items()}

    def _write(self, number: int, held: HeldTrial) -> str:
        assert held.arrays is not None
        snapshot = Snapshot(_Variables(held.arrays)).encoded()
        return save_checkpoint(self._folder, f"trial-{number}-epoch-{held.epoch}", snapshot).name


class _Variables(Struct):
    """The facts in a file of last variables."""

    parts: Parts


def is_of(saved: float, value: float | None) -> bool:
    """Whether a saved value is that of a trial; databases may keep fewer digits."""
    return value is not None and math.isclose(saved, value, rel_tol=1e-9)


def read_manifest(folder: Path, study: str) -> dict[int, SavedTrial]:
    """A study's trials that a folder says it has; none if it has no list, or a damaged one."""
    try:
        data = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict[schema.Number, Any])
    except (OSError, *schema.UNREADABLE):
        return {}
    found: dict[int, SavedTrial] = {}
    for number, entry in data.items():
        with suppress(*schema.UNREADABLE):
            found[int(number)] = msgspec.convert(entry, SavedTrial)
    return {number: entry for number, entry in found.items() if entry.study == study}


def checked(folder: Path, entry: SavedTrial) -> Path | None:
    """The path of a saved file; None when the file is missing, or its digest is another."""
    path = folder / entry.file
    return path if path.is_file() and file_digest(path) == entry.sha256 else None


class HandedOverTrial(Struct):
    """A trial between two epochs, as the worker that trained it left it."""

    hparams: dict[str, schema.Scalar]
    seed: schema.Count
    epoch: Annotated[int, Meta(ge=1)]  # epochs trained
    seconds: float  # the trial's share of the time that its packs took
    history: dict[str, list[float]]  # metric name -> values, one for each epoch
    parts: Parts  # trainable, non-trainable, optimizer and metric variables
    best: HeldTrial | None  # None if it was not among the best of the worker's trials

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
        """Whether the variables of a trial of the storage are kept, so that it can continue."""
        trial = trial_codec.from_frozen(stored)
        return trial is not None and self.take(trial) is not None

    def take(self, trial: Trial) -> HandedOverTrial | None:
        """What is kept of a trial, known by its hparams and seed; None if nothing whole is."""
        if self._found is None:
            self._found = self._read()
        return next((left for left in self._found if left.is_of(trial)), None)

    def forget(self) -> None:
        """Drops what was read: the next question reads the files again."""
        self._found = None

    def clear(self) -> None:
        """Removes files of dead workers when no trial of the study is unfinished."""
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
