"""The models of the best trials: weights held while a search runs, and saved as Keras files."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from paceline.errors import StudyError
from paceline.executor.base import Parts
from paceline.program import keras_private
from paceline.program.files import as_shown, written_atomically
from paceline.search_space import HyperParameters
from paceline.study.sharing.worker import WORKERS
from paceline.study.storage import schema
from paceline.study.storage.folder import BEST as FOLDER
from paceline.study.study import Study
from paceline.study.trials.trial import UNDER_WAY, Trial
from paceline.tuner.checkpoint.trial_variables import (
    BestTrialArrays,
    HeldTrial,
    LastVariables,
    apply_weights,
    checked,
    is_of,
    read_manifest,
)

if TYPE_CHECKING:
    from paceline.executor.model_builder import ModelBuilder

_MODEL, _WEIGHTS = ".keras", ".weights.h5"


class BestFacts(Struct):
    """The weights that are held, by the numbers of trials."""

    open: dict[schema.Count, HeldTrial] = {}
    ended: dict[schema.Count, HeldTrial] = {}


class BestModels(BestTrialArrays):
    """Keeps the weights of the k best trials, each at its best epoch.

    An unfinished trial may still fail, so its weights do not replace those of finished trials. With
    several objectives the whole Pareto front stays; ``front`` returns its trials.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        direction: Any,
        study: Callable[[], str] = str,
        front: Callable[[], list[Trial]] | None = None,
    ) -> None:
        super().__init__(folder, keep, direction, study)
        self._front = front
        self._open: dict[int, HeldTrial] = {}

    def expect(self, trials: Iterable[Trial]) -> None:
        """As in the base; ``trials`` are those of the study that may be the best."""
        trials = list(trials)
        super().expect(trials)
        for trial in trials:
            if trial.state in UNDER_WAY and trial.number in self._ended:
                self._open[trial.number] = self._ended.pop(trial.number)

    def offer(self, number: int, epoch: int, value: float, fetch: Callable[[], Parts]) -> None:
        """Holds a running trial's weights when its value after ``epoch`` is among the k best.

        ``fetch`` copies the weights from the device; it is called only when they are held.
        """
        if self._front is not None or self._is_among_best(number, value):
            self._open[number] = HeldTrial(value, epoch, fetch())

    def complete(self, number: int) -> None:
        """Counts a trial, complete or pruned, among those that have ended: the k best stay."""
        held = self._open.pop(number, None)
        if held is not None:
            self._ended[number] = held
        if self._front is not None:
            kept = {trial.number for trial in self._front()}
            self._ended = {n: held for n, held in self._ended.items() if n in kept}
        elif held is not None:
            self._ended = self._best_of(self._ended)

    @property
    def least(self) -> float | None:
        """The value that a trial must reach to be among the k best; None: any will do."""
        if len(self._ended) < self._keep:
            return None
        return list(self._best_of(self._ended).values())[-1].value

    def forget(self, number: int) -> None:
        """Forgets a trial, finished or not."""
        self._open.pop(number, None)
        self._ended.pop(number, None)

    def renumber(self, number: int, now: int) -> None:
        """Keeps what is held of a trial under its new number."""
        tables: list[dict[int, Any]] = [self._open, self._ended, self._saved]
        for table in tables:
            if number in table:
                table[now] = table.pop(number)

    @property
    def unsaved(self) -> bool:
        """Whether the weights of some trial that has ended are held and not on disk."""
        return any(
            held.arrays is not None and not self._is_saved(number, held)
            for number, held in self._ended.items()
        )

    def snapshot(self, without: Container[int]) -> BestFacts:
        """The weights that are held, but not those of the trials ``without``."""

        def held(trials: Mapping[int, HeldTrial]) -> dict[int, HeldTrial]:
            there = {n: held for n, held in trials.items() if held.arrays is not None}
            return {n: held for n, held in there.items() if n not in without}

        return BestFacts(held(self._open), held(self._ended))

    def restore(self, facts: BestFacts) -> None:
        """Holds what was held when ``snapshot`` was called."""
        self._open.update(facts.open)
        self._ended.update(facts.ended)

    def held(self, number: int) -> HeldTrial | None:
        """A running trial's best epoch, the objective then, and its weights; None if not held."""
        held = self._open.get(number)
        return None if held is None or held.arrays is None else held

    def weights(self, number: int) -> Parts | None:
        """A trial's weights, where this process holds them."""
        held = self._ended.get(number) or self._open.get(number)
        return held.arrays if held else None

    def weights_path(self, number: int) -> Path | None:
        """The file to load a trial's weights from: a whole model, or weights alone; or None."""
        there = number in self._ended or number in self._open
        entry = self._saved.get(number) if there else None
        return None if entry is None else checked(self._folder, entry)

    def save(
        self, rebuild: Callable[[int, Parts], Any], note: Callable[[str], None] = lambda _: None
    ) -> None:
        """Writes held models that are not on disk yet; removes files no longer among the best.

        ``rebuild`` makes the Keras model to save. ``note`` is told of a model that Keras cannot
        save whole: its weights are saved alone then.
        """

        def write(number: int, held: HeldTrial) -> str | None:
            assert held.arrays is not None
            try:
                model = rebuild(number, held.arrays)
            except Exception as error:  # the user's build, which worked for the trial
                note(
                    f"the model of trial {number} cannot be saved: build(hp) failed this time: "
                    f"{type(error).__name__}: {error}"
                )
                return None
            return self._write(number, held.epoch, model, note)

        # The k best of all trials, finished or not.
        several = self._front is not None
        self._save(self._ended if several else self._best_of(self._ended | self._open), write)

    def _write(self, number: int, epoch: int, model: Any, note: Callable[[str], None]) -> str:
        stem = f"trial-{number}-epoch-{epoch}"
        try:
            return self._put(stem + _MODEL, model.save)
        except OSError:
            raise
        except Exception as error:  # the user's class has no get_config, or a wrong one
            why = " ".join(str(error).split()).partition(". ")[0]
            note(
                f"only the weights of trial {number} are saved, because its model cannot be saved "
                f"({type(error).__name__}: {why})"
            )
            return self._put(stem + _WEIGHTS, model.save_weights)

    def _put(self, name: str, write: Callable[[Path], None]) -> str:
        with written_atomically(self._folder / name) as temporary, keras_private.no_tensorflow():
            write(temporary)
        return name


