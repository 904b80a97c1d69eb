"""The figures of a report, thinned and rounded so that a page of thousands of trials is quick."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.report import formats
from paceline.report.hparam_figures import axis_of, parallel_figure, slice_figure
from paceline.report.html.importance import Importances
from paceline.report.html.markup import dim
from paceline.report.html.subject import ReportSubject
from paceline.report.lineage import has_copies, lineage_figure
from paceline.report.plots import (
    EACH,
    MOST_BARS,
    curves_figure,
    cut_of,
    front_figure,
    history_figure,
    importances_figure,
    values_of,
)
from paceline.report.slots import slots_figure, slots_note
from paceline.report.static import as_dict
from paceline.search_space.html import thin
from paceline.study.trials.trial import Trial

#: Points of a figure at most; beyond, the best trials and an even choice of the others.
MOST_POINTS = 300
#: Of these, the best.
_BEST = 100
#: Hyperparameters that have a slice each, the most important first.
MOST_SLICES = 12
#: Points of a learning curve at most.
_CURVE_POINTS = 200


@dataclass(frozen=True)
class ReportFigure:
    """A figure with what is said of it."""

    name: str  # tells it from the page's other figures: letters and digits
    title: str
    json: str  # Plotly's ``data`` and ``layout``, safe inside a ``script`` element
    note: str = ""  # a sentence below it
    height: int = 360  # pixels
    wide: bool = True  # whether it takes the whole width of the page
    now: bool = False  # whether it is drawn as soon as the page opens


def drawn(name: str, title: str, figure: Any, *notes: str, **how: Any) -> ReportFigure:
    """Return a figure of Plotly's without a title of its own; empty notes are left out."""
    found = figure if isinstance(figure, dict) else as_dict(figure)
    found["layout"].pop("title", None)
    return ReportFigure(name, title, to_json(found), " ".join(filter(None, notes)), **how)


def figures_of(subject: ReportSubject, importances: Importances) -> Iterator[ReportFigure]:
    """Draw what there is to draw of a study."""
    if subject.front:
        yield _front(subject)
    if subject.reached:
        yield _history(subject)
    if importances.shares:
        yield _importances(subject, importances)
    if subject.reached and subject.distributions:
        yield from _of_hparams(subject, importances)
    trained = [trial for trial in subject.trials if trial.epochs]
    if any(subject.objective in trial.history for trial in trained):
        yield _curves(subject, trained)
    if subject.reached and has_copies(subject.trials):
        yield _lineage(subject)
    if any(search.stays or search.compiled for search in subject.timelines):
        yield _slots(subject)


def shown_trials(subject: ReportSubject) -> set[int]:
    """Return the numbers of the trials that figures of single trials show."""
    ranked = subject.reached
    if len(ranked) <= MOST_POINTS:
        return {trial.number for trial in ranked}
    shown = {trial.number for trial in ranked[:_BEST]}
    rest = ranked[_BEST:]
    step = len(rest) / (MOST_POINTS - _BEST)
    return shown | {rest[int(i * step)].number for i in range(MOST_POINTS - _BEST)}


def thin_note(subject: ReportSubject) -> str:
    """Return what is said below figures that do not show all trials."""
    n = len(subject.reached)
    if n <= MOST_POINTS:
        return ""
    return (
        f"{MOST_POINTS} of the {n:,} trials are shown: the best {_BEST} and an even selection of "
        "the others."
    )


def cut_note(subject: ReportSubject, drawn: str) -> str:
    """Return how trials that did not train to their end are ``drawn``; nothing without any."""
    if not subject.n_cut:
        return ""
    return f"{drawn} are trials that were stopped early or are unfinished, with their best epochs."


