"""``tuner.plot``: figures of a study, in Plotly, which is loaded when a figure is asked for."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import StudyError, UsageError
from paceline.report import formats
from paceline.report.hparam_figures import (
    MARKS,
    HparamAxis,
    axis_of,
    hover_text,
    parallel_figure,
    slice_figure,
)
from paceline.report.html.subject import ReportSubject
from paceline.report.slots import slots_figure
from paceline.study.timeline import read_timelines
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial

if TYPE_CHECKING:
    import optuna
    from plotly.graph_objects import Figure


#: Hyperparameters whose importances are drawn at most.
MOST_BARS = 30
#: Trials up to which each has a learning curve of its own, and how many have one beyond.
EACH, BEST = 200, 50


class StudyPlots:
    """Figures of one study; each method returns a new ``plotly.graph_objects.Figure``.

    Trials that were stopped early or are unfinished count with their best epochs, and are lighter.

    Args:
        study: The study, as Optuna has it.
        trials: Its trials, as Paceline has them.
        objective: The name of the objective, of several the first.
        folder: The study's folder, where its searches have recorded their slots.
        objectives: The names of several objectives; empty for one.

    Raises:
        StudyError: From each method, where the study has too few trials for its figure.
    """

    def __init__(
        self,
        study: optuna.Study,
        trials: TrialTable,
        objective: str,
        folder: Path | None = None,
        objectives: Sequence[str] = (),
    ) -> None:
        self._study, self._trials, self._objective = study, trials, objective
        self._folder, self._objectives = folder, objectives

    def pareto_front(self) -> Figure:
        """Each trial by its objectives, two by two, those of the Pareto front marked.

        Raises:
            StudyError: The study has one objective, or no complete trial.
        """
        if not self._objectives:
            raise StudyError(
                f"plot.pareto_front: study {self._study.study_name!r} has one objective, "
                f"{self._objective}. Use plot.history instead."
            )
        self._require(1, self._trials.front)
        return _shown(front_figure(self._trials, self._objectives))

    def history(self) -> Figure:
        """Each trial's value by number, and the best value until then."""
        self._require(1)
        return _shown(history_figure([self._subject()]))

    def importances(self) -> Figure:
        """How much each hyperparameter matters for the value: what the report says, as a figure.

        A hyperparameter that only some trials have gets no bar, and the title says so.

        Raises:
            StudyError: The trials do not tell.
        """
        from paceline.report.html.importance import importances_of

        self._require(2)
        subject = self._subject()
        self._known(None, "importances", subject)
        found = importances_of(subject)
        if not found.shares:
            raise StudyError(
                f"plot.importances: study {self._study.study_name!r} does not show which "
                f"hyperparameter matters. {found.caution}"
            )
        return _shown(importances_figure(found.shares, self._objective, of_all=found.of_all))

    def parallel(self, hparams: Sequence[str] | None = None) -> Figure:
        """Each trial as a line through its hyperparameters and its value.

        Args:
            hparams: Which hyperparameters, as Optuna stores them; None: all.

        Raises:
            UsageError: There is no such hyperparameter.
        """
        axes, values, cut = self._axes(hparams, "parallel")
        maximize = self._trials.direction == "maximize"
        return _shown(parallel_figure(axes, values, self._objective, cut, maximize=maximize))

    def slice(self, hparams: Sequence[str] | None = None) -> Figure:
        """The value by each hyperparameter, side by side; arguments as of ``parallel``."""
        axes, values, cut = self._axes(hparams, "slice")
        return _shown(slice_figure(axes, values, self._objective, cut))

    def _axes(
        self, hparams: Sequence[str] | None, figure: str
    ) -> tuple[list[HparamAxis], dict[int, float], set[int]]:
        """The axes of hyperparameters, the value of each trial that has one, and ``cut_of``."""
        subject = self._subject()
        names, stored = self._known(hparams, figure, subject), subject.stored
        shown = [trial for trial in self._trials.ranked if trial.number in stored]
        trials = [stored[trial.number] for trial in shown]
        if names is None:
            names = list(dict.fromkeys(name for trial in trials for name in trial.params))
        return [axis_of(name, trials) for name in names], values_of(shown), cut_of(shown)

    def _subject(self) -> ReportSubject:
        frozen, meta = self._study.get_trials(deepcopy=False), {"objective": self._objective}
        return ReportSubject(self._study.study_name, meta, self._trials, frozen)

    def curves(self, metric: str | None = None) -> Figure:
        """A metric by epoch, a line for each trial.

        Of more than 200 trials the best 50 have lines. Bands contain a half and four fifths of all
        trials. The title says this.

        Args:
            metric: A name in ``tuner.history``; None: the objective.

        Raises:
            UsageError: No trial has such a metric.
        """
        metric = self._objective if metric is None else metric
        trained = [trial for trial in self._trials if trial.epochs]
        if not trained:
            raise StudyError(
                f"plot.curves: no trial of study {self._study.study_name!r} has trained an epoch "
                "yet. Run search first."
            )
        with_metric = [trial for trial in trained if metric in trial.history]
        if not with_metric:
            known = ", ".join(dict.fromkeys(name for t in trained for name in t.history))
            raise UsageError(f"plot.curves: metric {metric!r} is not one of {known}.")
        return _shown(curves_figure(self._trials, metric, with_metric))

    def slots(self) -> Figure:
        """Which trial was in which slot when, and when programs were compiled.

        Searches on the study are drawn one after another.
        """
        timelines = [] if self._folder is None else read_timelines(self._folder)
        if not any(search.stays or search.compiled for search in timelines):
            raise StudyError(
                f"plot.slots: no search on study {self._study.study_name!r} recorded its slots in "
                "this folder. Searches record them since version 0.1."
            )
        best = self._trials.best
        return _shown(slots_figure(timelines, None if best is None else best.number))

    def lineage(self, number: int | None = None) -> Figure:
        """The objective by epoch, with the trials that one trial continues, under ``pruner="pbt"``.

        Args:
            number: The trial's number; None: the best one's.

        Raises:
            StudyError: There is no such trial, or no trial of the study began as a copy.
        """
        from paceline.report.lineage import has_copies, lineage_figure  # populations alone need it

        if not has_copies(self._trials):
            raise StudyError(
                f"plot.lineage: no trial of study {self._study.study_name!r} began as a copy of "
                'another. Only pruner="pbt" copies trials.'
            )
        if number is None:
            best = self._trials.best
            if best is None:
                raise StudyError(
                    f"plot.lineage: no trial of study {self._study.study_name!r} has a value yet. "
                    "Pass a trial's number, or continue the search."
                )
            number = best.number
        return _shown(lineage_figure(self._trials, self._objective, number))

    def _require(self, least: int, trials: Iterable[Trial] | None = None) -> None:
        of = self._trials if trials is None else trials
        n = sum(trial.value is not None and self._trials.may_be_best(trial) for trial in of)
        if n < least:
            raise StudyError(
                f"plot: study {self._study.study_name!r} has {formats.count(n, 'trial')} with a "
                f"value, but this figure needs {least}. Continue the search."
            )

    def _known(
        self, names: Sequence[str] | None, figure: str, subject: ReportSubject
    ) -> list[str] | None:
        """Check names of hyperparameters; None stays None."""
        self._require(1)
        known = dict.fromkeys(name for trial in subject.frozen for name in trial.params)
        if not known:
            raise StudyError(
                f"plot.{figure}: study {self._study.study_name!r} has no hyperparameters. Use "
                "values from hp in build."
            )
        for name in names or ():
            if name not in known:
                raise UsageError(
                    f"plot.{figure}: hparams: {name!r} is not one of {', '.join(known)}."
                )
        return None if names is None else list(names)


