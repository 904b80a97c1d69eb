"""The models of the best trials: weights held while a search runs, and saved as Keras files."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Container, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from paceline.errors import StudyError
from paceline.executor.base import Weights
from paceline.program.files import (
    as_shown,
    file_digest,
    get_parts,
    put_parts,
    write_atomically,
    written_atomically,
)
from paceline.search_space import HyperParameters
from paceline.study.sharing.worker import WORKERS
from paceline.study.storage import schema
from paceline.study.storage.folder import BEST as FOLDER
from paceline.study.study import Study
from paceline.study.trial import UNDER_WAY, Trial
from paceline.study.trials import rank
from paceline.tuner.checkpoint.trial_variables import LastVariables, apply_weights

if TYPE_CHECKING:
    from paceline.executor.model_builder import ModelBuilder

MANIFEST = "manifest.json"
_MODEL, _WEIGHTS = ".keras", ".weights.h5"
_HALF = re.compile(r"\.(tmp-)?\d+-")


@dataclass(frozen=True)
class _Held:
    """A trial's weights, and the epoch and the objective that they are of."""

    value: float
    epoch: int
    weights: Weights | None  # None: an earlier session has saved them


class BestModels:
    """Keeps the weights of the k best trials, each at its best epoch; ``keep`` is k.

    A trial under way, running or paused, may still fail, so its weights are held beside those of
    the trials that have ended, not in their place. With several objectives the front stays, however
    large; ``front`` returns its trials. ``study`` returns the study's id: another study may have
    left its models in ``folder``, which is made at the first save.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        direction: Any,
        front: Callable[[], list[Trial]] | None = None,
        study: Callable[[], str] = str,
    ) -> None:
        self._folder, self._keep, self._direction = folder, keep, direction
        self._front, self._study = front, study
        self._open: dict[int, _Held] = {}
        self._ended: dict[int, _Held] = {}
        self._saved: dict[int, dict[str, Any]] = _read_manifest(folder, study())
        for number, entry in self._saved.items():
            self._ended[number] = _Held(entry["value"], entry["epoch"], None)

    def expect(self, trials: Mapping[int, Trial]) -> None:
        """Ignores saved models of no trial, as where a storage was cut, and they were not.

        ``trials`` are those of the study that may be the best.
        """
        for number, held in list(self._ended.items()):
            trial = trials.get(number)
            if trial is None or not _is_of(held.value, trial.value):
                del self._ended[number]
            elif trial.state in UNDER_WAY:
                self._open[number] = self._ended.pop(number)

    def offer(self, number: int, epoch: int, value: float, fetch: Callable[[], Weights]) -> None:
        """Holds a running trial's weights when its new best value is among the k best.

        ``epoch`` is that of ``value``, from 1. ``fetch`` copies the weights from the device; it is
        called only when they are held.
        """
        better = sum(self._rank(n, held) < self._rank(number, value) for n, held in self._values())
        if self._front is not None or better < self._keep:
            self._open[number] = _Held(value, epoch, fetch())

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
    def _kept(self) -> dict[int, _Held]:
        """The k best of all trials, under way or ended: those whose models are saved."""
        return self._ended if self._front is not None else self._best_of(self._ended | self._open)

    def _best_of(self, trials: Mapping[int, _Held]) -> dict[int, _Held]:
        ranked = sorted(trials, key=lambda number: self._rank(number, trials[number].value))
        return {number: trials[number] for number in ranked[: self._keep]}

    @property
    def least(self) -> float | None:
        """The value that a trial must reach to be among the k best; None: any will do."""
        if len(self._ended) < self._keep:
            return None
        return list(self._best_of(self._ended).values())[-1].value

    def drop(self, number: int) -> None:
        """Forgets the weights of a running trial, which has failed or begins again."""
        self._open.pop(number, None)

    def forget(self, number: int) -> None:
        """Forgets a trial, whether it is under way or has ended."""
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
            held.weights is not None and not self._is_saved(number, held)
            for number, held in self._ended.items()
        )

    def snapshot(self, arrays: dict[str, np.ndarray], without: Container[int]) -> dict[str, Any]:
        """Adds held weights to ``arrays``, but not those of ``without``; JSON for ``restore``."""
        facts: dict[str, Any] = {}
        for where, trials in (("open", self._open), ("complete", self._ended)):
            facts[where] = {}
            for number, held in trials.items():
                if held.weights is None or number in without:
                    continue
                sizes = put_parts(f"best.{number}", held.weights, arrays)
                facts[where][str(number)] = [held.value, held.epoch, *sizes]
        return facts

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Holds what was held when ``snapshot`` was called."""
        for where, trials in (("open", self._open), ("complete", self._ended)):
            for number, (value, epoch, *sizes) in facts[where].items():
                trainable, fixed = get_parts(f"best.{number}", sizes, arrays)
                trials[int(number)] = _Held(value, epoch, (trainable, fixed))

    def held(self, number: int) -> tuple[int, float, Weights] | None:
        """A running trial's best epoch, the objective then, and its weights; None if not held."""
        held = self._open.get(number)
        if held is None or held.weights is None:
            return None
        return held.epoch, held.value, held.weights

    def weights(self, number: int) -> Weights | None:
        """A trial's weights, where this process holds them."""
        held = self._ended.get(number) or self._open.get(number)
        return held.weights if held else None

    def path(self, number: int) -> Path | None:
        """The file of a trial's saved model; None when there is none or it is damaged."""
        path = self.weights_path(number)
        return path if path is not None and path.suffix == _MODEL else None

    def weights_path(self, number: int) -> Path | None:
        """The file to load a trial's weights from: a whole model, or weights alone; or None."""
        there = number in self._ended or number in self._open
        entry = self._saved.get(number) if there else None
        return None if entry is None else _checked(self._folder, entry)

    def save(
        self, rebuild: Callable[[int, Weights], Any], note: Callable[[str], None] = lambda _: None
    ) -> None:
        """Writes held models that are not on disk yet; removes files no longer among the best.

        ``rebuild`` makes the Keras model to save. ``note`` is told of a model that Keras cannot
        save whole: its weights are saved alone then. Raises OSError where a file cannot be written.
        """
        kept = self._kept
        if not kept:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        entries: dict[int, dict[str, Any]] = {}
        for number, held in kept.items():
            if self._is_saved(number, held):
                entries[number] = self._saved[number]
            elif held.weights is not None:
                try:
                    model = rebuild(number, held.weights)
                except Exception as error:  # the user's build, which worked for the trial
                    note(
                        f"the model of trial {number} cannot be saved: build(hp) failed this time: "
                        f"{type(error).__name__}: {error}"
                    )
                    continue
                entries[number] = self._write(number, held, model, note)
        stale = {e["file"] for e in self._saved.values()} - {e["file"] for e in entries.values()}
        # Files that a killed process left half written; no other process writes here now.
        stale |= {path.name for path in self._folder.iterdir() if _HALF.match(path.name)}
        self._saved = entries
        text = json.dumps({str(n): entry for n, entry in entries.items()}, indent=1)
        write_atomically(self._folder / MANIFEST, text.encode())
        for name in stale:
            (self._folder / name).unlink(missing_ok=True)

    def _write(
        self, number: int, held: _Held, model: Any, note: Callable[[str], None]
    ) -> dict[str, Any]:
        stem = f"trial-{number}-epoch-{held.epoch}"
        try:
            name = self._put(stem + _MODEL, model.save)
        except OSError:
            raise
        except Exception as error:  # the user's class has no get_config, or a wrong one
            why = " ".join(str(error).split()).partition(". ")[0]
            note(
                f"the model of trial {number} cannot be saved whole, so its weights are saved "
                f"alone ({type(error).__name__}: {why})"
            )
            name = self._put(stem + _WEIGHTS, model.save_weights)
        return {
            "file": name,
            "epoch": held.epoch,
            "value": held.value,
            "study": self._study(),
            "sha256": file_digest(self._folder / name),
        }

    def _put(self, name: str, write: Callable[[Path], None]) -> str:
        with written_atomically(self._folder / name) as temporary:
            write(temporary)
        return name

    def _is_saved(self, number: int, held: _Held) -> bool:
        old = self._saved.get(number)
        return old is not None and old["epoch"] == held.epoch and old["value"] == held.value

    def _values(self) -> list[tuple[int, float]]:
        return [(number, held.value) for number, held in self._ended.items()]

    def _rank(self, number: int, value: float) -> tuple[float, int]:
        """Sorts the best first; of equal trials the earlier one, as the study does."""
        return (-value if self._direction == "maximize" else value, number)


