"""Trials, timeouts and deadlines as people type them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from paceline.cli import arguments
from paceline.errors import ConstraintError, UsageError

NOON = datetime(2026, 3, 10, 12, 0, 0).astimezone()


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("64", 64), ("+8", "+8"), ("+08", "+8")])
def test_trials_are_a_total_or_an_addition(text, count):
    assert arguments.trial_count(text) == count


@pytest.mark.parametrize("text", ["0", "+0", "-3", "", "+", "many", "1.5", "++2", "\u0663"])
def test_trials_must_be_a_whole_number_above_zero(text):
    with pytest.raises(UsageError, match=r"--trials .* at least 1"):
        arguments.trial_count(text)


def test_counts_below_one_name_their_option():
    assert arguments.positive("--epochs", 3) == 3
    assert arguments.positive("--epochs", None) is None
    with pytest.raises(UsageError, match="--epochs must be an integer of at least 1, got 0"):
        arguments.positive("--epochs", 0)


def test_slots_are_a_number_or_auto():
    assert arguments.slot_count("auto") == "auto"
    assert arguments.slot_count("6") == 6
    with pytest.raises(UsageError, match="--parallel-trials .* at least 1, or auto, got '0'"):
        arguments.slot_count("0")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800)],
)
def test_a_timeout_has_units(text, seconds):
    assert arguments.timeout_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0m", "-5m", "5 m", "m", "5x", "nan", "inf", "30min"])
def test_a_timeout_that_cannot_be_read_says_how_to_write_it(text):
    with pytest.raises(UsageError, match=r"--timeout .*30m"):
        arguments.timeout_seconds(text)


def test_a_deadline_is_today_or_else_tomorrow():
    assert arguments.deadline("17:30", NOON) - NOON == timedelta(hours=5, minutes=30)
    assert arguments.deadline("12:00:30", NOON) - NOON == timedelta(seconds=30)
    assert arguments.deadline("11:59", NOON).date() == NOON.date() + timedelta(days=1)


def test_a_deadline_may_have_a_date():
    assert arguments.deadline("2026-03-11 12:00", NOON) - NOON == timedelta(days=1)
    assert arguments.deadline("2026-03-11T12:00:30", NOON) - NOON == timedelta(days=1, seconds=30)


def test_a_date_that_has_passed_is_no_deadline():
    with pytest.raises(UsageError, match="--deadline must be in the future"):
        arguments.deadline("2026-03-09 12:00", NOON)


@pytest.mark.parametrize("text", ["", "25:00", "half past five", "5pm"])
def test_a_deadline_that_cannot_be_read_says_how_to_write_it(text):
    with pytest.raises(UsageError, match=r"--deadline .*17:30"):
        arguments.deadline(text, NOON)


def test_the_first_limit_counts():
    later = NOON + timedelta(minutes=10)
    assert arguments.seconds_to_run(None, None, NOON) is None
    assert arguments.seconds_to_run(60.0, None, NOON) == 60
    assert arguments.seconds_to_run(3600.0, later, NOON) == 600
    assert arguments.seconds_to_run(60.0, later, NOON) == 60


def test_a_deadline_that_passed_while_loading_leaves_no_time():
    seconds = arguments.seconds_to_run(None, NOON - timedelta(seconds=5), NOON)
    assert seconds is not None
    assert 0 < seconds < 0.1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--constraint", "params"), "--constraint must be NAME, one of <= < >= >, and"),
        (("--constraint", "parms<=10"), "constraints: 'parms' is unknown. Use params or"),
        (("--constraint", "params<=nan"), "constraints: the bound of 'params' must be a number"),
        (("--keep-best", "0"), "--keep-best"),
    ],
)
def test_what_cannot_be_is_said_before_the_file_is_loaded(paceline, tuner, model, words, said):
    model.write_text("raise SystemExit('loaded')\n")
    done = paceline("search", "model.py", *words)
    assert done.code == 2
    assert said in " ".join(done.err.split())
    assert tuner.made == []


def test_bounds_of_the_command_line_are_known_ones():
    from paceline.tuner.arguments.constraints import of_command

    found = of_command(["params<=10", "params>2", "trainable_params<1e3"])
    assert found == {"params": [("<=", 10), (">", 2)], "trainable_params": [("<", 1000)]}
    with pytest.raises(ConstraintError, match="constraints: 'parms' is unknown"):
        of_command(["parms<=10"])


def test_values_of_hyperparameters_are_scalars_of_json_or_text():
    pairs = ["a=1e-3", "b=64", "c=true", "d=False", "e=relu", 'f="64"', "g=.5", "h=inf", "i=[1]"]
    assert arguments.hparam_values("values", pairs) == {
        "a": 1e-3,
        "b": 64,
        "c": True,
        "d": False,
        "e": "relu",
        "f": "64",
        "g": 0.5,
        "h": "inf",
        "i": "[1]",
    }
