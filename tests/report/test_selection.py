"""Trials by a condition and in an order."""

from __future__ import annotations

import contextlib
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.report import selection, tables
from paceline.study.trials.trial import Trial

TRIALS = [
    Trial(0, "complete", 0.91, {"lr": 0.01, "units": 64, "opt": "adam", "bn": True}, 10),
    Trial(1, "failed", None, {"lr": 0.5, "opt": "sgd", "my rate": 3}, 2, error="loss is nan"),
    Trial(2, "pruned", 0.95, {"lr": 0.0005, "units": 32, "opt": "32", "bn": False, "epochs": 7}, 4),
    Trial(3, "complete", math.nan, {"lr": 0.001, "units": 16, "opt": "adam"}, 4),
]


def numbers(where: str | None = None, **arguments) -> list[int]:
    found = selection.select(TRIALS, where=where, objective="val_acc", **arguments)
    return [trial.number for trial in found]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("lr<1e-3", [2]),
        ("lr <= .001", [2, 3]),
        ("lr>1e-3 and lr<0.1", [0]),
        ("lr<1e-3 or state = failed", [1, 2]),
        ("state=failed or units>20 and opt=adam", [0, 1]),  # `and` binds closer
        ("(state=failed or units>20) and opt=adam", [0]),
        ("units!=64", [2, 3]),  # trial 1 has no units
        ("units = none", [1]),
        ("units != NONE", [0, 2, 3]),
        ("opt='adam'", [0, 3]),
        ('opt!="adam"', [1, 2]),
        ("opt=32", [2]),
        ("bn=true", [0]),
        ("bn=false", [2]),
        ("`my rate`>=3", [1]),
        ("hp.epochs=7", [2]),
        ("epochs>4", [0]),
        ("val_acc>0.92", [2]),
        ("value>0.92", [2]),
        ("trial>=2 AND time=none", [2, 3]),
        ("reason='loss is nan'", [1]),
    ],
)
def test_a_condition_selects(where, expected):
    assert numbers(where) == expected


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("", "is empty"),
        ("lrr<1", "there is no column 'lrr'. The study has value, lr, units"),
        ("lr<x", "column 'lr' holds numbers, but 'x' is not a number"),
        ("lr", "ends before an operator (< <= > >= = == !=)"),
        ("lr<", "ends before a value after <"),
        ("lr<1 lr", "'lr' at 6: expected `and`, `or` or the end"),
        ("(lr<1", "ends before a closing parenthesis"),
        ("lr 1", "'1' at 4: expected an operator"),
        ("lr < <", "'<' at 6: expected a value"),
        ("'lr'<1", "'lr' at 2: expected the name of a column"),
        ("lr<none", "a missing value has no order"),
        ("lr<1 and", "ends before the name of a column"),
        ("opt='adam", "at 5 is not a name, number or sign"),
        ("(" * 60 + "lr<1", "has more than 50 nested parentheses"),
    ],
)
def test_a_condition_that_cannot_be_read_says_where(where, why):
    with pytest.raises(UsageError, match="--where") as error:
        numbers(where)
    assert why in str(error.value)


@given(st.text(alphabet="lruntsopae<>=!()`'\"10.- ", max_size=30))
def test_any_text_is_a_condition_or_a_clear_error(text):
    with contextlib.suppress(UsageError):  # whose texts have a test of their own
        assert set(numbers(text)) <= {0, 1, 2, 3}


def test_a_condition_selects_as_python_would():
    draw = random.Random(3)
    trials = [Trial(n, hparams={"a": draw.random(), "b": draw.randint(0, 5)}) for n in range(200)]
    found = selection.select(trials, where="a<0.5 and b>2 or b=0")
    slow = [
        t for t in trials if (t.hparams["a"] < 0.5 and t.hparams["b"] > 2) or not t.hparams["b"]
    ]
    assert found == slow and 0 < len(slow) < 200


def test_the_best_comes_first_and_what_has_no_value_last():
    assert numbers(sort="value") == [2, 0, 1, 3]
    assert numbers(sort="val_acc", maximize=False) == [0, 2, 1, 3]
    assert numbers(sort="value", reverse=True) == [0, 2, 1, 3]
    assert numbers(sort="lr") == [2, 3, 0, 1]
    assert numbers(sort="units", reverse=True) == [0, 2, 3, 1]
    assert numbers(sort="opt") == [2, 0, 3, 1]
    assert numbers(reverse=True) == [3, 2, 1, 0]


def test_a_column_that_is_not_there_cannot_sort():
    with pytest.raises(UsageError, match="--sort x: there is no column 'x'. The study has value"):
        numbers(sort="x")


def test_a_hyperparameter_of_the_name_of_the_objective_is_itself():
    trials = [Trial(0, value=1.0, hparams={"acc": 5}), Trial(1, value=5.0, hparams={"acc": 1})]
    assert selection.select(trials, where="acc=5", objective="acc") == trials[:1]


def test_the_value_of_several_objectives_is_the_first_one():
    """Also where a hyperparameter is called so: it has the column hp.value."""
    trials = [
        Trial(0, "complete", 0.7, {"value": 3}, values=[0.7, 20.0]),
        Trial(1, "complete", 0.9, {"value": 1}, values=[0.9, 30.0]),
        Trial(2, "complete", 0.8, {"value": 2}, values=[0.8, 10.0]),
    ]
    several = {"objectives": ["acc", "params"], "directions": ["maximize", "minimize"]}

    def order(**arguments) -> list[int]:
        return [trial.number for trial in selection.select(trials, **arguments, **several)]

    assert order(sort="value") == order(sort="acc") == [1, 2, 0]
    assert order(sort="params") == [2, 0, 1]
    assert order(sort="hp.value", reverse=True) == [0, 2, 1]
    assert order(where="value>0.75") == [1, 2] and order(where="hp.value>2") == [0]
    columns = tables.values_by_column(trials, several["objectives"])
    assert columns["hp.value"] == [3, 1, 2] and "value" not in columns
    assert "hp.value" in tables.trials_table(trials, best=None, objectives=["acc", "params"])
