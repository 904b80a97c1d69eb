"""What a study has shown, in sentences: the best, how sure, what mattered, what to try next.

Each rule says what it rests on, and keeps silent where it rests on too little.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from paceline.report import formats
from paceline.report.html.importance import Importances
from paceline.report.html.subject import ReportSubject
from paceline.report.lineage import has_copies
from paceline.study.trials.trial import UNDER_WAY

#: Trials below which nothing is said of edges of ranges, and of choosing among many.
_ENOUGH = 10
#: The outer parts of a range, as shares of it, in which a trial lies at the edge.
_EDGE = 0.1
#: What rounding may add to a place in a range.
_ROUNDED = 1e-9
#: How improbable it must be that this many of the best trials are at an edge by chance. Of ten
#: hyperparameters with two edges each, one in five reports would show an edge that is none.
_ODDS = 0.01
#: A difference between values that is this share of that between the best and the median is small.
_SMALL = 0.05
#: Epochs of the best trials by those of the others from which on their lead may come from them.
_LONGER = 1.5


@dataclass(frozen=True)
class Verdict:
    """Sentences about a study; each list may be empty."""

    best: list[str]  # what the best trial is
    sure: list[str]  # how far its lead goes
    mattered: list[str]  # which hyperparameters made the difference
    following: list[str]  # what to try next


def verdict_of(subject: ReportSubject, importances: Importances) -> Verdict:
    """Judge a study."""
    if not subject.reached:
        n = len(subject.trials)
        said = "no trials yet" if not n else f"{n:,} trials, none of them validated for an epoch"
        return Verdict([f"The study has {said}."], [], [], list(_unfinished(subject)))
    return Verdict(
        list(_best(subject)),
        [*_sure(subject), *_unequal_epochs(subject), *_chosen(subject)],
        list(_mattered(importances)),
        [*_edges(subject), *_still_improving(subject), *_repeats(subject), *_unfinished(subject)],
    )


def _best(subject: ReportSubject) -> Iterator[str]:
    best, name = subject.reached[0], subject.objective
    value = formats.metric(best.value)
    if best.value_std is not None:
        value = f"a mean of {value} over {len(best.runs[-1])} runs"
    where = f", in epoch {best.best_epoch} of {best.epochs}" if best.best_epoch else ""
    where += {"pruned": "; it was stopped early", "complete": ""}.get(
        best.state, "; it is unfinished"
    )
    high = "highest" if subject.maximize else "lowest"
    yield f"Trial {best.number} has the {high} {name}: {value}{where}."
    if front := subject.front:
        n = len(front)
        yield (
            f"By all of {', '.join(subject.objectives)}, {formats.count(n, 'trial')} of "
            f"{len(subject.ranked):,} {'is' if n == 1 else 'are'} on the Pareto front: no other "
            f"trial is as good in each and better in one. The points below are about {name} only."
        )


def _sure(subject: ReportSubject) -> Iterator[str]:
    lines, name = subject.lines, subject.objective
    first = subject.reached[0]
    if first.state != "complete" and subject.ranked:
        complete = subject.ranked[0]
        better, than = formats.apart(first.value or 0.0, complete.value or 0.0)
        yield (
            f"It trained for {formats.count(first.epochs, 'epoch')} and reached {better}. The "
            f"best complete trial, {complete.number}, reached {than} after {complete.epochs:,}."
        )
    n_trials = len(subject.reached)
    values = [trial.value for trial in lines if trial.value is not None]
    of_lines = len(lines) < n_trials
    if of_lines:
        yield (
            f"The {n_trials:,} trials form {formats.count(len(lines), 'line')} of descent. Of "
            "trials that continue or copy one another, only the best one counts below."
        )
    if len(values) < 5:
        n = formats.count(len(values), "line" if of_lines else "trial")
        yield f"With only {n} we can't tell how certain that is."
        return
    n = min(max(5, len(values) // 10), 20)
    gap, lead = abs(values[n - 1] - values[0]), abs(values[1] - values[0])
    # A stopped trial is compared with the best one at the same epoch. For a median trial with one
    # epoch, the whole distance would only show how long the best one trained.
    behind = subject.behind or [0.0]  # other programs may have stored no epochs
    median, least = max(0.0, statistics.median(behind)), min(behind[1:], default=0.0)
    then = " after the same number of epochs" if subject.n_cut else ""
    if subject.n_cut:
        yield (
            f"{subject.n_cut:,} of the {n_trials:,} trials were stopped early or are unfinished. "
            "They count with their best epochs."
        )
    alone = lines[0].value_std is None and least > 0.5 * median > 0
    if alone:
        yield (
            f"No other trial is close: the second trial is {formats.difference(lead)} of {name} "
            f"behind, the median trial {formats.difference(median)}{then}. {_again(subject)} "
            "before you trust it."
        )
        return
    tied = sum(value == values[0] for value in values[1:])
    said = []
    if tied:
        more = formats.count(tied, "more trial")
        said.append(f"{more} reached the same value")
    if gap:
        second = "" if tied else f", the second by {formats.difference(lead)}"
        said.append(
            f"the next {n - 1} trials follow within {formats.difference(gap)} of {name}{second}"
        )
    was = "was" if then else "is"
    far = f"{was} {formats.difference(median)} behind{then}" if median else "reached the same value"
    text = "; ".join([*said, f"the median trial {far}"])
    yield f"{text[0].upper()}{text[1:]}."
    best = lines[0]
    if best.value_std is not None:
        near = sum(abs(value - values[0]) <= best.value_std for value in values[1:])
        yield (
            "The runs of the best trial have a standard deviation of "
            f"{formats.difference(best.value_std)}, and {near:,} other trials lie within it: "
            + ("the best of them may be luck." if near else "its lead is larger than luck.")
        )
    elif median and gap <= _SMALL * median:
        yield "These trials are practically equal, so the first place may be luck."


def _again(subject: ReportSubject) -> str:
    """How a trial is trained from other seeds."""
    if subject.reached[0].continued_at is None:
        return "Train it again with other seeds"
    return "Train by its schedule with other seeds (tuner.schedule(), paceline.ReplaySchedule)"


def _unequal_epochs(subject: ReportSubject) -> Iterator[str]:
    """Epochs as a function of hp, trials that were continued: who trains longer is often better."""
    epochs = [trial.epochs for trial in subject.ranked]
    top = epochs[: max(5, len(epochs) // 10)]
    if (
        not top
        or len(epochs) < 2 * len(top)
        or any(t.continued_at is not None for t in subject.trials)
    ):
        return  # a copy in a population begins with the epochs of the trial that it continues
    of_top, of_all = statistics.median(top), statistics.median(epochs[len(top) :])
    if 0 < _LONGER * of_all <= of_top:  # trials of another program have no epochs
        which = "complete trials" if subject.n_cut else "trials"
        yield (
            f"The best {len(top)} {which} trained {of_top:g} epochs, the others {of_all:g} "
            "(medians), so part of their lead may be that they trained longer."
        )


def _chosen(subject: ReportSubject) -> Iterator[str]:
    """The best of many values on the same validation data flatters its model."""
    n, best = len(subject.reached), subject.reached[0]
    if n < _ENOUGH or not best.best_epoch:
        return
    # How much better it is than its neighbours is luck: of that epoch, or of the choice among all
    # epochs of all trials. A trend cancels out between the epochs before and after. Luck of the
    # seed and of these examples lasts for all epochs, so it does not show here.
    curve, at = best.by_epoch(subject.objective), best.best_epoch
    beside = statistics.mean(curve.get(epoch, math.nan) for epoch in (at - 1, at + 1))
    luck = abs(beside - curve.get(at, math.nan))
    yield (
        f"The value of trial {best.number} is the best of all epochs of {n:,} trials on the same "
        "validation data. Expect a worse value on new data."
    )
    if math.isfinite(luck) and luck:
        worse = formats.difference(luck)
        yield f"One epoch earlier and one epoch later it was {worse} worse on average."


def _mattered(importances: Importances) -> Iterator[str]:
    shares = list(importances.shares.items())
    if shares and importances.of_all:
        most = [pair for pair in shares[:3] if pair[1] >= 0.1] or shares[:1]
        said = ", ".join(f"{name} ({share:.0%})" for name, share in most)
        yield f"The hyperparameters that mattered most: {said}."
    if importances.caution:
        yield importances.caution


def _edges(subject: ReportSubject) -> Iterator[str]:
    # Of lines, since the odds below are those of configurations that were drawn apart.
    lines = {trial.number for trial in subject.lines}
    ranked = [number for number in subject.standings if number in lines]
    if len(ranked) < _ENOUGH:
        return
    top = [
        subject.stored[number]
        for number in ranked[: max(5, len(ranked) // 10)]
        if number in subject.stored
    ]
    for name, distribution in subject.distributions.items():
        values = [trial.params[name] for trial in top if name in trial.params]
        places = [place for value in values if (place := _place(distribution, value)) is not None]
        if not places or len(places) < 5:
            continue
        for low in (True, False):
            n = sum(_at_edge(place, low) for place in places)
            share = _share_of_edge(distribution, low)
            if share < 1 and _by_chance(n, len(places), share) < _ODDS:
                yield _edge_text(name, distribution, low, n, len(places))


def _place(distribution: BaseDistribution, value: Any) -> float | None:
    """Where a value is in its range, from 0 to 1; None for choices and single values."""
    if not isinstance(distribution, (FloatDistribution, IntDistribution)):
        return None
    low, high = float(distribution.low), float(distribution.high)
    if high <= low or not math.isfinite(value):
        return None
    if distribution.log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


def _at_edge(place: float, low: bool) -> bool:
    """Whether a place in a range lies at its lower or upper edge."""
    return (place if low else 1 - place) <= _EDGE + _ROUNDED


def _share_of_edge(distribution: BaseDistribution, low: bool) -> float:
    """The share of what is drawn from a range that lies at one edge of it.

    Of few values the outermost is more than the edge's share of the range.
    """
    if not isinstance(distribution, (FloatDistribution, IntDistribution)) or not distribution.step:
        return _EDGE
    first, last = distribution.low, distribution.high
    if not distribution.log:
        steps = round((last - first) / distribution.step)
        return (math.floor(steps * (_EDGE + _ROUNDED)) + 1) / (steps + 1)
    # Optuna draws the logarithm of an integer between those of its neighbours' midpoints.
    width = math.log((last + 0.5) / (first - 0.5))
    if low:
        end = math.floor(first * (last / first) ** (_EDGE + _ROUNDED))
        return math.log((end + 0.5) / (first - 0.5)) / width
    end = math.ceil(last * (first / last) ** (_EDGE + _ROUNDED))
    return math.log((last + 0.5) / (end - 0.5)) / width


def _by_chance(n: int, of: int, share: float) -> float:
    """The probability that at least ``n`` of ``of`` are in a share of the range by chance."""
    return sum(math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(n, of + 1))


def _edge_text(name: str, distribution: BaseDistribution, low: bool, n: int, of: int) -> str:
    assert isinstance(distribution, (FloatDistribution, IntDistribution))
    first, last = distribution.low, distribution.high
    if distribution.log:
        # Half a decade: the next whole one of a learning rate is seldom worth a trial.
        wider = float(f"{first / 3 if low else last * 3:.1g}")
    else:
        wider = first - (last - first) / 2 if low else last + (last - first) / 2
    if isinstance(distribution, IntDistribution):
        # Most integers count something: layers, units.
        wider = max(1, round(wider)) if low and first >= 1 else round(wider)
    elif low and first >= 0:
        wider = max(0.0, wider)
    side, end = ("lower", first) if low else ("upper", last)
    text = (
        f"{name}: {n} of the best {of} trials lie at the {side} end of its range "
        f"({formats.hparam(first)} to {formats.hparam(last)})"
    )
    if wider == end:
        return f"{text}, which cannot be extended."
    bound = "min_value" if low else "max_value"
    return f"{text}: try a wider one, such as {bound}={formats.hparam(wider)}."


def _still_improving(subject: ReportSubject) -> Iterator[str]:
    if has_copies(subject.trials):
        return  # the epochs of a population are set before its first perturbation
    top = [trial for trial in subject.ranked[:5] if trial.epochs >= 2]
    late = [trial for trial in top if trial.best_epoch == trial.epochs]
    if len(top) >= 3 and len(late) > len(top) / 2 and not subject.objectives:
        epochs = max(trial.epochs for trial in late)
        yield (
            f"{len(late)} of the best {len(top)} trials were best in their last epoch, so more "
            f"epochs may improve them: tuner.search(..., continue_best={len(top)}, "
            f"epochs={2 * epochs})."
        )
    early = [t for t in top if t.best_epoch and t.epochs >= 8 and t.best_epoch <= t.epochs / 2]
    if len(top) >= 3 and len(early) == len(top):
        yield (
            "The best trials reached their best value before half of their epochs. Use fewer "
            "epochs, or a pruner, to train more trials in the same time."
        )


def _repeats(subject: ReportSubject) -> Iterator[str]:
    if has_copies(subject.trials):
        yield (
            "A population is one random sample, so we can't tell how much of a value is luck. "
            "Search again with another seed to find out."
        )
    elif len(subject.reached) >= 5 and not subject.reached[0].runs:
        yield (
            "Each configuration was trained with one seed only, so we can't tell how much is "
            "luck. Use repeats=3 to find out, or folds=5 to validate on every example."
        )
    if any(_chosen(subject)) and not subject.objectives:
        yield (
            "Evaluate tuner.best_model() on test data that the search has not seen, to learn how "
            "good the model is. tuner.ensemble(), with keep_best=10, depends less on a single "
            "lucky trial."
        )


def _unfinished(subject: ReportSubject) -> Iterator[str]:
    open_trials = [t for t in subject.trials if t.state in UNDER_WAY]
    if open_trials:
        yield (
            f"{len(open_trials):,} trials are unfinished or waiting. The next search on the study "
            "continues them."
        )
    rejected = sum(trial.state == "rejected" for trial in subject.trials)
    if rejected > 0.5 * len(subject.trials):
        yield (
            f"{rejected:,} of {len(subject.trials):,} configurations were rejected before "
            "training. Smaller ranges avoid these builds; see the reasons below."
        )
    failed = [trial for trial in subject.trials if trial.state == "failed"]
    if len(failed) > 0.1 * len(subject.trials):
        yield f"{len(failed):,} of {len(subject.trials):,} trials failed: see the causes below."


def shape_of(distribution: BaseDistribution) -> str:
    """Return a range or choices in words."""
    if isinstance(distribution, CategoricalDistribution):
        return ", ".join(formats.hparam(choice) for choice in distribution.choices)
    if isinstance(distribution, (FloatDistribution, IntDistribution)):
        text = f"{formats.hparam(distribution.low)} to {formats.hparam(distribution.high)}"
        if distribution.log:
            return f"{text}, log"
        if distribution.step and not (
            isinstance(distribution, IntDistribution) and distribution.step == 1
        ):
            return f"{text}, step {formats.hparam(distribution.step)}"
        return text
    return str(distribution)
