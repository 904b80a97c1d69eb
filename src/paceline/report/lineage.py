"""The lineage of a population: which trial began as a copy of which, epoch by epoch."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.report import formats
from paceline.report.hparam_figures import hover_text
from paceline.study.trials.lineage import line_of
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: Trials up to which each point says what it is; beyond, only those of the line do.
_EACH = 200
#: Colours of the line of one trial and of all others; seen on white and on black.
_LINE, _OTHERS = "#e45756", "#9aa7b5"


def has_copies(trials: Sequence[Trial] | TrialTable) -> bool:
    """Whether any trial began as a copy of another one."""
    return any(trial.continued_at is not None for trial in trials)


def lineage_figure(table: TrialTable, metric: str, number: int) -> Figure:
    """Draw a metric by epoch, each trial from the epoch at which it began.

    A copy is joined to the trial that it continues. The line of trial ``number`` has a colour of
    its own. All others are one path, so that a browser draws hundreds of them at once.
    """
    import plotly.graph_objects as go

    line = line_of(table.by_number(number), table.get)
    each = len(table) <= _EACH
    every: list[tuple[Trial, int, float | None] | None] = []  # with a gap after each trial
    for trial in table:  # what it trained itself, from where it was copied
        every += _points(trial, max(1, trial.continued_at or 0), trial.epochs, metric)
        every.append(None)
    figure = go.Figure()
    figure.add_scatter(
        x=[point and point[1] for point in every],
        y=[point and point[2] for point in every],
        text=[point and _hover(*point) for point in every] if each else None,
        hoverinfo="text" if each else "skip",
        mode="lines",
        name="all trials",
        line={"width": 1, "color": _OTHERS},
    )
    shown = [point for s in line for point in _points(s.trial, s.first, s.last, metric)]
    figure.add_scatter(
        x=[epoch for _, epoch, _ in shown],
        y=[value for _, _, value in shown],
        text=[_hover(*point) for point in shown],
        hoverinfo="text",
        mode="lines",
        name=f"the ancestry of trial {number}",
        line={"width": 2.5, "color": _LINE},
    )
    begun = [segment for segment in line if segment.first > 1]
    joins = [(s.trial, s.first - 1, value_in(s.trial, metric, s.first - 1)) for s in begun]
    figure.add_scatter(
        x=[epoch for _, epoch, _ in joins],
        y=[value for _, _, value in joins],
        text=[
            f"trial {t.number} begins as a copy of trial {t.continued_from}" for t, _, _ in joins
        ],
        hoverinfo="text",
        mode="markers",
        name="a copy begins",
        marker={"size": 8, "color": _LINE, "symbol": "circle-open"},
    )
    named = html.escape(metric)
    title = f"{named} by epoch, with the ancestry of trial {number}"
    figure.update_layout(title=title, xaxis_title="epoch", yaxis_title=named)
    return figure


def _points(
    trial: Trial, first: int, last: int, metric: str
) -> Iterator[tuple[Trial, int, float | None]]:
    for epoch in range(first, last + 1):
        yield trial, epoch, value_in(trial, metric, epoch)


def value_in(trial: Trial, metric: str, epoch: int) -> float | None:
    """Return a metric of a trial in an epoch, from 1; None if there is none."""
    values = trial.history.get(metric, ())
    return values[epoch - 1] if 0 < epoch <= len(values) else None


def _hover(trial: Trial, epoch: int, value: float | None) -> str:
    return hover_text(
        trial.hparams, f"trial {trial.number}, epoch {epoch}: {formats.metric(value)}"
    )
