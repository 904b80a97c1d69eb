"""Figures of hyperparameters: a slice for each of them, and parallel coordinates.

Optuna draws both, each version in its own way, and takes the scale of an axis from the
distribution. Here it is taken from the values too: choices 1e-7, 1e-6, ... 1 have a log axis.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial

from paceline.report import formats
from paceline.report.static import log_ticks

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: The largest of positive values by the smallest one, from which on they have a log axis.
_WIDE = 1000.0
#: Numbers to choose from that are all labels of an axis, at most.
_MOST_MARKS = 8
#: Characters of a label at most.
_LABEL = 20
#: The colours of the first and the last trial of a slice; seen on white and on black.
_FIRST, _LAST = "#e8a13a", "#3b7dd8"
#: The colours of parallel coordinates, from bad to good. The lower half is for trials that did not
#: train to their end.
_LINES = [[0, "#e3e6ea"], [0.49, "#a0a8b2"], [0.51, "#c6dbef"], [1, "#08306b"]]
#: The names and markers of points: of trials that trained to their end, and of all others.
MARKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("a trial", {"opacity": 0.8}),
    (
        "stopped early or unfinished",
        {"opacity": 0.6, "symbol": "circle-open", "line": {"width": 1.5}},
    ),
)
_NONE = "none"  # what a trial has that lacks a hyperparameter


@dataclass(frozen=True)
class HparamAxis:
    """The axis of a hyperparameter."""

    name: str  # as Optuna stores it
    kind: Literal["linear", "log", "choice"]  # the scale; a choice has values side by side
    values: Mapping[int, Any]  # trial number -> value, of those trials that have one
    choices: tuple[str, ...] = ()  # the texts of a choice's values, in order; empty for numbers
    marks: tuple[float, ...] = ()  # the numbers there are to choose from, where they are few

    @property
    def label(self) -> str:
        """The name as a figure has it."""
        return _label(self.name)

    @property
    def ticks(self) -> list[float]:
        """Where the axis has labels; empty where Plotly chooses them."""
        if self.marks:
            return list(self.marks)
        if self.kind != "log" or not self.values:
            return []
        return log_ticks(min(self.values.values()), max(self.values.values()))


def axis_of(name: str, trials: Iterable[FrozenTrial]) -> HparamAxis:
    """Return the axis of a hyperparameter (as Optuna stores it) over the trials that are drawn."""
    there = [trial for trial in trials if name in trial.params]
    values = {trial.number: trial.params[name] for trial in there}
    known = [trial.distributions[name] for trial in there]
    if not all(_is_number(value) for value in values.values()):
        found = [each.choices for each in known if isinstance(each, CategoricalDistribution)]
        labels = _labels([*(choice for choices in found for choice in choices), *values.values()])
        texts = {number: labels[_key(value)] for number, value in values.items()}
        return HparamAxis(name, "choice", texts, tuple(labels.values()))
    few = [_numbers_of(each) for each in known]
    marks = {number for numbers in few for number in numbers} if all(few) else set()
    kind = "log" if _is_log(list(values.values()), known) else "linear"
    if len(marks) > _MOST_MARKS or (kind == "log" and min(marks, default=1) <= 0):
        marks = set()
    return HparamAxis(name, kind, values, marks=tuple(sorted(marks)))


def _numbers_of(distribution: BaseDistribution) -> Sequence[float]:
    """The numbers that a distribution has, where they are few."""
    match distribution:
        case CategoricalDistribution(choices=choices):
            return [choice for choice in choices if _is_number(choice)]
        case IntDistribution(low=low, high=high, step=step, log=False):
            return range(low, high + 1, step)[: _MOST_MARKS + 1]
    return ()


def _is_log(values: Sequence[float], distributions: Sequence[BaseDistribution]) -> bool:
    if not values or min(values) <= 0:
        return False
    if any(getattr(each, "log", False) for each in distributions):
        return True
    return max(values) >= _WIDE * min(values) or any(map(_is_geometric, distributions))


def _is_geometric(distribution: BaseDistribution) -> bool:
    """Whether choices are in one ratio, as those of a log scale with a step are."""
    if not isinstance(distribution, CategoricalDistribution) or len(distribution.choices) < 3:
        return False
    logs = [math.log(each) for each in _numbers_of(distribution) if each > 0]
    if len(logs) < len(distribution.choices):
        return False
    steps = [after - before for before, after in zip(logs, logs[1:], strict=False)]
    # A thousandth: choices of integers and of decimals are rounded.
    return min(steps) > 0 and max(steps) - min(steps) <= 1e-3 * max(steps)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _label(value: Any) -> str:
    text = _text(value)
    return html.escape(text if len(text) < _LABEL else f"{text[: _LABEL - 3]}...")


def _text(value: Any) -> str:
    return formats.visible(formats.hparam(value))


def _key(value: Any) -> tuple[type, str]:
    """What tells a choice from others: ``True == 1``, and NaN is not itself."""
    return type(value), repr(value)


def hover_text(hparams: Mapping[str, Any], *lines: str) -> str:
    """Return what a figure says of a trial under the pointer: lines, and its hyperparameters."""
    shown = [f"{name} {formats.hparam(value)}" for name, value in list(hparams.items())[:20]]
    return "<br>".join(html.escape(line[:120]) for line in (*lines, *shown))


def _labels(values: Iterable[Any]) -> dict[tuple[type, str], str]:
    """Return the label of each choice by ``_key``; no two are alike.

    Those that would be are quoted, as "None" beside None, or show their ends, or their places.
    """
    choices = {_key(value): value for value in values}
    labels = {key: _label(value) for key, value in choices.items()}
    for form in (_quoted, _ends):
        counts = Counter(labels.values())
        alike = [key for key, label in labels.items() if counts[label] > 1]
        labels |= {key: form(choices[key]) for key in alike}
    if len(set(labels.values())) < len(labels):
        labels = {key: f"{i}: {label}" for i, (key, label) in enumerate(labels.items(), 1)}
    return labels


def _quoted(value: Any) -> str:
    return html.escape(f'"{_text(value)}"') if _is_short_text(value) else _label(value)


def _is_short_text(value: Any) -> bool:
    return isinstance(value, str) and len(_text(value)) < _LABEL


def _ends(value: Any) -> str:
    text = _text(value)
    half = (_LABEL - 3) // 2
    return html.escape(f"{text[:half]}...{text[-half:]}") if len(text) >= _LABEL else _quoted(value)


def slice_figure(
    axes: Sequence[HparamAxis],
    values: Mapping[int, float],
    objective: str,
    cut: Container[int] = (),
) -> Figure:
    """Draw the value (by trial number) by each hyperparameter; later trials have another colour.

    ``cut``: the numbers of trials that did not train to their end.
    """
    from plotly.subplots import make_subplots

    figure = make_subplots(1, max(1, len(axes)), shared_yaxes=True)
    for column, axis in enumerate(axes, 1):
        place: dict[str, Any] = {"row": 1, "col": column}
        there = [number for number in axis.values if number in values]
        whole, partial = ([n for n in there if (n in cut) is each] for each in (False, True))
        for numbers, (_, marker) in zip((whole, partial), MARKS, strict=True):
            if not numbers:
                continue
            figure.add_scatter(
                x=[axis.values[number] for number in numbers],
                y=[values[number] for number in numbers],
                mode="markers",
                marker={
                    "color": numbers,
                    "cmin": min(values, default=0),
                    "cmax": max(values, default=0),
                    "colorscale": [[0, _FIRST], [1, _LAST]],
                    "showscale": column == len(axes),
                    "colorbar": {"title": {"text": "trial"}},
                    "line": {"width": 0.5, "color": "#808080"},
                    **marker,
                },
                hovertext=[f"trial {number}" for number in numbers],
                showlegend=False,
                **place,
            )
        figure.update_xaxes(title_text=axis.label, **place)
        if axis.kind == "choice":
            order = {"categoryorder": "array", "categoryarray": axis.choices}
            figure.update_xaxes(type="category", **order, **place)
            continue
        figure.update_xaxes(type=axis.kind, **place)
        if ticks := axis.ticks:
            texts = [formats.hparam(tick) for tick in ticks]
            figure.update_xaxes(tickvals=ticks, ticktext=texts, **place)
    figure.update_yaxes(title_text=html.escape(objective), row=1, col=1)
    return figure


def parallel_figure(
    axes: Sequence[HparamAxis],
    values: Mapping[int, float],
    objective: str,
    cut: Container[int] = (),
    *,
    maximize: bool,
) -> Figure:
    """Draw each trial as a line through its value and its hyperparameters; good ones are darker.

    ``cut``: the numbers of trials that did not train to their end, which are grey.
    """
    import plotly.graph_objects as go

    low, high = min(values.values(), default=0.0), max(values.values(), default=0.0)
    place = {n: (value - low) / ((high - low) or 1.0) for n, value in values.items()}
    colour = {n: 0.49 * (each if maximize else 1 - each) for n, each in place.items()}
    colour |= {number: 0.51 + each for number, each in colour.items() if number not in cut}
    # What is drawn last lies on top: the best trial.
    numbers = sorted(colour, key=lambda number: colour[number])
    first = {"label": _label(objective), "values": [values[number] for number in numbers]}
    return go.Figure(
        go.Parcoords(
            dimensions=[first, *(_dimension(axis, numbers) for axis in axes)],
            line={
                "color": [colour[number] for number in numbers],
                "cmin": 0,
                "cmax": 1,
                "colorscale": _LINES,
            },
        )
    )


def _dimension(axis: HparamAxis, numbers: Sequence[int]) -> dict[str, Any]:
    ticks, texts = list(axis.ticks), [formats.hparam(tick) for tick in axis.ticks]
    if axis.kind == "choice":
        place = {choice: float(i) for i, choice in enumerate(axis.choices)}
        there = {number: place[value] for number, value in axis.values.items()}
        ticks, texts = list(place.values()), list(place)
    elif axis.kind == "log":
        there = {number: math.log10(value) for number, value in axis.values.items()}
        ticks = [math.log10(tick) for tick in ticks]
    else:
        there = {number: float(value) for number, value in axis.values.items()}
    known = [there[number] for number in numbers if number in there]
    shown = [*known, *(ticks if axis.choices or axis.marks else ())]
    low, high = min(shown, default=0.0), max(shown, default=0.0)
    if len(known) < len(numbers):  # a hyperparameter of some trials only: a place below the others
        none = low - 0.15 * ((high - low) or 1.0)
        if not ticks:
            ticks = sorted({low, (low + high) / 2, high})
            texts = [formats.hparam(tick) for tick in ticks]
        ticks, texts = [none, *ticks], [_NONE, *texts]
        low = none
    found: dict[str, Any] = {
        "label": axis.label,
        "values": [there.get(number, low) for number in numbers],
    }
    if high > low:
        found["range"] = [low, high]
    if ticks:
        found |= {"tickvals": ticks, "ticktext": texts}
    return found
