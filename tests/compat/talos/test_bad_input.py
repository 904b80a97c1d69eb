"""What cannot work is said before anything trains, in words of Talos' users."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

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
        (None, "nothing"),
        (3, "int"),
        ((1, 2, 3), "tuple"),
        ((1, None), "int in place of the history"),
        (({}, None), r"no history of model\.fit"),
        ((keras.Sequential(), {"loss": [1.0]}), r"\(model, history\)"),
    ],
)
def test_a_function_that_returns_something_else(value, what):
    text = rf"model: model\(\) must return \(history, model\), got {what}\. End the function with"
    with pytest.raises(errors.TalosReturnError, match=text):
        scan(model=returns(value))


def test_a_history_of_nothing():
    def model(x_train, y_train, x_val, y_val, params):
        made = keras.Sequential([keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        return made.fit(x_train, y_train, epochs=0, verbose=0), made

    with pytest.raises(errors.TalosReturnError, match="got an empty history"):
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
        note = f"{what}. The first one, with {{'a': {first}}}, raised this error"
        assert raised.value.__notes__ == [note]
    assert "permutation 0 failed, with {'a': 0}: KeyError: 'lr'" in capsys.readouterr().err


def test_a_failure_with_long_params_or_errors_has_a_short_note(capsys):
    def model(x_train, y_train, x_val, y_val, params):
        raise ValueError("y" * 5000 + ". Pass less.")

    with pytest.raises(ValueError, match="yyy") as raised:
        scan({"a": ["z" * 3000]}, model)
    (note,) = raised.value.__notes__
    assert len(note) == 600 and note.endswith("raised this error")
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "permutation 0" in each]
    assert len(line) <= 620 and line.endswith("Pass less.")


def test_a_line_of_another_backend_is_named(capsys):
    K = SimpleNamespace(sqrt=math.sqrt)

    def loss(y_true, y_pred):
        return K.sqrt(y_pred)

    def model(x_train, y_train, x_val, y_val, params):
        made = keras.Sequential([keras.layers.Dense(1)])
        made.compile("sgd", loss)
        return made.fit(x_train, y_train, epochs=1, verbose=0), made

    with pytest.raises(TypeError, match="JAX|concrete|Traced") as raised:
        scan({"a": [1]}, model)
    line = loss.__code__.co_firstlineno + 1
    hint = rf"line {line} of .*test_bad_input\.py calls K\.sqrt, .* Write keras\.ops\.sqrt instead"
    assert re.search(hint, raised.value.__notes__[-1])
    assert re.search(rf"permutation 0 failed, with {{'a': 1}}: .*{hint}", capsys.readouterr().err)


def test_a_metric_that_is_no_list_of_numbers():
    with pytest.raises(errors.TalosReturnError, match=r"'loss' in the history .*, got 3"):
        scan(model=returns(({"loss": 3}, None)))


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({}, "params must have a parameter to vary, got an empty dictionary"),
        ([1], "params must be a dictionary or a ParamSpace, got list. Pass a dictionary"),
        ({"lr": []}, r"params\['lr'\] must have at least one value, got an empty list"),
        ({"lr": 0.1}, r"params\['lr'\] must be a list .*, got 0.1. For one value, write \[0.1\]"),
        ({"lr": (1, 2)}, r"params\['lr'\] must be \(start, end, steps\) .*, got \(1, 2\)"),
        ({"lr": (1, 1, 5)}, "two different numbers"),
        ({"lr": ("a", "b", "c")}, "To list the values themselves, write a list"),
    ],
)
def test_params(params, text):
    with pytest.raises(PacelineError, match=text):
        scan(params)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"model": keras.Sequential()},
            "model must be a function, got Sequential. Pass a function",
        ),
        ({"model": "model"}, "model must be a function, got str"),
        (
            {"model": lambda params: params},
            r"model must take x_train, .*, but <lambda>\(\) does not",
        ),
        ({"resume": True}, "resume needs experiment_dir"),
        ({"experiment_dir": "none", "resume": True}, r"resume: .*metadata\.json is missing"),
        ({"stop_after": 0}, "stop_after must be a positive integer, got 0"),
        ({"val_split": 1.5}, "val_split must be at least 0 and below 1, got 1.5"),
        ({"x_val": X}, "x_val and y_val belong together"),
        ({"random_method": "dice"}, "random_method must be one of uniform_mersenne.*, got 'dice'"),
        ({"fraction_limit": 0.001}, "fraction_limit and round_limit .*, got 0.001 of 2"),
        ({"time_limit": "soon"}, "time_limit must be a date and time .*, got 'soon'"),
        ({"boolean_limit": lambda p: False}, "boolean_limit must be true for some"),
        ({"reduction_method": "magic"}, "reduction_method must be .*correlation.*, got 'magic'"),
        ({"performance_target": 0.9}, "performance_target must be .*, got 0.9"),
        ({"search_method": "up"}, "search_method must be 'random'.*, got 'up'"),
        ({"n_trials": 3}, "Scan has no argument 'n_trials'"),
        (
            {"grid_downsample": 0.5, "fraction_limit": 0.1},
            "grid_downsample is the older name of fraction_limit",
        ),
    ],
)
def test_arguments(arguments, text, fresh_folder):
    with pytest.raises(PacelineError, match=text):
        scan(**arguments)
    assert not list(fresh_folder.iterdir())


def test_data_that_do_not_belong_together():
    with pytest.raises(
        errors.TalosDataError, match="x and y must have the same number of examples, got 90 and 89"
    ):
        talos.Scan(X, Y[:-1], {"a": [1]}, no_training, "test")
    with pytest.raises(errors.TalosTypeError, match="or multi_input=True"):
        talos.Scan([X, X], Y, {"a": [1]}, no_training, "test")


def test_a_strategy_that_is_not_there():
    with pytest.raises(
        errors.TalosParamsError, match=r"needs talos_strategy\.py in the working folder"
    ):
        scan(reduction_method="local_strategy")


def test_a_metric_that_is_not_there():
    with pytest.raises(
        errors.TalosParamsError, match="reduction_metric must be one of .*, got 'f1'"
    ):
        scan(
            {"a": [1, 2, 3, 4]},
            reduction_method="pearson",
            reduction_interval=3,
            reduction_metric="f1",
        )
    with pytest.raises(
        errors.TalosParamsError, match="performance_target must be one of .*, got 'f1'"
    ):
        scan(performance_target=["f1", 0.5, False])
