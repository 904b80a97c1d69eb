"""What cannot work is said before anything trains, in words of Talos' users."""

from __future__ import annotations

import keras
import pytest

from compat.talos.notebook import X, Y, no_training
from paceline.compat import talos
from paceline.compat.talos import errors
from paceline.errors import PacelineError


def scan(params=None, model=no_training, **arguments):
    arguments = {"experiment_name": "test", "disable_progress_bar": True, **arguments}
    return talos.Scan(X, Y, {"a": [1, 2]} if params is None else params, model, **arguments)


def returns(value):
    def model(x_train, y_train, x_val, y_val, params):
        return value

    return model


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "returned nothing"),
        (3, "returned a int"),
        ((1, 2, 3), "returned a tuple"),
        ((1, None), "returned a int for the history"),
        (({}, None), r"never called model\.fit, so there is nothing to compare"),
        ((keras.Sequential(), {"loss": [1.0]}), r"returned \(model, history\)"),
    ],
)
def test_a_function_that_returns_something_else(value, what):
    with pytest.raises(errors.TalosReturnError, match=rf"model: model\(\) {what}.*end it with"):
        scan(model=returns(value))


def test_a_history_of_nothing():
    def model(x_train, y_train, x_val, y_val, params):
        made = keras.Sequential([keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        return made.fit(x_train, y_train, epochs=0, verbose=0), made

    with pytest.raises(errors.TalosReturnError, match="has an empty history"):
        scan({"a": [1]}, model)


def test_a_function_that_always_raises(capsys):
    def model(x_train, y_train, x_val, y_val, params):
        raise KeyError("lr")

    for params, what in (
        ({"a": list(range(9))}, "5 permutations failed, and none worked"),
        ({"a": [1, 2]}, "every permutation failed"),
    ):
        with pytest.raises(KeyError, match="lr") as raised:
            scan(params, model)
        first = min(params["a"])
        note = f"model: {what}; the first, with {{'a': {first}}}, raised this"
        assert raised.value.__notes__ == [note]
    assert "permutation 0 failed, with {'a': 0}: KeyError: 'lr'" in capsys.readouterr().err


def test_a_metric_that_is_no_list_of_numbers():
    with pytest.raises(errors.TalosReturnError, match=r"returned 3 for 'loss' of the history"):
        scan(model=returns(({"loss": 3}, None)))


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({}, "params: the dictionary is empty"),
        ([1], "params: a list was given; pass a dictionary of lists"),
        ({"lr": []}, r"params\['lr'\]: the list is empty; give at least one value"),
        ({"lr": 0.1}, r"params\['lr'\]: 0.1 is neither a list .* write \[0.1\]"),
        ({"lr": (1, 2)}, r"params\['lr'\]: \(1, 2\) is no \(start, end, steps\)"),
        ({"lr": (1, 1, 5)}, "two different numbers"),
        ({"lr": ("a", "b", "c")}, "For values as they are, write a list"),
    ],
)
def test_params(params, text):
    with pytest.raises(PacelineError, match=text):
        scan(params)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"model": keras.Sequential()}, "model: a Sequential was given; pass a function"),
        ({"model": "model"}, "model: a str was given"),
        ({"model": lambda params: params}, r"model: <lambda>\(\) cannot be called with x_train"),
        ({"resume": True}, "resume: there is no experiment_dir"),
        ({"experiment_dir": "none", "resume": True}, r"resume: there is no .*metadata\.json"),
        ({"stop_after": 0}, "stop_after: 0 is not a positive whole number"),
        ({"val_split": 1.5}, "val_split: 1.5 is not between 0 and 1"),
        ({"x_val": X}, "x_val, y_val: one was given"),
        ({"random_method": "dice"}, "random_method: 'dice' is not one of uniform_mersenne"),
        ({"fraction_limit": 0.001}, "fraction_limit, round_limit: 0.001 of 2 permutations"),
        ({"time_limit": "soon"}, "time_limit: 'soon' is no date and time like"),
        ({"boolean_limit": lambda p: False}, "boolean_limit: it is true for none"),
        ({"reduction_method": "magic"}, "reduction_method: 'magic' is not one of correlation"),
        ({"performance_target": 0.9}, "performance_target: 0.9 is no"),
        ({"search_method": "up"}, "search_method: 'up' is not 'random'"),
        ({"n_trials": 3}, "Scan: unknown argument 'n_trials'"),
        (
            {"grid_downsample": 0.5, "fraction_limit": 0.1},
            "grid_downsample: it is the older name of fraction_limit",
        ),
    ],
)
def test_arguments(arguments, text, fresh_folder):
    with pytest.raises(PacelineError, match=text):
        scan(**arguments)
    assert not list(fresh_folder.iterdir())


def test_data_that_do_not_belong_together():
    with pytest.raises(errors.TalosDataError, match="x has 90 examples and y has 89"):
        talos.Scan(X, Y[:-1], {"a": [1]}, no_training, "test")
    with pytest.raises(errors.TalosTypeError, match="set multi_input=True"):
        talos.Scan([X, X], Y, {"a": [1]}, no_training, "test")


def test_a_strategy_that_is_not_there():
    with pytest.raises(errors.TalosParamsError, match=r"needs talos_strategy\.py here"):
        scan(reduction_method="local_strategy")


def test_a_metric_that_is_not_there():
    with pytest.raises(errors.TalosParamsError, match="reduction_metric: 'f1' is not one of"):
        scan(
            {"a": [1, 2, 3, 4]},
            reduction_method="pearson",
            reduction_interval=3,
            reduction_metric="f1",
        )
    with pytest.raises(errors.TalosParamsError, match="performance_target: 'f1' is not one of"):
        scan(performance_target=["f1", 0.5, False])