def find_saved(folder: Path, study: str, number: int, value: float | None) -> Path | None:
    """The file to load a trial's weights from, whichever worker of the study has saved it.

    It holds a whole model or weights alone; that of another ``value`` is another trial's.
    """
    for best in (folder / FOLDER, *sorted(folder.glob(f"{WORKERS}/*/{FOLDER}"))):
        entry = read_manifest(best, study).get(number)
        if entry is None or not is_of(entry.value, value):
            continue
        if (path := checked(best, entry)) is not None:
            return path
    return None


class TrainedModels:
    """Makes the trained models of a study again, from ``build(hp)`` and the weights that are kept.

    ``folder`` is where this search keeps models; where that is the folder of one of the study's
    workers, ``study_folder`` is the study's. ``precision``: None as the study was searched.
    """

    #: Returns what saves a trial's model with some weights if this process cannot build it.
    elsewhere: Callable[[Trial, Any, Parts], Any] | None = None

    #: Seconds between saves while a search runs: a save takes a tenth of a second or more.
    EVERY = 30.0

    def __init__(
        self,
        study: Study,
        builder: ModelBuilder,
        folder: Path,
        keep: int,
        precision: str | None,
        study_folder: Path | None = None,
    ) -> None:
        self._study, self._builder, self._precision = study, builder, precision
        self._keep = keep
        self._folder, self._study_folder = folder / FOLDER, study_folder or folder
        self._said: str | None = None
        self._last_save = time.perf_counter()
        trials = study.trials
        there = [t for t in trials if trials.may_be_best(t) and t.value is not None]
        front = (lambda: trials.front) if trials.several else None
        study_id = partial(getattr, study.metadata, "id")  # another worker may make the study first
        # The weights of the best trials; a searcher may keep them itself.
        self.best: Any = BestModels(self._folder, keep, trials.direction, study_id, front)
        self.best.expect(there)
        if (searchers := study.strategy.trial_weights()) is not None:
            self.best = searchers
        self.last_variables = LastVariables(folder / "ends", keep, trials.direction, study_id)
        self.last_variables.expect(trial for trial in there if trial.state == "complete")

    def forget_failed(self) -> None:
        """Forgets the models of trials that have failed, such as those that a dead process left."""
        for trial in self._study.trials:
            if not self._study.trials.may_be_best(trial):
                self.best.forget(trial.number)

    def model(
        self, trial: Trial, note: Callable[[str], None] = lambda _: None, rank: int = 1
    ) -> Any:
        """A trial's compiled model, with the weights of its best epoch; ``rank`` is 1 for the best.

        ``note`` is told of layers that the model has in common with other models. Raises StudyError
        where its saved weights are gone, or do not fit the model that build makes now.
        """
        # Late, as below: commands that only read a study load this module, and never JAX or Keras.
        from paceline.executor.process import search_process
        from paceline.program.own_model import own_model
        from paceline.program.trace import check_precision

        weights, path = self.best.weights(trial.number), None
        if weights is None:
            path = self.best.weights_path(trial.number)
            of_study = self._study_folder, self._study.metadata.id
            path = path or find_saved(*of_study, trial.number, trial.value)
            source = self._study.trials.repeated_by(trial)
            if path is None and source is not None:
                return self.model(source, note, rank)
            if path is None and rank > self._keep:
                raise StudyError(
                    f"study: the model of rank {rank} (trial {trial.number}) is not kept, because "
                    f"keep_best is {self._keep}. Search with Tuner(keep_best={rank}), or build it "
                    "again: "
                    f"build(paceline.HyperParameters(values=tuner.trial({trial.number}).hparams))."
                )
            if path is None:
                raise StudyError(
                    f"study: the saved model of trial {trial.number} is missing from "
                    f"{as_shown(self._folder)}, or was changed. Train it again with "
                    f"build(paceline.HyperParameters(values=tuner.trial({trial.number}).hparams))."
                )

        def load(model: Any) -> None:
            if weights is not None:
                apply_weights(model, weights)
                return
            try:
                model.load_weights(path)
            except ValueError as error:
                raise StudyError(
                    f"study: the saved weights of trial {trial.number} do not fit the model of "
                    "build(hp). Has build changed? The earlier model is in "
                    f"{path and as_shown(path)}. Read it with keras.models.load_model."
                ) from error

        precision = self._precision or check_precision(self._study.metadata.meta.get("precision"))
        with search_process(precision, memory=False):
            model, alone = own_model(self.rebuild(trial), load)
        if not alone:
            note(
                f"the model of trial {trial.number} shares layers with build, and Keras cannot "
                "copy it. These layers now hold its weights, with which the next search begins"
            )
        return model

    def save(self, note: Callable[[str], None]) -> str | None:
        """Writes best models that are not on disk yet; returns why they stay in memory, or None."""
        self._last_save = time.perf_counter()
        from paceline.program.initial_weights import changes_kept, values_kept

        def rebuild(number: int, weights: Parts) -> Any:
            trial = self._study.trials.by_number(number)
            try:
                model = self.rebuild(trial)
            except Exception:
                if self.elsewhere is None:
                    raise
                return self.elsewhere(trial, self._batch(trial), weights)
            # Its layers may be the user's, and part of the models of trials that are to come.
            saving.enter_context(values_kept(model))
            apply_weights(model, weights)
            return model

        try:
            with ExitStack() as saving:
                saving.enter_context(changes_kept())
                self.best.save(rebuild, note)
            self.last_variables.save()
        except OSError as error:
            where = as_shown(self._folder)
            why = f"the best model cannot be saved in {where}: {error.strerror or error}"
            if why != self._said:
                self._said = why
                note(f"{why}; the search continues and will try again")
            return why
        return None

    def save_if_due(self, note: Callable[[str], None]) -> None:
        """Calls ``save`` every ``EVERY`` seconds, so that a process that dies loses little.

        A search that shares its study saves each model at once: it has no checkpoint to hold them.
        """
        waited = time.perf_counter() - self._last_save
        if self._study.writer.unnumbered:
            return  # a file would have the number of another program's trial
        if waited > self.EVERY or (self._study.peers.shared and self.best.unsaved):
            self.save(note)

    def rebuild(self, trial: Trial) -> Any:
        """Builds a trial's model, with all its variables."""
        return built_again(self._builder, trial.hparams, trial.seed, self._batch(trial))

    def _batch(self, trial: Trial) -> Any:
        """The shapes of a trial's batches, as JSON has them; None where they are not known."""
        return trial.batch or self._study.metadata.meta.get("batch")


def built_again(builder: ModelBuilder, hparams: Mapping[str, Any], seed: int, batch: Any) -> Any:
    """Builds a model, with all its variables; ``batch`` has shapes as JSON, or is None."""
    from paceline.data.arrays import shapes_from_json
    from paceline.program import keras_private

    model = builder(HyperParameters(values=hparams), seed)
    if model.built:
        model.optimizer.build(model.trainable_variables)  # its state is saved with the model
    elif batch is not None:
        keras_private.symbolic_build(model, shapes_from_json(batch))
    return model
