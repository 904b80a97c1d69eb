"""The front in reports, figures, tables and the live view."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from io import StringIO

import optuna
import pytest
from rich.console import Console

from paceline.errors import StudyError
from paceline.report import panel
from paceline.report.html.page import report_page
from paceline.report.html.subject import ReportSubject
from paceline.report.notebook import progress_html
from paceline.report.plots import StudyPlots
from paceline.report.progress import Progress, TrialRow
from paceline.report.tables import results_frame
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial
from subjects import HOSTILE


def subject_of(n: int, names: list[str], mark: str = "") -> ReportSubject:
    """A study with several objectives, made by hand: each trial has random values."""
    draw, table = random.Random(n), TrialTable("made")
    directions = ["maximize", *["minimize"] * (len(names) - 1)]
    table.set_direction(*directions)
    study = optuna.create_study(directions=directions)
    lr = optuna.distributions.FloatDistribution(0.0, 1.0)
    for number in range(n):
        values, hparams = [draw.random() for _ in names], {f"lr{mark}": draw.random()}
        history = {names[0]: [values[0] / 2, values[0]]}
        table.add(
            Trial(
                number,
                "complete",
                values[0],
                hparams,
                epochs=2,
                best_epoch=2,
                history=history,
                values=values,
                costs={"latency_device": f"a fast one{mark}"},
            )
        )
        study.add_trial(
            optuna.trial.create_trial(
                params=hparams, distributions={f"lr{mark}": lr}, values=values
            )
        )
    meta = {"objective": names[0], "objectives": names, "directions": directions}
    return ReportSubject("made", meta, table, study.get_trials(deepcopy=False))


def test_a_front_without_epochs_tells_of_none() -> None:
    subject = subject_of(20, ["val_accuracy", "params"])
    for trial in subject.trials:
        trial.epochs, trial.best_epoch, trial.history = 0, None, {}
    assert "None of 0" not in report_page(subject)


def plots_of(subject: ReportSubject) -> StudyPlots:
    study = optuna.create_study(directions=list(subject.trials.directions))
    study.add_trials(subject.frozen)
    return StudyPlots(study, subject.trials, subject.objective, None, subject.objectives)


@pytest.mark.parametrize("names", [["acc", "params"], ["acc", "params", "latency"]])
def test_the_figure_has_each_trial_in_a_panel_for_each_pair(names: list[str]) -> None:
    subject = subject_of(30, names)
    figure = plots_of(subject).pareto_front()
    n_pairs = len(names) * (len(names) - 1) // 2
    assert len(figure.data) == 2 * n_pairs
    front = {trial.number for trial in subject.trials.front}
    drawn = [trace for trace in figure.data if trace.name == "Pareto front"]
    assert all(len(trace.x) == len(front) for trace in drawn)
    assert sum(len(trace.x) for trace in figure.data) == 30 * n_pairs
    first = drawn[0]
    expected = {(t.values[0], t.values[1]) for t in subject.trials.front}
    assert set(zip(first.x, first.y, strict=True)) == expected


@pytest.mark.parametrize("name", ["history", "importances", "parallel", "slice", "curves"])
def test_other_figures_are_of_the_first_objective(name: str) -> None:
    figure = getattr(plots_of(subject_of(12, ["acc", "params"])), name)()
    assert "acc" in figure.to_json()


def test_a_study_of_one_objective_has_no_front_to_draw() -> None:
    study, table = optuna.create_study(study_name="s"), TrialTable("s")
    table.set_direction("minimize")
    with pytest.raises(StudyError, match="has one objective, val_loss. Use plot.history"):
        StudyPlots(study, table, "val_loss").pareto_front()


def test_the_report_has_the_front() -> None:
    subject = subject_of(30, ["acc", "params"])
    page = report_page(subject)
    n = len(subject.trials.front)
    assert "Objectives: acc, to maximize; params, to minimize." in page
    assert f"By all of acc, params, {n} trials of 30 are on the Pareto front" in page
    assert '<h2 id="front">Pareto front</h2>' in page
    assert '<h2 id="front-trials">Trials of the Pareto front</h2>' in page
    assert "measured on a fast one." in page
    assert "Best by acc" in page


def test_the_report_says_which_initial_configurations_are_on_the_front() -> None:
    subject = subject_of(30, ["acc", "params"])
    front = {trial.number for trial in subject.trials.front}
    first, behind = min(front), min(set(range(30)) - front)
    subject.trials.add(Trial(30, "failed", hparams={"lr": 0.5}, error="boom"))
    for number in (first, behind, 30):
        subject.trials.by_number(number).enqueued = True
    head, *rows = table_below(report_page(subject), "starts")
    assert head == ["trial", "acc", "params", "place", "lr"]
    by_acc = sorted(range(30), key=lambda n: subject.trials.by_number(n).values[0], reverse=True)
    expected = {
        str(first): "on the Pareto front",
        str(behind): f"{by_acc.index(behind) + 1} of 30 by acc",
        "30": "failed",
    }
    assert {row[0]: row[3] for row in rows} == expected
    assert [row[1] != "-" for row in rows] == [row[2] != "-" for row in rows]


def table_below(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table after a heading."""
    table = page.partition(f'<h2 id="{heading}">')[2].partition("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("<tr")]
    return [row for row in rows if row]


def test_a_study_without_complete_trials_has_a_report() -> None:
    assert "no trials yet" in report_page(subject_of(0, ["acc", "params"]))


def test_names_of_strangers_stay_text() -> None:
    page = report_page(subject_of(20, [f"acc{HOSTILE}", f"params{HOSTILE}"], HOSTILE))
    assert "<img src=x" not in page
    assert '<script>document.title="hacked"' not in page


def test_a_table_has_numbers_in_the_columns_of_objectives() -> None:
    subject = subject_of(3, ["acc", "params"])
    subject.trials.add(Trial(3, "failed", hparams={"lr": 0.5}, error="boom"))
    table = results_frame(subject.trials, subject.objectives)
    assert list(table.columns)[:3] == ["acc", "params", "lr"]
    assert table.dtypes["params"] == "float64"
    assert table["params"].isna().tolist() == [False, False, False, True]


def shown(progress: Progress) -> str:
    console = Console(file=StringIO(), width=100, color_system=None)
    console.print(panel.trials_table(progress, 96, 10))
    return console.file.getvalue()


def test_the_live_view_has_all_objectives_and_the_length_of_the_front() -> None:
    rows = (
        TrialRow(0, "complete", 0.5, 2, 0, {"lr": 0.1}, (), (0.5, 1200.0)),
        TrialRow(1, "running", 0.25, 1, 2, {"lr": 0.2}),
    )
    progress = Progress("s", "training", 4, 1, 0, 0, 1, 3, 1.0, 3.0, 1.0, "acc", 0, 0.5)
    progress = replace(progress, rows=rows, others=("params",), n_front=1)
    assert panel.line(progress).count("best acc 0.5000 (trial 0; 1 trial on the Pareto front)") == 1
    head, first, second = shown(progress).splitlines()
    assert head.split() == ["trial", "acc", "params", "epoch", "state", "lr"]
    assert first.split()[:3] == ["0", "0.5000", "1,200"]
    assert second.split()[:4] == ["1", "0.2500", "1", "of"]
    assert "1,200" in progress_html(progress)
