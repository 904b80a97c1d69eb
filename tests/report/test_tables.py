"""Trials as records, CSV and tables."""

from __future__ import annotations

import csv
import io
import math

import pytest

from paceline.report import tables
from paceline.report.selection import Columns
from paceline.study.trials.table import best_record
from paceline.study.trials.trial import Trial

TRIALS = [
    Trial(0, "complete", 0.91, {"lr": 0.01, "units": 64}, 10, 11, 0.3, "a1b2", "vectorized"),
    Trial(1, "failed", None, {"lr": 0.5}, 2, 12, 0.1, "a1b2", "vectorized", error="loss is nan"),
    Trial(2, "running", 0.95, {"lr": 0.0012345678, "epochs": 7}, 4, 13, 0.2),
]


def test_a_record_has_what_json_promises():
    assert tables.trial_record(TRIALS[0]) == {
        "number": 0,
        "state": "complete",
        "value": 0.91,
        "hparams": {"lr": 0.01, "units": 64},
        "best_epoch": None,
        "epochs": 10,
        "train_seconds": 0.3,
        "seed": 11,
        "program_id": "a1b2",
        "plan": "vectorized",
    }
    names = ["number", "state", "value", "hparams", "epochs", "best_epoch"]
    assert list(best_record(TRIALS[2])) == names


def test_csv_has_the_columns_of_results_and_exact_numbers():
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(TRIALS))))
    rest = [name for name in tables.FIXED_COLUMNS if name != "value"]
    assert list(rows[0]) == ["value", "lr", "units", "hp.epochs", *rest, "reason"]
    assert float(rows[2]["lr"]) == 0.0012345678
    assert rows[1]["value"] == rows[1]["units"] == ""
    assert rows[2]["epochs"] == "4"
    assert rows[2]["hp.epochs"] == "7"


def test_the_spread_is_shown_where_there_is_one():
    folded = Trial(3, "complete", 0.8, {"value_std": 7}, 2, best_epoch=2, runs=[[0, 1], [0.7, 0.9]])
    trials = [TRIALS[0], folded]
    assert "value_std" not in tables.trial_record(TRIALS[0])
    assert tables.trial_record(folded)["value_std"] == pytest.approx(0.1)
    assert best_record(folded)["value_std"] == pytest.approx(0.1)
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(trials))))
    assert list(rows[0])[:6] == ["value", "value_std", "lr", "units", "hp.value_std", "number"]
    assert rows[0]["value_std"] == "" and float(rows[1]["value_std"]) == pytest.approx(0.1)
    assert rows[1]["hp.value_std"] == "7"
    head, _, first, second = tables.trials_table(trials, best=None).splitlines()
    assert head.split()[2:4] == ["value", "value_std"]
    assert first.split()[2:4] == ["0.9100", "-"]
    assert second.split()[2:4] == ["0.8000", "0.1000"]


def test_a_table_says_which_trial_another_one_continues():
    trials = [Trial(0, "pruned", 0.5), Trial(1, "complete", 0.25, continued_from=0, continued_at=2)]
    head, _, first, second = tables.trials_table(trials, best=None).splitlines()
    at = head.index("continued_from") + len("continued_from")
    assert first[:at].rstrip() == first.rstrip() and second[at - 1] == "0"
    assert "continued_from" not in tables.trials_table(trials[:1], best=None)


def test_csv_quotes_what_needs_it():
    trial = Trial(0, hparams={'a,"b"': "x\ny"})
    rows = list(csv.DictReader(io.StringIO(tables.to_csv([trial]))))
    assert rows[0]['a,"b"'] == "x\ny"


def test_each_hyperparameter_has_a_column_of_its_own():
    hparams = {"value": 1, "hp.value": 2, "epochs": 3, "lr": 4}
    trials = [Trial(0, "complete", 0.5, hparams, 7)]
    found = tables.values_by_column(trials)
    names = ["hp.hp.value", "hp.value", "hp.epochs", "lr"]
    assert [found[name] for name in names] == [[1], [2], [3], [4]]
    assert found["value"] == [0.5] and found["epochs"] == [7]
    head, *_ = tables.trials_table(trials, best=None).splitlines()
    assert head.split()[-4:] == names
    assert [Columns(trials).values[name] for name in names] == [[1], [2], [3], [4]]


def test_a_table_marks_the_best_and_shows_what_is_missing():
    text = tables.trials_table(TRIALS, best=2)
    head, _, first, second, third = text.splitlines()
    assert head.split() == ["trial", "state", "value", "epoch", "time", "lr", "units", "hp.epochs"]
    assert first.split()[:6] == ["0", "complete", "0.9100", "10", "0.30", "s"]
    assert first.split()[6:] == ["0.01000000", "64", "-"]  # a column has one precision
    assert third.split()[-3:] == ["0.00123457", "-", "7"]
    assert second.split()[:3] == ["1", "failed", "-"]
    assert third.split()[:3] == ["*", "2", "running"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_fits_its_width(width):
    names = {f"hyperparameter_{i}": i for i in range(9)}
    text = tables.trials_table([Trial(0, "complete", 0.5, names)], best=None, width=width)
    assert max(map(len, text.splitlines())) <= width
    for name, value in names.items():
        assert name in "".join(text.split())
        assert f"{value}" in text


def test_names_are_never_markup():
    text = tables.trials_table([Trial(0, hparams={"units[type=a]": "[red]"})], best=None)
    assert "units[type=a]" in text
    assert "[red]" in text


def test_no_trials_are_an_empty_table():
    assert tables.trials_table([], best=None).startswith("trial")
    assert (
        tables.to_csv([])
        == "value,number,state,best_epoch,epochs,train_seconds,seed,program_id,plan\n"
    )


def test_the_epoch_is_that_of_the_value_and_unknown_seconds_are_none():
    trial = Trial(5, "pruned", 0.5, epochs=9, best_epoch=4)
    assert tables.trial_record(trial)["train_seconds"] is None
    row = tables.trials_table([trial], best=None).splitlines()[2]
    assert row.split() == ["5", "pruned", "0.5000", "4", "of", "9", "-"]


def test_a_value_that_is_not_finite_is_shown():
    assert "nan" in tables.trials_table([Trial(0, value=math.nan)], best=None)