def find_saved(folder: Path, study: str, number: int, value: float | None) -> Path | None:
    """The file to load a trial's weights from, whichever worker of the study has saved it.

    It holds a whole model or weights alone; None where there is none. A file of another ``value``
    is another trial's. ``folder`` and ``study`` are the study's, the latter its id.
    """
    for best in (folder / FOLDER, *sorted(folder.glob(f"{WORKERS}/*/{FOLDER}"))):
        entry = _read_manifest(best, study).get(number)
        if entry is None or not _is_of(entry["value"], value):
            continue
        if (path := _checked(best, entry)) is not None:
            return path
    return None


def _is_of(saved: float, value: float | None) -> bool:
    """Whether a saved value is that of a trial; databases may keep fewer digits."""
    return value is not None and math.isclose(saved, value, rel_tol=1e-9)


def _read_manifest(folder: Path, study: str) -> dict[int, dict[str, Any]]:
    """A study's models that a folder says it has; none where it has no list, or a damaged one."""
    try:
        data = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict[schema.Number, Any])
    except (OSError, *schema.UNREADABLE):
        return {}
    return {int(number): entry for number, entry in data.items() if _is_ours(entry, study)}


def _checked(folder: Path, entry: Mapping[str, Any]) -> Path | None:
    """The path of a saved file; None when the file is missing, or its digest is another."""
    path = folder / entry["file"]
    return path if path.is_file() and file_digest(path) == entry["sha256"] else None


