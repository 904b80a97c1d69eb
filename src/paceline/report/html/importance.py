"""How much each hyperparameter mattered, as Optuna estimates it, and how much that is worth."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import optuna
from optuna.trial import FrozenTrial, create_trial

from paceline.report.html.subject import ReportSubject
from paceline.report.lineage import has_copies
from paceline.study.storage.storage import quiet_optuna

#: Trials times hyperparameters that the estimate is made of at most, and its trees: half as many as
#: Optuna's default. With 1,000 trials and all the trees it takes longer than the rest of a report.
MOST, TREES = 900, 32
#: Trials for each hyperparameter, below which the estimate is said to be a guess.
ENOUGH = 10
#: Hyperparameters without an estimate that are named at most.
_NAMED = 5
#: Why there is no estimate for a population.
POPULATION = (
    "There is no estimate of what mattered. Trials of this study are copies of others whose "
    "hyperparameters changed, so a value does not come from one configuration."
)


@dataclass(frozen=True)
class Importances:
    """Shares of the hyperparameters in what made values differ."""

    # Hyperparameter, as Optuna stores it -> share, the largest first; they add up to 1. Empty if
    # there is no estimate.
    shares: dict[str, float]
    caution: str | None  # why the estimate is to be taken with care, or why there is none
    # Whether each hyperparameter has a share. One that only some trials have gets none, and may be
    # what mattered most.
    of_all: bool = True


def importances_of(subject: ReportSubject) -> Importances:
    """Estimate the importances of a study's hyperparameters from all trials with a value."""
    if has_copies(subject.trials):
        # fANOVA takes a value for the outcome of one configuration.
        return Importances({}, POPULATION)
    # Not the values themselves: those of trials that were stopped early tell how long they trained.
    # Where trials were stopped by their dropout, dropout had 56 % of the importance by them, and 13
    # % in truth (docs/decisions/0055).
    values = subject.standings
    n_hparams = len(subject.distributions)
    most = max(MOST // max(1, n_hparams), ENOUGH * n_hparams)
    step = -(-len(values) // most) if most else 1  # over all places: good and bad trials alike
    numbers = sorted(list(values)[:: max(1, step)])
    trials = [subject.stored[number] for number in numbers if number in subject.stored]
    if len(trials) < 2 or not n_hparams:
        said = "no trials to compare" if len(trials) < 2 else "no hyperparameters"
        return Importances({}, f"There is no estimate: the study has {said}.")
    common = _in_common(trials)
    if all(trials[0].distributions[name].single() for name in common):
        return Importances(
            {},
            "There is no estimate: no hyperparameter appears in all trials with the same range.",
        )
    study = _in_memory(subject, trials, values)
    try:
        with _quiet():
            # Of one seed, so that the same study makes the same report.
            evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, seed=0)
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    except (ValueError, RuntimeError, ZeroDivisionError):
        shares = {}
    if not shares or not sum(shares.values()) > 0:
        return Importances({}, "There is no estimate: the values of the trials hardly differ.")
    said = list(_without_share(subject, trials, common))
    of_all = not said
    if len(trials) < ENOUGH * n_hparams:
        said.append(
            f"This is a guess: {len(trials)} trials are few for {n_hparams} hyperparameters. "
            f"{ENOUGH * n_hparams} trials would be enough."
        )
    elif len(values) > len(trials):
        said.append(f"Estimated from {len(trials):,} of the {len(values):,} trials.")
    return Importances(dict(shares), " ".join(said) or None, of_all)


def _in_common(trials: list[FrozenTrial]) -> set[str]:
    """The hyperparameters that Optuna compares: those of all trials, with one range in all."""
    return {
        name
        for name, distribution in trials[0].distributions.items()
        if all(trial.distributions.get(name) == distribution for trial in trials)
    }


def _without_share(
    subject: ReportSubject, trials: list[FrozenTrial], common: set[str]
) -> Iterator[str]:
    """Say for which hyperparameters there is no estimate, and why."""
    missing = [name for name in subject.distributions if name not in common]
    everywhere = {name for name in missing if all(name in trial.params for trial in trials)}
    for names, why in (
        ([name for name in missing if name not in everywhere], "which only some trials have"),
        ([name for name in missing if name in everywhere], "whose range differs between trials"),
    ):
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        if names:
            told = ", ".join(names[:_NAMED])
            yield f"There is no estimate for {told}{more}, {why}."


def _in_memory(
    subject: ReportSubject, trials: list[FrozenTrial], values: Mapping[int, float]
) -> optuna.Study:
    """A study of its own with these trials, numbered from 0, and values by their numbers."""
    with _quiet():
        study = optuna.create_study(direction="maximize" if subject.maximize else "minimize")
        study.add_trials([_copy(trial, values[trial.number]) for trial in trials])
    return study


def _copy(trial: FrozenTrial, value: float) -> FrozenTrial:
    params, distributions = dict(trial.params), dict(trial.distributions)
    return create_trial(value=value, params=params, distributions=distributions)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna's log lines and warnings about these studies from the user's screen."""
    with quiet_optuna(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
