"""Pruners: which trials are worth training further.

Optuna's pruners look at a study in memory. It holds the objective's values unchanged, since a
threshold compares them with a number. ASHA is ours (``asha.py``).
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from paceline.errors import UsageError
from paceline.study.objectives import Direction
from paceline.study.pruners.asha import ASHA, AshaPruner
from paceline.study.pruners.base import EndedTrial, Pruner, Verdict
from paceline.study.pruners.pbt import PBT, PopulationPruner, read_pbt
from paceline.study.pruners.wilcoxon import PairedWilcoxon
from paceline.study.storage.storage import quiet_optuna
from paceline.study.trials.trial import Trial

FORMS = (
    "auto, none, median, percentile[:P], hyperband, threshold:VALUE, patience[:EPOCHS], "
    "asha[:MIN_EPOCHS[:REDUCTION_FACTOR]], wilcoxon[:P], pbt[:EPOCHS[:FRACTION]]"
)
_NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
#: Name -> what may follow a colon.
_NAMED = {
    "median": "",
    "percentile": rf"({_NUMBER})?",
    "hyperband": "",
    "threshold": _NUMBER,
    "patience": r"\d*",
    "asha": r"(\d+(:\d+)?)?",
    "wilcoxon": rf"({_NUMBER})?",
}


def check_pruner(given: Any) -> str | ASHA | PBT | BasePruner | None:
    """Return the pruner that ``pruner=`` means; None: none, or "auto", chosen later."""
    if given is None:
        return None
    if isinstance(given, str):
        if given in ("none", "auto"):
            return None
        name, _, rest = given.partition(":")
        if name == "pbt":
            return read_pbt(given)
        if name in _NAMED and re.fullmatch(_NAMED[name], rest):
            if name == "asha":
                return ASHA(*(int(part) for part in rest.split(":") if part))
            return given
        if name in _NAMED:
            raise UsageError(f"pruner: {given!r} is not understood. Use one of {FORMS}.")
    elif isinstance(given, ASHA | PBT):
        return given
    elif isinstance(given, optuna.pruners.NopPruner):
        return None
    elif isinstance(given, BasePruner):
        return given
    raise UsageError(
        f"pruner: {given!r} is unknown. Use one of {FORMS}, or pass a paceline.ASHA, a "
        "paceline.PBT or an object of optuna.pruners."
    )


def pruner_text(checked: str | ASHA | PBT | BasePruner | None) -> str | None:
    """Return a pruner as text that ``check_pruner`` reads; for an Optuna object, its class."""
    if isinstance(checked, ASHA):
        return f"asha:{checked.min_epochs}:{checked.reduction_factor}"
    if isinstance(checked, PBT):
        return checked.text
    return checked if checked is None or isinstance(checked, str) else type(checked).__name__


def make_pruner(
    checked: str | ASHA | PBT | BasePruner | None,
    *,
    direction: Direction,
    epochs: int | None,
    n_trials: int | None,
    past: Iterable[EndedTrial],
    by_time: bool = False,
    n_members: int = 1,
    freq: int | Collection[int] = 1,
    first: int = 0,
    note: Callable[[str], None] = lambda text: None,
) -> Pruner | None:
    """Return the pruner of one search, from ``check_pruner``; None for none.

    ``epochs`` is None if they depend on hp, ``n_trials`` when only time bounds the study; time may
    end it before, where ``by_time``. ``past`` are trials that have ended, each with epoch -> the
    objective's value. ``freq`` are the epochs that have a value, as ``fit`` takes it, and counts
    the ``first`` ones, which are not trained. Raises UsageError where the pruner cannot work with
    these epochs, or with so few members.
    """
    if checked is None:
        return None
    if isinstance(checked, ASHA):
        if epochs is not None:
            checked.check(epochs)
        checked.check_validated(epochs, freq, first)
        return AshaPruner(checked, direction, n_trials, past, by_time=by_time)
    if isinstance(checked, PBT):
        checked.check(epochs, n_trials, n_members)
        return PopulationPruner(checked, direction)
    pruner = checked
    if isinstance(pruner, str):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            pruner = _named(pruner, direction, epochs)
    if isinstance(pruner, optuna.pruners.WilcoxonPruner):
        return PairedWilcoxon(pruner, direction, past, n_members, note)
    return OptunaPruner(pruner, direction, past)


#: Pruners that write down, when they are asked, how far a trial has come; those that wrap others.
_COUNTING = (
    optuna.pruners.SuccessiveHalvingPruner,
    optuna.pruners.HyperbandPruner,
    optuna.pruners.PatientPruner,
)


class OptunaPruner(Pruner):
    """One of Optuna's pruners, asked over a study in memory of the objective's own values."""

    def __init__(
        self, pruner: BasePruner, direction: Direction, past: Iterable[EndedTrial]
    ) -> None:
        self._pruner = pruner
        self._direction: Direction = direction
        self._make()
        for trial, values in past:
            self.learn_trial(trial, values)

    def learn_trial(self, trial: Trial, values: Mapping[int, float]) -> None:
        """Add a trial that has ended to the study in memory; see ``Pruner``."""
        self._begin(trial)
        for epoch, value in sorted(values.items()):
            self._note(trial.number, epoch, value)
            if isinstance(self._pruner, _COUNTING):
                self._ask(trial.number)
        self.end_trial(trial)

    def _make(self) -> None:
        """Make an empty study."""
        self._storage = optuna.storages.InMemoryStorage()
        with quiet_optuna():
            self._study = optuna.create_study(
                storage=self._storage, study_name="pruning", direction=self._direction
            )
        self._id = self._storage.get_study_id_from_name("pruning")
        self._ids: dict[int, int] = {}  # trial number -> that of the storage

    def judge(
        self, trial: Trial, epoch: int, epochs: int, value: float, can_pause: bool = True
    ) -> Verdict:
        """Return "prune" where Optuna's pruner says so, and "go" otherwise."""
        if trial.number not in self._ids:
            self._begin(trial)
        self._note(trial.number, epoch, value)
        return "prune" if self._ask(trial.number) else "go"

    def _ask(self, number: int) -> bool:
        frozen = self._storage.get_trial(self._ids[number])
        with quiet_optuna():
            return self._pruner.prune(self._study, frozen)

    def state(self) -> Any:
        """Return the trials of the study in memory, as JSON values."""
        numbers = {self._storage.get_trial(found).number: n for n, found in self._ids.items()}
        return [
            {
                "number": numbers[trial.number],
                "state": trial.state.name,
                "value": trial.value if trial.values else None,
                "values": list(trial.intermediate_values.items()),
                "attrs": trial.system_attrs,  # Hyperband's brackets and rungs
            }
            for trial in self._storage.get_all_trials(self._id, deepcopy=False)
        ]

    def load_state(self, state: Any) -> None:
        """Replace the trials of the study in memory by those that ``state`` returned."""
        self._make()
        for was in state:
            template = create_trial(
                state=OptunaState[was["state"]],
                value=was["value"],
                intermediate_values={int(epoch): value for epoch, value in was["values"]},
                system_attrs=dict(was["attrs"]),
            )
            self._ids[was["number"]] = self._storage.create_new_trial(self._id, template)

    def end_trial(self, trial: Trial) -> None:
        """End a trial in the study in memory, unless it never ended an epoch."""
        found = self._ids.get(trial.number)
        if found is None:
            return
        states = {"complete": OptunaState.COMPLETE, "pruned": OptunaState.PRUNED}
        state = states.get(trial.state, OptunaState.FAIL)
        value = trial.value if state == OptunaState.COMPLETE else None
        self._storage.set_trial_state_values(found, state, None if value is None else [value])

    def restart(self, numbers: Set[int]) -> None:
        """Empty the trials in the study in memory: a storage takes no epoch and attribute back.

        They keep their places there, by which Hyperband chooses brackets.
        """
        anew = {"state": "RUNNING", "value": None, "values": [], "attrs": {}}
        self.load_state([was | anew if was["number"] in numbers else was for was in self.state()])

    def _begin(self, trial: Trial) -> None:
        begun: FrozenTrial = create_trial(state=OptunaState.RUNNING)
        self._ids[trial.number] = self._storage.create_new_trial(self._id, begun)

    def _note(self, number: int, epoch: int, value: float) -> None:
        if not math.isnan(value):
            self._storage.set_trial_intermediate_value(self._ids[number], epoch, value)


def _named(text: str, direction: Direction, epochs: int | None) -> BasePruner:
    """The pruner of Optuna's that a text of ``check_pruner`` names."""
    name, _, rest = text.partition(":")
    match name:
        case "median":
            return optuna.pruners.MedianPruner()
        case "percentile":
            percentile = float(rest or 25)
            if not 0 < percentile < 100:
                raise UsageError(
                    f"pruner: percentile must be between 0 and 100, got percentile:{rest}."
                )
            return optuna.pruners.PercentilePruner(percentile)
        case "hyperband":
            most: Any = "auto" if epochs is None else epochs
            return optuna.pruners.HyperbandPruner(max_resource=most)
        case "threshold":
            if direction == "maximize":
                return optuna.pruners.ThresholdPruner(lower=float(rest))
            return optuna.pruners.ThresholdPruner(upper=float(rest))
        case "patience":
            return optuna.pruners.PatientPruner(None, patience=int(rest or 5))
    p = float(rest or 0.1)
    if not 0 < p < 1:
        raise UsageError(f"pruner: the p of wilcoxon must be between 0 and 1, got wilcoxon:{rest}.")
    return optuna.pruners.WilcoxonPruner(p_threshold=p)