def _is_ours(entry: Any, study: str) -> bool:
    """Whether an entry is of a study, and has all that ``save`` writes, with a name of ours."""
    with suppress(*schema.UNREADABLE):
        msgspec.convert(entry, schema.ManifestEntry)
        return entry.get("study", "") == study
    return False


class TrainedModels:
    """Makes the trained models of a study again, from ``build(hp)`` and the weights that are kept.

    The study's direction is known. ``folder`` is where this search keeps models; where that is the
    folder of one of the study's workers, ``study_folder`` is the study's. ``precision`` is None for
    what the study was searched with.
    """

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
        there = {t.number: t for t in trials if trials.may_be_best(t) and t.value is not None}
        front = (lambda: trials.front) if trials.several else None
        study_id = partial(getattr, study.metadata, "id")  # another worker may make the study first
        # The weights of the best trials; a searcher may keep them itself.
        self.best: Any = BestModels(self._folder, keep, trials.direction, front, study_id)
        self.best.expect(there)
        if (searchers := study.strategy.trial_weights()) is not None:
            self.best = searchers
        assert study.trials.direction is not None
        ranked = partial(rank, direction=study.trials.direction)
        values = {n: trial.value or 0.0 for n, trial in there.items() if trial.state == "complete"}
        self.last_variables = LastVariables(folder / "ends", keep, ranked, values, study_id)

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
                    f"study: keep_best is {self._keep}, and the model of rank {rank} (trial "
                    f"{trial.number}) is not kept. Search with Tuner(keep_best={rank}), or build "
                    "it again: "
                    f"build(paceline.HyperParameters(values=tuner.trial({trial.number}).hparams))."
                )
            if path is None:
                raise StudyError(
                    f"study: the saved model of trial {trial.number} is not in "
                    f"{as_shown(self._folder)}, or it was changed there; train it again with "
                    "build(paceline.HyperParameters(values="
                    f"tuner.trial({trial.number}).hparams))."
                )

        def load(model: Any) -> None:
            if weights is not None:
                apply_weights(model, weights)
                return
            try:
                model.load_weights(path)
            except ValueError as error:
                raise StudyError(
                    f"study: the saved weights of trial {trial.number} do not fit the model that "
                    "build(hp) makes now; was it changed since? The model as it was is in "
                    f"{path and as_shown(path)}: keras.models.load_model reads it."
                ) from error

        precision = self._precision or check_precision(self._study.metadata.meta.get("precision"))
        with search_process(precision, memory=False):
            model, alone = own_model(self.rebuild(trial), load)
        if not alone:
            note(
                f"the model of trial {trial.number} has layers in common with build, and Keras "
                "cannot copy it: those layers hold its weights from now on, until another model "
                "is asked for; what is searched next begins with them"
            )
        return model

    def save(self, note: Callable[[str], None]) -> str | None:
        """Writes best models that are not on disk yet; returns why they stay in memory, or None.

        ``note`` is told of models that cannot be saved whole, and once that the disk has no room.
        """
        self._last_save = time.perf_counter()
        from paceline.program.initial_weights import changes_kept, values_kept

        def rebuild(number: int, weights: Weights) -> Any:
            model = self.rebuild(self._study.trials.by_number(number))
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
                note(f"{why}; the search goes on, and tries again")
            return why
        return None

    def save_if_due(self, note: Callable[[str], None]) -> None:
        """Calls ``save`` every ``EVERY`` seconds, so that a process that dies loses little.

        A search that shares its study saves each model at once: it has no checkpoint of its own
        to go back to, which would hold the models that are not saved.
        """
        waited = time.perf_counter() - self._last_save
        if self._study.writer.unnumbered:
            return  # a file would have the number of another program's trial
        if waited > self.EVERY or (self._study.peers.shared and self.best.unsaved):
            self.save(note)

    def rebuild(self, trial: Trial) -> Any:
        """Builds a trial's model, with all its variables."""
        from paceline.data.arrays import shapes_from_json
        from paceline.program import keras_private

        model = self._builder(HyperParameters(values=trial.hparams), trial.seed)
        batch = trial.batch or self._study.metadata.meta.get("batch")
        if model.built:
            model.optimizer.build(model.trainable_variables)  # its state is saved with the model
        elif batch is not None:
            keras_private.symbolic_build(model, shapes_from_json(batch))
        return model
