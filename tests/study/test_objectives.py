"""Several objectives: which are meant, and what they are worth in a trial."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.errors import ObjectiveError
from paceline.study.objectives import COSTS, Objective, Objectives, resolve_objectives

LOGS = ["loss", "accuracy", "val_loss", "val_accuracy", "val_score"]


def test_metrics_and_costs_have_their_directions() -> None:
    found = resolve_objectives(["val_accuracy", "min:val_score", "params", "val_loss"], None, LOGS)
    assert found.names == ["val_accuracy", "val_score", "params", "val_loss"]
    assert found.directions == ["maximize", "minimize", "minimize", "minimize"]
    assert (found.first, found.costs) == (Objective("val_accuracy", "maximize"), ["params"])


@pytest.mark.parametrize("name", COSTS)
def test_a_cost_is_to_be_low_unless_the_user_says_otherwise(name: str) -> None:
    assert resolve_objectives(["val_loss", name], None, LOGS).directions[1] == "minimize"
    assert resolve_objectives(["val_loss", f"max:{name}"], None, LOGS).directions[1] == "maximize"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (["val_accuracy", "nope"], '"nope" is not a metric .* Costs are params, bytes, flops, lat'),
        (["val_accuracy", "min:val_accuracy"], '"val_accuracy" appears twice'),
        (["val_loss", "params", "params"], '"params" appears twice'),
        (["params", "latency"], r'with costs alone .*Add a metric, as in \["val_loss", "params"\]'),
        (["params", "val_loss"], 'got "params". Put "val_loss" first'),
        (["val_loss", None], "the list contains None"),
        (["val_loss", 3], "name of one metric, .* got 3"),
        (["val_loss", "val_score"], '"max:val_score" or "min:val_score"'),
    ],
)
def test_what_cannot_be_searched_for_together(given: list[Any], match: str) -> None:
    with pytest.raises(ObjectiveError, match=match):
        resolve_objectives(given, None, LOGS)


@pytest.mark.parametrize("direction", ["maximize", ["maximize", "minimize"]])
def test_a_direction_is_of_one_objective(direction: Any) -> None:
    with pytest.raises(
        ObjectiveError, match=r'to one objective, but there are 2. Write "max:NAME"'
    ):
        resolve_objectives(["val_loss", "params"], direction, LOGS)


def test_a_metric_with_the_name_of_a_cost_is_refused() -> None:
    with pytest.raises(ObjectiveError, match='"params" is a cost .*Rename the metric'):
        resolve_objectives(["val_loss", "params"], None, [*LOGS, "params"])


def test_a_callback_may_add_a_metric_whose_direction_is_said() -> None:
    found = resolve_objectives(["val_loss", "max:f1_of_mine"], None, LOGS, callbacks=True)
    assert found.all[1] == Objective("f1_of_mine", "maximize")
    with pytest.raises(ObjectiveError, match='"f1_of_mine" is not a metric'):
        resolve_objectives(["val_loss", "f1_of_mine"], None, LOGS, callbacks=True)


HISTORY = {"val_accuracy": [0.5, 0.75, 0.625], "val_loss": [3.0, 2.0, 1.0]}
BOTH = Objectives(
    (
        Objective("val_accuracy", "maximize"),
        Objective("val_loss", "minimize"),
        Objective("params", "minimize"),
    )
)


def test_values_are_those_of_one_epoch() -> None:
    # The best loss is that of epoch 3, and the accuracy decides.
    assert BOTH.values(HISTORY, 2, {"params": 12}) == [0.75, 2.0, 12.0]


@pytest.mark.parametrize("column", [[], [1.0], [1.0, math.nan, 1.0], [1.0, math.inf, 1.0]])
def test_a_metric_without_a_number_in_that_epoch_says_so(column: list[float]) -> None:
    with pytest.raises(ObjectiveError, match=r'"val_loss" is (nan|inf) in epoch 2, .*val_accuracy'):
        BOTH.values({**HISTORY, "val_loss": column}, 2, {"params": 12})


def test_a_callback_that_logs_the_name_of_a_cost_is_not_taken_for_it() -> None:
    with pytest.raises(ObjectiveError, match='"params" is a cost of the model'):
        BOTH.values({**HISTORY, "params": [1.0, 2.0, 3.0]}, 2, {"params": 12})
