"""One moment of a search, drawn at several widths."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from paceline.report import panel
from paceline.report.progress import Progress, TrialRow, WorkerRow

PROGRESS = Progress(
    study="digits",
    phase="training",
    n_trials=32,
    n_complete=18,
    n_pruned=1,
    n_failed=1,
    n_running=8,
    trial_epochs=1200,
    seconds=12.0,
    rate=412.3,
    seconds_left=7.0,
    objective="val_accuracy",
    best_number=17,
    best_value=0.97222,
    best_hparams={"dropout": 0.2131231, "units[type=a]": 64, "lr": 0.00412345},
)
HPARAMS = {"units": 64, "lr": 0.00412345, "another_long_name_of_a_hyperparameter": "relu"}
NOTHING_YET = Progress("digits", "building", 32, 0, 0, 0, 0, 0, 0.4, None, None, "val_accuracy")


def drawn(progress: Progress | None, width: int, *, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=stream, width=width, force_terminal=True, color_system=None)
    shown = panel.LivePanel("digits")
    shown.progress = progress
    console.print(shown)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("progress", [PROGRESS, NOTHING_YET, None])
def test_the_panel_keeps_to_its_width_and_to_its_lines(width, progress):
    lines = drawn(progress, width).splitlines()
    assert {cell_len(line) for line in lines} == {min(width - 2, panel.WIDEST)}
    assert len(lines) <= 8


@pytest.mark.parametrize("width", [80, 200])
def test_the_panel_says_all_that_is_known(width):
    text = drawn(PROGRESS, width)
    for part in (
        "paceline digits, training",
        "20 of 32",
        "8 running, 1 stopped early, 1 failed",
        "412 trial-epochs/s, 1,200 so far",
        "0:12, about 0:07 left",
        "0.9722 val_accuracy, trial 17",
        "dropout 0.213123, units[type=a] 64, lr 0.00412345",
    ):
        assert part in text


ROWS = tuple(
    TrialRow(17 + i, "running" if i else "complete", 0.97 - i / 100, 3, 10 if i else 0, HPARAMS)
    for i in range(12)
)


def drawn_at(progress: Progress, width: int, height: int) -> list[str]:
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None
    )
    shown = panel.LivePanel("digits")
    shown.progress = progress
    with console.capture() as capture:
        console.print(shown)
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_trials_are_a_table_as_wide_as_the_terminal(width):
    lines = drawn_at(replace(PROGRESS, rows=ROWS), width, 50)
    assert {cell_len(line) for line in lines} == {width - 2}
    (head,) = [line for line in lines if "epoch" in line and "state" in line]
    assert "units" in head
    assert ("lr" in head) == (width >= 80)
    assert ("another_long_name" in head) == (width == 200)
    assert sum("running" in line and "of 10" in line for line in lines) == 11
    assert sum(re.match(r"│ +17 .* best ", line) is not None for line in lines) == 1


def test_at_the_end_no_trial_runs():
    text = "\n".join(drawn_at(replace(PROGRESS, rows=ROWS, phase="done"), 200, 50))
    assert text.count("unfinished") == 12  # in the counts, and in eleven rows
    assert "running" not in text


def test_a_table_leaves_most_of_a_low_terminal_alone():
    assert len(drawn_at(replace(PROGRESS, rows=ROWS), 80, 15)) == 7
    assert len(drawn_at(replace(PROGRESS, rows=ROWS), 80, 20)) == 7 + 2 + 6


@pytest.mark.parametrize(
    ("phase", "compiles", "said"),
    [
        ("building", (0, 0), "building and tracing trial 9"),
        ("compiling", (1, 4), "compiling 2 of 4"),
        ("compiling", (4, 4), "compiling 4 of 4"),
        ("training", (4, 4), "training"),
        ("paused", (4, 4), "paused"),
        ("done", (4, 4), "stopped"),
    ],
)
def test_the_title_says_what_the_search_does(phase, compiles, said):
    text = drawn(replace(PROGRESS, phase=phase, compiles=compiles), 80)
    assert f"paceline digits, {said} ─" in text


def test_a_name_and_its_value_stay_on_one_line():
    names = {f"a_rather_long_name_{i}": i for i in range(9)}
    lines = drawn(replace(PROGRESS, best_hparams=names), 80).splitlines()
    shown = [line for line in lines if "rather_long" in line]
    assert len(shown) == panel.HPARAM_LINES
    assert "a_rather_long_name_0 0, a_rather_long_name_1 1" in shown[0]
    assert shown[-1].rstrip(" │").endswith("...")


def test_names_are_never_markup():
    text = drawn(replace(PROGRESS, study="[red]x[/]", best_hparams={"[bold]": "[/]"}), 80)
    assert "[red]x[/]" in text
    assert "[bold] [/]" in text


def test_names_and_values_do_not_steer_the_terminal():
    steers = "\x1b]0;owned\x07\x1b[2J"
    rows = [TrialRow(n, "complete", 0.5, 1, 0, {f"act{steers}": steers}) for n in range(2)]
    wild = {"best_hparams": {steers: steers}, "objective": steers, "rows": tuple(rows)}
    for progress in (replace(PROGRESS, **wild), replace(PROGRESS, **wild, best_value=None)):
        text = drawn(progress, 200)
        assert "\x1b" not in text and "\x07" not in text
        assert "owned" in text


def test_a_terminal_without_unicode_gets_a_panel_too():
    assert "20 of 32" in drawn(PROGRESS, 80, encoding="ascii")


def test_without_a_total_there_is_no_bar():
    text = drawn(replace(PROGRESS, n_trials=None, seconds_left=None), 80)
    assert "━" not in text
    assert re.search(r"trials +20  8 running", text)


def test_a_fault_in_drawing_becomes_a_line():
    broken = replace(PROGRESS, n_complete=None)  # type: ignore[arg-type]
    assert "the live view failed" in drawn(broken, 200)


def test_the_line_says_the_same():
    assert panel.line(PROGRESS) == (
        "digits: 20 of 32 trials (8 running, 1 stopped early, 1 failed), 412 trial-epochs/s, "
        "best val_accuracy 0.9722 (trial 17), 0:12, about 0:07 left"
    )
    assert panel.line(NOTHING_YET) == "digits: 0 of 32 trials, 0:00"


def test_the_last_line_has_no_estimates():
    assert panel.line(panel.ended(PROGRESS)).endswith("best val_accuracy 0.9722 (trial 17), 0:12")


def test_time_goes_on_between_records():
    moment = panel.later(PROGRESS, 5.0)
    assert (moment.seconds, moment.seconds_left) == (17.0, 2.0)
    assert panel.later(PROGRESS, 60.0).seconds_left == 0
    assert panel.later(NOTHING_YET, 1.0).seconds_left is None


def test_each_worker_of_a_cluster_has_a_line_and_many_share_one() -> None:
    workers = tuple(WorkerRow(str(at), f"NVIDIA H100 of n{at}", 3, 4, 12.5) for at in range(11))
    text = drawn(replace(PROGRESS, workers=workers), 100)
    assert "0, NVIDIA H100 of n0: 3 of 4 slots, 12.5 trial-epochs/s" in text
    assert "7, NVIDIA H100" in text and "8, NVIDIA H100" not in text
    assert "and 3 more workers" in text