def _shown(figure: Figure) -> Figure:
    from paceline.report.notebook_figure import NotebookFigure

    return NotebookFigure(figure)


def values_of(trials: Sequence[Trial]) -> dict[int, float]:
    """Return number -> value, of those trials whose value can be drawn."""
    found = ((trial.number, trial.value) for trial in trials)
    return {n: value for n, value in found if value is not None and math.isfinite(value)}


def cut_of(trials: Iterable[Trial]) -> set[int]:
    """Return the numbers of those trials that did not train to their end."""
    return {trial.number for trial in trials if trial.state != "complete"}


def history_figure(
    subjects: Sequence[ReportSubject], shown: Sequence[Container[int]] | None = None
) -> Figure:
    """Draw the value of each trial by its number, and the best value until then.

    ``shown``: of each study, the numbers of the trials to draw; None: all.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for i, subject in enumerate(subjects):
        of = f" of {html.escape(subject.name)}" if len(subjects) > 1 else ""
        best, steps = None, dict[int, float]()
        trials = sorted(subject.reached, key=lambda trial: trial.number)
        for trial in trials:
            if trial.value is not None and subject.trials.better(trial.value, best):
                steps[trial.number] = best = trial.value
        if best is not None:
            steps[trials[-1].number] = best
        drawn = [trial for trial in trials if shown is None or trial.number in shown[i]]
        cut = cut_of(drawn)
        whole, partial = ([t for t in drawn if (t.number in cut) is each] for each in (False, True))
        for points, (name, marker) in zip((whole, partial), MARKS, strict=True):
            if points:
                figure.add_scatter(
                    x=[trial.number for trial in points],
                    y=[trial.value for trial in points],
                    mode="markers",
                    name=f"{name}{of}",
                    marker={"size": 5, "color": _COLOURS[2 * i], **marker},
                    text=[_valued(trial) for trial in points],
                    hoverinfo="text",
                )
        figure.add_scatter(
            x=list(steps),
            y=list(steps.values()),
            mode="lines",
            name=f"best so far{of}",
            line={"shape": "hv", "width": 2, "color": _COLOURS[2 * i + 1]},
        )
    figure.update_layout(xaxis_title="trial", yaxis_title=html.escape(subjects[0].objective))
    return figure


#: The colours of the points and the line of each study.
_COLOURS = ("#4c78a8", "#e45756", "#54a24b", "#f58518")


def _valued(trial: Trial) -> str:
    value, where = formats.metric(trial.value), ""
    if trial.epochs:  # not of another program
        where = f", {formats.reached(trial.state, trial.epochs, trial.best_epoch)}"
    return hover_text(trial.hparams, f"trial {trial.number}: {value}{where}")


def importances_figure(
    shares: Mapping[str, float], objective: str, *, of_all: bool = True
) -> Figure:
    """Draw importances as bars, the largest on top; ``shares`` begins with the largest.

    ``of_all``: whether all hyperparameters have a share.
    """
    import plotly.graph_objects as go

    shown = list(shares.items())[:MOST_BARS][::-1]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[html.escape(name) for name, _ in shown],
            x=[share for _, share in shown],
            text=[f"{share:.0%}" for _, share in shown],
            textposition="auto",
            hoverinfo="skip",
            marker={"color": "#4c78a8"},
        )
    )
    named = html.escape(objective)
    among = "" if of_all else ", among hyperparameters of all trials"
    figure.update_layout(title=f"what made {named} differ{among}", yaxis={"type": "category"})
    text = f"share in the differences of {named}"
    figure.update_xaxes(title_text=text, rangemode="tozero", tickformat=".0%")
    return figure


def front_figure(
    table: TrialTable,
    objectives: Sequence[str],
    shown: Container[int] | None = None,
    *,
    stacked: bool = False,
) -> Figure:
    """Draw trials by their objectives, a panel for each pair of objectives.

    ``shown``: the numbers of the other trials to draw beside the front; None: all. ``vectorized``:
    whether the panels are one below another, for a page that may be narrow.
    """
    from plotly.subplots import make_subplots

    pairs = list(itertools.combinations(range(len(objectives)), 2))
    n = max(1, len(pairs))
    # Room for the labels and the title of an axis between two panels.
    if stacked:
        figure = make_subplots(n, 1, vertical_spacing=0.2 / n)
    else:
        figure = make_subplots(1, n, horizontal_spacing=0.3 / n)
    front = table.front
    numbers = {trial.number for trial in front}
    others = [t for t in table.ranked if t.values and t.number not in numbers]
    others = [t for t in others if shown is None or t.number in shown]
    for panel, (i, j) in enumerate(pairs, 1):
        place: dict[str, Any] = {"row": panel if stacked else 1, "col": 1 if stacked else panel}
        # A trial that is best by one objective of the pair is next to the second best by it.
        along = sorted(front, key=lambda trial: (trial.values[i], trial.values[j]))
        for best, trials in ((False, others), (True, along)):
            name = "Pareto front" if best else "dominated"
            figure.add_scatter(
                x=[trial.values[i] for trial in trials],
                y=[trial.values[j] for trial in trials],
                mode="lines+markers" if best and len(objectives) == 2 else "markers",
                line={"shape": "linear", "width": 1, "dash": "dot"},
                marker={"color": "#e45756" if best else "#9aa5b1", "size": 8 if best else 5},
                name=name,
                legendgroup=name,
                showlegend=panel == 1,
                hovertext=[_of_trial(trial, objectives) for trial in trials],
                hoverinfo="text",
                **place,
            )
        figure.update_xaxes(title_text=html.escape(objectives[i]), **place)
        figure.update_yaxes(title_text=html.escape(objectives[j]), **place)
    figure.update_layout(
        title=f"{len(front):,} of {len(table.ranked):,} trials are on the Pareto front"
    )
    return figure


def _of_trial(trial: Trial, objectives: Sequence[str]) -> str:
    values = zip(objectives, trial.values, strict=True)
    said = [f"{name} {formats.objective(name, value)}" for name, value in values]
    return hover_text(trial.hparams, f"trial {trial.number}", *said)


def curves_figure(table: TrialTable, metric: str, trials: list[Trial]) -> Figure:
    """Draw a metric by epoch, of trials that have it; the table says whether high is good."""
    import plotly.graph_objects as go

    figure, title = go.Figure(), f"{html.escape(metric)} by epoch"
    shown = trials
    if len(trials) > EACH:
        shown = _best(table, trials)
        for low, high in ((10, 90), (25, 75)):
            figure.add_traces(_band(metric, trials, low, high))
        title += (
            f": the best {len(shown)} of {len(trials):,} trials, and bands that contain a half "
            "and four fifths of all trials"
        )
    for trial in shown:
        values = trial.history[metric]
        figure.add_scatter(
            x=list(range(1, len(values) + 1)),
            y=values,
            mode="lines+markers" if len(values) == 1 else "lines",
            name=f"trial {trial.number}",
            connectgaps=True,  # epochs without validation
            opacity=1.0 if trial.state == "complete" else 0.5,
            line={"width": 1.5},
            hovertext=html.escape(", ".join(f"{k}={v}" for k, v in trial.hparams.items())),
        )
    figure.update_layout(title=title, xaxis_title="epoch", yaxis_title=html.escape(metric))
    return figure


def _best(table: TrialTable, trials: list[Trial]) -> list[Trial]:
    def rank(trial: Trial) -> float:
        value = trial.value
        return math.inf if value is None or math.isnan(value) else table.sign * value

    return sorted(trials, key=rank)[:BEST]


def _band(metric: str, trials: list[Trial], low: int, high: int) -> list[Any]:
    """Two lines with the room between them filled: percentiles over trials, by epoch."""
    import numpy as np
    import plotly.graph_objects as go

    n_epochs = max(len(trial.history[metric]) for trial in trials)
    values = np.full((len(trials), n_epochs), np.nan)
    for row, trial in zip(values, trials, strict=True):
        row[: len(trial.history[metric])] = trial.history[metric]
    there = ~np.isnan(values).all(axis=0)
    epochs = np.arange(1, n_epochs + 1)[there]
    lower, upper = np.nanpercentile(values[:, there], [low, high], axis=0)
    line, name = {"width": 0}, f"{low} to {high} % of all trials"
    fill = "rgba(128, 128, 128, 0.2)"
    return [
        go.Scatter(x=epochs, y=lower, line=line, mode="lines", showlegend=False, hoverinfo="skip"),
        go.Scatter(
            x=epochs,
            y=upper,
            line=line,
            mode="lines",
            fill="tonexty",
            fillcolor=fill,
            name=name,
            hoverinfo="skip",
        ),
    ]