def _front(subject: ReportSubject) -> ReportFigure:
    shown, names = shown_trials(subject), len(subject.objectives)
    figure = front_figure(subject.trials, subject.objectives, shown, stacked=True)
    pairs = f"Pairs of the {names} objectives; the Pareto front is that of all."
    notes = ("" if names == 2 else pairs, thin_note(subject))
    height = 100 + 320 * (names * (names - 1) // 2)
    return drawn("front", "Pareto front", figure, *notes, height=height, now=True)


def _history(subject: ReportSubject) -> ReportFigure:
    figure = history_figure([subject], [shown_trials(subject)])
    return drawn("history", "History", figure, thin_note(subject), height=340)


def _importances(subject: ReportSubject, importances: Importances) -> ReportFigure:
    figure = importances_figure(importances.shares, subject.objective)
    height = 120 + 26 * min(MOST_BARS, len(importances.shares))
    told = (
        "Trials that were stopped early or are unfinished are compared with what others reached "
        "after the same number of epochs."
    )
    notes = (told if subject.n_cut else "", importances.caution or "")
    return drawn("importances", "Importances", figure, *notes, height=height)


def _of_hparams(subject: ReportSubject, importances: Importances) -> Iterator[ReportFigure]:
    """Parallel coordinates, and a slice for each hyperparameter."""
    numbers = sorted(number for number in shown_trials(subject) if number in subject.stored)
    frozen = [subject.stored[number] for number in numbers]
    shown = [subject.trials.by_number(number) for number in numbers]
    values, cut = values_of(shown), cut_of(shown)
    names = list(dict.fromkeys([*importances.shares, *subject.distributions]))
    there = [name for name in names if any(name in trial.params for trial in frozen)]
    axes = [axis_of(name, frozen) for name in there[:MOST_SLICES]]
    if not axes:
        return
    copies = ""
    if has_copies(subject.trials):
        copies = "A copy is drawn with its last hyperparameters."
    yield drawn(
        "parallel",
        "Parallel coordinates",
        parallel_figure(axes, values, subject.objective, cut, maximize=subject.maximize),
        thin_note(subject),
        cut_note(subject, "Grey lines"),
        "Drag along an axis to choose trials.",
        copies,
        height=420,
        now=True,
    )
    for i, axis in enumerate(axes):
        figure = as_dict(slice_figure([axis], values, subject.objective, cut))
        for trace in figure["data"]:
            trace["marker"]["showscale"] = False
        told = _slice_note(len(axes), len(there), best=importances.of_all)
        notes = () if i else (told, cut_note(subject, "Rings"), copies)
        yield drawn(f"slice{i}", "", figure, *notes, height=300, wide=False)


def _slice_note(n: int, of: int, *, best: bool) -> str:
    which = f"the {n} hyperparameters that matter most" if best else f"{n} of {of} hyperparameters"
    shown = f"Only {which} are shown. " if n < of else ""
    return f"{shown}Orange points are the first trials, blue ones the last."


def _curves(subject: ReportSubject, trained: list[Trial]) -> ReportFigure:
    with_objective = [trial for trial in trained if subject.objective in trial.history]
    figure = as_dict(curves_figure(subject.trials, subject.objective, with_objective))
    for trace in figure["data"]:
        trace |= {letter: list(thin(trace[letter], _CURVE_POINTS)) for letter in ("x", "y")}
    figure["layout"]["showlegend"] = False
    told = "" if len(with_objective) <= EACH else _title_of(figure)
    notes = (told, cut_note(subject, "Paler lines"))
    return drawn("curves", "Learning curves", figure, *notes, height=400)


def _title_of(figure: dict[str, Any]) -> str:
    """The title of a figure as a sentence; not as HTML, because the page escapes it once more."""
    text = html.unescape(figure["layout"]["title"]["text"])
    return f"{text[0].upper()}{text[1:]}."


def _lineage(subject: ReportSubject) -> ReportFigure:
    best = subject.reached[0].number
    figure = lineage_figure(subject.trials, subject.objective, best)
    note = f"The line is the ancestry of trial {best}. A circle marks the beginning of a copy."
    return drawn("lineage", "Lineage", figure, note, height=400)


def _slots(subject: ReportSubject) -> ReportFigure:
    best = subject.reached[0].number if subject.reached else None
    figure = as_dict(slots_figure(subject.timelines, best))
    told = _title_of(figure)
    notes = (told if ":" in told else "", slots_note(subject.timelines))
    return drawn("slots", "Slot timeline", figure, *notes, height=440)


def figure_html(figure: ReportFigure) -> Iterator[str]:
    """Return the place of a figure in the page."""
    now = " data-now" if figure.now else ""
    yield (
        f'<div class="figure" data-figure="json-{figure.name}" data-height="{figure.height}"{now} '
        f'style="height:{figure.height}px"></div>'
    )
    if figure.note:
        yield dim(figure.note)


# -- JSON for the page -----------------------------------------------------------------------------


#: What would end a ``script`` element, or a line of JavaScript, within JSON.
_UNSAFE = re.compile("[<>&\u2028\u2029]")


def to_json(value: Any) -> str:
    """Return JSON that may stand inside a ``script`` element, numbers in six digits."""
    strict = formats.strict(value, digits=6)
    text = json.dumps(strict, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
