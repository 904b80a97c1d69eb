"""How many trials of how many epochs fit into a budget of time, by a measured beginning."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.benchmark.api import read_data
from paceline.benchmark.measure.pilot_search import run_pilot
from paceline.benchmark.measure.subject import BenchModel
from paceline.benchmark.presentation.quota import most_trials
from paceline.benchmark.records import PlannedSearch
from paceline.errors import UsageError
from paceline.executor.process import search_process
from paceline.report import formats
from paceline.report.forecast import Costs
from paceline.study.pruners.pbt import read_pbt

#: Epochs of a trial where the user did not say: those of ``Tuner.search``, fewer where not even
#: FEW trials would fit, more where more than MANY would.
EPOCHS, LEAST_EPOCHS, MOST_EPOCHS = 10, 3, 100
FEW, MANY = 16, 256
#: Trials at most, and trials of the search whose beginning is measured.
MOST_TRIALS, MEASURED = 100_000, 64
#: Part of the budget that the measurement may take, and that stays free in case the prediction is
#: too low.
MEASURING, MARGIN = 0.2, 0.1


@dataclass(frozen=True)
class BudgetPlan:
    """A search for a budget, which is its timeout, too; ``text`` is a sentence for the user."""

    n_trials: int  # those that end in time, or some that are begun
    epochs: int
    text: str


def plan_for_budget(
    build: Any,
    x: Any,
    y: Any,
    *,
    validation_data: Any,
    batch_size: int,
    epochs: int | None,
    objective: Any = None,
    constraints: Any = None,
    pruner: str | None,
    precision: str | None,
    seconds: float,
    seed: int,
    sample_weight: Any = None,
    max_total_epochs: int | None = None,
    executor: str = "auto",
    parallel_trials: int | str = "auto",
    **training: Any,
) -> BudgetPlan:
    """Measures the beginning of a search for a part of ``seconds``, and chooses trials and epochs.

    The arguments are those of ``Tuner`` and ``Tuner.search``. The data must be arrays, ``epochs``
    of None are chosen, and the trials of the pruner "pbt" are its population. ``objective`` and
    ``constraints`` matter because latency and other costs of models take time too, and models
    that violate a constraint are not measured. ``training`` has what else the pace depends on:
    plan, widths and mesh.

    Raises:
        UsageError: The data are no arrays, not one trial fits into the total, or measuring has
            taken all of the budget.
        BuildError, DataError: The model or the data cannot be trained.
    """
    began = time.perf_counter()

    def left() -> float:
        return MEASURING * seconds - (time.perf_counter() - began)

    least, fewest = LEAST_EPOCHS, 1
    if pruner is not None and pruner.partition(":")[0] == "pbt":
        # A population of one, or one that is never perturbed, would be refused afterwards.
        settings, fewest = read_pbt(pruner), 2
        least = next(n for n in itertools.count(least) if settings.perturbations(n))
        settings.check(epochs or max(EPOCHS, least), MEASURED, 1)
    if max_total_epochs is not None and (epochs or least) * fewest > max_total_epochs:
        raise UsageError(
            f"max_total_epochs: it is {max_total_epochs:,}, and {_what(fewest)} of "
            f"{epochs or least:,} epochs trains more; raise it, or give fewer epochs."
        )
    tried = epochs or max(EPOCHS, least)
    # As many at least as train at once: the pace of fewer would be another.
    n_measured = MEASURED if isinstance(parallel_trials, str) else max(MEASURED, parallel_trials)
    data, validation = read_data(x, y, validation_data, 0.0, sample_weight)
    with search_process(precision):
        subject = BenchModel(build, {}, data, validation, seed)
        size = min(batch_size, data.n)
        costs = run_pilot(
            *(subject, size, n_measured, tried, left, executor, pruner, objective),
            constraints=constraints,
            timeout=seconds,
            parallel_trials=parallel_trials,
            **training,
        )
    remains = seconds - (time.perf_counter() - began)
    if remains <= 0:
        raise UsageError(
            f"budget: measuring has taken all of its {formats.seconds(seconds)}; give more time, "
            "or --trials instead."
        )

    def share(n: int) -> float:
        return PlannedSearch(MEASURED, n, pruner).share

    return choose(
        *(costs, remains, epochs, share),
        least=least,
        fewest=fewest,
        max_total_epochs=max_total_epochs,
    )


def choose(
    costs: Costs | None,
    seconds: float,
    epochs: int | None,
    share: Callable[[int], float],
    *,
    least: int = LEAST_EPOCHS,
    fewest: int = 1,
    max_total_epochs: int | None = None,
) -> BudgetPlan:
    """Chooses trials and epochs.

    Where less than ``fewest`` trials are predicted to end in time, or too little was measured for
    a prediction, a few are begun all the same: an epoch of one of them is a result, too.

    Args:
        costs: What the search costs, as measured; None if no epoch ended in the measured time.
        seconds: What is left of the budget.
        epochs: Epochs of each trial; None: to be chosen.
        share: Returns the share of a trial's epochs that the pruner lets trials train.
        least: Epochs of a trial at least, where they are chosen.
        fewest: Trials at least; more than one: those of a population, which all train to the end.
        max_total_epochs: Epochs of all trials at most, enough for ``least`` of ``fewest``; None
            without.
    """
    usable = seconds * (1.0 - MARGIN)
    most = MOST_EPOCHS
    if max_total_epochs is not None:
        most = min(most, max_total_epochs // fewest)

    def trials(each: int) -> int:
        limit = MOST_TRIALS
        # Other searches begin no trial beyond the total, and count what pruning leaves of it.
        if max_total_epochs is not None and fewest > 1:
            limit = max_total_epochs // each
        return most_trials(costs, limit, each, share(each), usable) if costs else 0

    chosen = epochs or min(max(EPOCHS, least), most)
    if epochs is None:
        while chosen > least and trials(chosen) < FEW:
            chosen -= 1
        while chosen < most and trials(chosen + 1) > MANY:
            chosen += 1
    n, of_epochs = trials(chosen), formats.count(chosen, "epoch")
    measured = 0 if costs is None else costs.trial_epochs
    # While programs are compiled, a few epochs say little of how long the next ones take.
    meagre = costs is None or (costs.programs > 1 and measured < chosen)
    if costs is not None and not meagre and n >= fewest:
        text = (
            f"the budget holds {formats.count(n, 'trial')} of {of_epochs}, by "
            f"{formats.count(measured, 'epoch')} that were measured "
            f"({formats.seconds(costs.pace.round)} for an epoch of "
            f"{formats.count(round(costs.pace.at_once), 'trial')} at once)"
        )
        return BudgetPlan(n, chosen, text)
    some = max(FEW, fewest, n)
    if max_total_epochs is not None and fewest > 1:
        some = min(some, max_total_epochs // chosen)
    why = f"{_what(fewest)} of {of_epochs} may take longer than the {formats.seconds(usable)} left"
    if meagre:
        why = f"{formats.count(measured, 'epoch')} ended while the beginning of the search was "
        why += "measured, too few to plan it"
    text = (
        f"budget: {why}. So the search begins {formats.count(some, 'trial')} of {of_epochs}, stops "
        "when the time is over, and keeps the best model by then, even of an unfinished trial"
    )
    return BudgetPlan(some, chosen, text)


def _what(fewest: int) -> str:
    return "one trial" if fewest == 1 else f"a population of {fewest}"
