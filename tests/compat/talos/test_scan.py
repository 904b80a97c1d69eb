"""A scan: what is tried, in which order, what comes of it."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest

from compat.talos.notebook import PARAMS, X, Y, classifier, no_training
from paceline.compat import talos
from paceline.compat.talos import kept_models
from paceline.compat.talos.errors import TalosModelError, TalosParamsError
from paceline.compat.talos.evaluate import split
from toys import CLASSES


def scan(params, model=no_training, **arguments):
    return talos.Scan(X, Y, params, model, "test", disable_progress_bar=True, **arguments)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A scan of four permutations, saved in both ways."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("scan"))
        found = talos.Scan(
            X, Y, PARAMS, classifier, "trained", seed=5, save_models=True, disable_progress_bar=True
        )
        found.log_path = found.log_path.absolute()
        found.saved_in = Path(found.experiment_name, found.experiment_id).absolute()
    return found


# -- results ---------------------------------------------------------------------------------------


def test_each_permutation_is_as_alone(trained):
    x_train, y_train, x_val, y_val = split(X, Y, 0.3, seed=5)
    for row, seed in ((1, 6), (3, 8)):
        params = {name: trained.data[name][row] for name in PARAMS}
        params["first_neuron"] = int(params["first_neuron"])
        keras.utils.set_random_seed(seed)
        history, model = classifier(x_train, y_train, x_val, y_val, params)
        for name, values in history.history.items():
            # Sums in another order, as everywhere in packs: 1e-6 at most here.
            np.testing.assert_allclose(trained.round_history[row][name], values, 1e-4, 1e-5)
        for got, want in zip(trained.saved_weights[row], model.get_weights(), strict=True):
            np.testing.assert_allclose(got, want, 1e-4, 1e-5)


def test_results_read_as_in_talos(trained):
    times = ["start", "end", "duration", "round_epochs"]
    assert list(trained.data)[:4] == times
    assert set(trained.data) == {*times, "loss", "acc", "val_loss", "val_acc", *PARAMS}
    assert trained.data["round_epochs"].tolist() == [2] * 4
    assert trained.data["lr"].tolist() == [0.001, 0.03, 0.001, 0.03]
    assert trained.data["dropout"].tolist() == pytest.approx([0.1, 0.1, 0.3, 0.3])
    for row, history in enumerate(trained.round_history):
        assert trained.data["val_loss"][row] == history["val_loss"][-1]
    assert list(trained.round_times) == ["start", "end", "duration"]
    assert all(re.fullmatch(r"\d\d/\d\d/\d\d-\d{6}", start) for start in trained.data["start"])
    assert list(trained.learning_entropy) == ["acc", "loss"] or set(trained.learning_entropy) == {
        "acc",
        "loss",
    }
    assert (trained.learning_entropy >= 0).all(axis=None)
    assert trained.peak_epochs["val_loss"].tolist() == [
        int(np.argmin(history["val_loss"])) for history in trained.round_history
    ]
    assert trained.details["experiment_name"] == "trained"
    assert trained.details["x_shape"] == (90, 6)
    assert (trained.details["rounds"], trained.details["failed"]) == (4, 0)
    assert trained.params is PARAMS
    assert trained.x is X
    assert repr(trained) == "<Scan trained: 4 permutations>"


def test_the_log_is_the_table(trained):
    log = pd.read_csv(trained.log_path)
    pd.testing.assert_frame_equal(log, trained.data, check_dtype=False)


def test_the_best_model_is_there_from_memory_and_from_its_file(trained):
    best = int(trained.data["val_acc"].idxmax())
    worst = int(trained.data["val_loss"].idxmax())
    for metric, asc, row in (("val_acc", False, best), ("val_loss", False, worst)):
        weights = trained.saved_weights[row]
        for saved in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(trained.saved_in.parents[1])
                model = trained.best_model(metric, asc, saved=saved)
            for got, want in zip(model.get_weights(), weights, strict=True):
                np.testing.assert_array_equal(got, want)
    assert json.loads(trained.saved_models[best])["class_name"] == "Sequential"


def test_a_metric_answers_to_both_names_of_accuracy(trained):
    assert trained.best_row("val_accuracy", False) == trained.best_row("val_acc", False)
    with pytest.raises(TalosParamsError, match=r"metric must be one of start, end.*, got 'f1'"):
        trained.best_row("f1", False)


@pytest.mark.slow
def test_models_may_be_left_out():
    found = scan(PARAMS, classifier, round_limit=1, save_weights=False)
    assert found.saved_weights == found.saved_models == [None]
    with pytest.raises(TalosModelError, match="Scan with save_weights=True"):
        found.best_model()
    with pytest.raises(TalosModelError, match="Scan with save_models=True"):
        found.best_model(saved=True)


def test_a_parameter_may_be_called_like_a_metric():
    found = scan({"loss": [1.0, 2.0]})
    assert found.data["param__loss"].tolist() == [1.0, 2.0]
    assert found.data["loss"].tolist() == [1.0, 2.0]  # the last epoch's
    assert found.parameter_columns == {"loss": "param__loss"}
    twice = scan({"loss": [1.0], "param__loss": [2.0]}).parameter_columns
    assert twice == {"loss": "param__param__loss", "param__loss": "param__loss"}


# -- what is tried ---------------------------------------------------------------------------------


def test_all_permutations_in_order():
    found = scan({"a": [1, 2], "b": (0, 6, 3), "c": ["x"]})
    assert found.data[["a", "b", "c"]].to_numpy().tolist() == [
        [a, b, "x"] for a in (1, 2) for b in (0, 2, 4)
    ]


def test_values_reach_the_function_as_they_are():
    seen = []

    def model(x_train, y_train, x_val, y_val, params):
        seen.append(dict(params))
        params["optimizer"] = None  # its own copy
        return {"loss": [1.0]}, None

    optimizers = [keras.optimizers.Adam, None, (1, 2)]
    found = scan({"optimizer": optimizers, "n": [3]}, model)
    assert [params["optimizer"] for params in seen] == optimizers
    assert all(type(params["n"]) is int for params in seen)
    assert found.data["optimizer"].tolist() == optimizers
    assert pd.read_csv(found.log_path)["optimizer"].tolist()[0] == "Adam"


@pytest.mark.parametrize(
    ("limits", "n"),
    [
        ({"fraction_limit": 0.5}, 10),
        ({"round_limit": 3}, 3),
        ({"round_limit": 300}, 20),
        ({"boolean_limit": lambda p: p["a"] * p["b"] > 30}, 3),
        ({"time_limit": "2020-01-01 00:00"}, 0),
        ({"time_limit": "2999-01-01 00:00"}, 20),
    ],
)
def test_limits(limits, n):
    found = scan({"a": [1, 2, 3, 4, 5], "b": [2, 5, 7, 9]}, seed=1, **limits)
    assert len(found.data) == n
    assert len(found.data.drop_duplicates(["a", "b"])) == n if n else True


def test_the_seed_decides_what_is_drawn():
    def tried(seed):
        return scan({"a": list(range(50))}, round_limit=5, seed=seed).data["a"].tolist()

    assert tried(1) == tried(1) != tried(2)


def test_a_target_ends_the_scan():
    found = scan({"a": list(range(40))[::-1]}, performance_target=["loss", 30.0, True])
    assert found.data["loss"].min() <= 30.0
    assert len(found.data) < 40
    found = scan({"a": [0, 1, 2]}, performance_target=["val_acc", 0.9, False])
    assert found.data["a"].tolist() == [0]


@pytest.mark.parametrize(("epochs", "rows"), [([1, 1, 1, 1], 2), ([4, 3, 1, 1], 2)])
def test_a_target_leaves_the_rows_that_talos_has(epochs, rows):
    """All train in one pack; permutations behind the first that reaches the target may end first.

    The fourth reaches the target as well, and where epochs differ it ends before the second.
    """

    def model(x_train, y_train, x_val, y_val, params):
        model = keras.Sequential([keras.layers.Dense(CLASSES, activation="softmax")])
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        n = params["at"]
        found = model.fit(x_train, y_train, epochs=epochs[n], batch_size=32, verbose=0).history
        return {**found, "reached": [0.0] * (epochs[n] - 1) + [float(n in (1, 3))]}, model

    params = {"at": [0, 1, 2, 3]}
    target = ["reached", 1.0, False]
    found = scan(params, model, performance_target=target, seed=1, save_models=True)
    assert found.data["at"].tolist() == [0, 1]
    assert [len(h["loss"]) for h in found.round_history] == epochs[:2]
    assert len(found.saved_models) == len(found.saved_weights) == len(found.data) == rows
    assert pd.read_csv(found.log_path)["at"].tolist() == [0, 1]
    files = sorted(path.name for path in (found.run_dir / "models").glob("*.keras"))
    assert files == ["0.keras", "1.keras"]


def checkpointing(x_train, y_train, x_val, y_val, params):
    """As Talos' users write it: the best epoch's weights go into one file and come back."""
    model = keras.Sequential([keras.layers.Dense(CLASSES, activation="softmax")])
    model.compile(keras.optimizers.SGD(params["lr"]), "sparse_categorical_crossentropy")
    keep = keras.callbacks.ModelCheckpoint(
        "best.weights.h5", "loss", save_best_only=True, save_weights_only=True
    )
    history = model.fit(x_train, y_train, epochs=2, batch_size=32, callbacks=[keep], verbose=0)
    model.load_weights("best.weights.h5")
    return history, model


@pytest.mark.parametrize("concurrent", [None, False])
def test_permutations_that_share_a_file_have_their_own_weights(concurrent, capsys):
    found = scan({"lr": [0.001, 0.1]}, checkpointing, seed=5, concurrent=concurrent)
    parts = split(X, Y, 0.3, seed=5)
    for row, lr in enumerate([0.001, 0.1]):
        keras.utils.set_random_seed(5 + row)
        _, model = checkpointing(*parts, {"lr": lr})
        for got, want in zip(found.saved_weights[row], model.get_weights(), strict=True):
            np.testing.assert_allclose(got, want, 1e-4, 1e-5)
    said = "talos: permutations run one at a time, in order: ModelCheckpoint writes to '"
    assert (said in capsys.readouterr().err) == (concurrent is None)


def test_a_param_space_is_taken():
    space = talos.ParamSpace({"a": [1, 2, 3, 4]})
    space.remove_ge("a", 4)
    space.remove_is("a", 2)
    assert scan(space).data["a"].tolist() == [1, 3]


def test_validation_data_may_be_given():
    seen = []

    def model(*arguments):
        seen.append([len(part) for part in arguments[:4]])
        return {"loss": [1.0]}, None

    scan({"a": [1]}, model, x_val=X[:7], y_val=Y[:7])
    scan({"a": [1]}, model, val_split=0.2)
    assert seen == [[90, 90, 7, 7], [72, 72, 18, 18]]


def test_several_inputs():
    def model(x_train, y_train, x_val, y_val, params):
        assert [part.shape for part in x_train] == [(62, 6), (62, 2)]
        np.testing.assert_array_equal(x_train[0][:, :2], x_train[1])
        return {"loss": [1.0]}, None

    found = talos.Scan(
        [X, X[:, :2]], Y, {"a": [1]}, model, "test", multi_input=True, disable_progress_bar=True
    )
    assert found.details["x_shape"] == "multi-input"


# -- reductions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["correlation", "pearson", "spearman", "kendall", "trees", "forrest"]
)
def test_a_reduction_takes_out_what_does_badly(method):
    params = {"bad": [0, 100], "other": list(range(10))}
    found = scan(
        params,
        reduction_method=method,
        reduction_interval=8,
        reduction_metric="loss",
        minimize_loss=True,
        seed=4,
        search_method="random",
    )
    tried = found.data["bad"].tolist()
    assert 100 in tried[:8]
    assert tried.count(100) < 10
    assert tried.count(0) == 10


def test_a_reduction_may_be_a_function_of_the_users():
    def reducer(scan):
        assert len(scan.data) == 2
        return ("a", 4)

    found = scan({"a": [1, 2, 3, 4]}, reduction_method=reducer, reduction_interval=2)
    assert found.data["a"].tolist() == [1, 2, 3]


def test_a_strategy_of_the_users_own_file():
    Path("talos_strategy.py").write_text(
        "def local_strategy(scan):\n    scan.param_object.remove_ge('a', 3)\n"
    )
    found = scan({"a": [1, 2, 3, 4]}, reduction_method="local_strategy")
    assert found.data["a"].tolist() == [1, 2]


def test_gamify_disables_what_a_file_says():
    def model(x_train, y_train, x_val, y_val, params):
        for path in Path("test").glob("*.json"):
            states = json.loads(path.read_text())
            states["0"]["3"][0] = "disabled"
            path.write_text(json.dumps(states))
        return {"loss": [1.0]}, None

    found = scan({"a": [1, 2, 3, 4]}, model, reduction_method="gamify")
    assert found.data["a"].tolist() == [1, 2, 3]


# -- models of the user's own ----------------------------------------------------------------------


def test_only_what_json_does_not_bring_back_is_kept_as_it_is(trained):
    assert trained.best_model() is not trained.best_model()  # rebuilt, without its optimizer
    kept = scan(
        {"first_neuron": [6], "dropout": [0.1], "lr": [0.1]}, classifier, retain_models=True
    )
    assert kept.best_model() is kept.best_model()


def mine(y_true, y_pred):
    return keras.ops.mean(y_pred)


@pytest.mark.parametrize(
    ("metric", "complete", "needed"),
    [
        ("mae", True, False),
        (keras.metrics.AUC(), True, False),
        (talos.metrics.f1score(), True, False),
        (talos.metrics.f1score, False, False),  # Keras writes no class
        (mine, True, True),
    ],
)
def test_which_models_json_does_not_bring_back(metric, complete, needed):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=[metric])
    text, whole = kept_models.to_json(model)
    assert (whole, kept_models.needs_objects(text)) == (complete, needed)
    kept_models.save(model, Path("model.keras"))
    found = kept_models.load("model.keras")
    np.testing.assert_array_equal(found.get_weights()[0], model.get_weights()[0])


def test_a_metric_that_is_a_class_is_kept_saved_and_deployed():
    def model(x_train, y_train, x_val, y_val, params):
        made = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
        made.compile("sgd", "sparse_categorical_crossentropy", metrics=[talos.metrics.f1score])
        return {"loss": [1.0]}, made

    found = scan({"a": [1]}, model, save_models=True)
    want = found.best_model("loss").get_weights()[0]
    assert found.best_model("loss").compiled
    assert json.loads(found.saved_models[0])["class_name"] == "Sequential"
    restored = talos.Restore(talos.Deploy(found, "f1", "loss").path).model
    for made in (found.best_model("loss", saved=True), restored):
        np.testing.assert_array_equal(made.get_weights()[0], want)


def test_a_model_that_cannot_be_saved_is_kept_in_memory(capsys):
    class Mine(keras.Model):
        def __init__(self, width, *, secret):
            super().__init__()
            self.inner = keras.layers.Dense(width)
            self.secret = secret

        def call(self, x):
            return self.inner(x)

        def get_config(self):
            raise NotImplementedError("secret")

    def model(x_train, y_train, x_val, y_val, params):
        made = Mine(1, secret=object())
        made(x_train[:1])
        return {"loss": [1.0]}, made

    found = scan({"a": [1]}, model, save_models=True)
    assert found.best_model("loss").predict(X, verbose=0).shape == (90, 1)
    assert "save_models: the model of permutation 0 stays in memory" in capsys.readouterr().err


def test_a_model_that_all_permutations_share_has_each_ones_weights():
    shared = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])

    def model(x_train, y_train, x_val, y_val, params):
        shared.compile("sgd", "mse", metrics=[mine])
        shared.set_weights([np.full((6, 1), params["a"]), np.zeros(1)])
        return {"loss": [float(params["a"])]}, shared

    found = scan({"a": [1.0, 2.0, 3.0]}, model)
    for row, value in enumerate((1.0, 2.0, 3.0)):
        assert found.activate(row).get_weights()[0].tolist() == [[value]] * 6


def test_a_file_of_a_model_with_an_own_metric_predicts(capsys):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[mine])
    model.save("model.keras")
    found = kept_models.load("model.keras")
    np.testing.assert_array_equal(found.predict(X, verbose=0), model.predict(X, verbose=0))
    assert not found.compiled
    text = capsys.readouterr().err
    assert "talos: model.keras: the model can predict, but is not compiled, because" in text
    assert "Could not locate function 'mine'" in text
    assert kept_models.load("model.keras", {"mine": mine}).compiled


# -- failures --------------------------------------------------------------------------------------


def test_a_permutation_that_fails_does_not_end_the_scan(capsys):
    def model(x_train, y_train, x_val, y_val, params):
        if params["lr"] == 0.002:
            raise ValueError("no such rate")
        return classifier(x_train, y_train, x_val, y_val, params)

    found = scan({**PARAMS, "dropout": [0.1], "lr": [0.001, 0.002, 0.003]}, model)
    assert found.data["lr"].tolist() == [0.001, 0.003]
    assert found.failures == [
        {
            "params": {"first_neuron": 6, "dropout": 0.1, "lr": 0.002},
            "error": "ValueError: no such rate",
        }
    ]
    assert found.details["failed"] == 1
    assert len(found.saved_weights) == 2
    assert "permutation 1 failed, with {'first_neuron': 6" in capsys.readouterr().err
    assert repr(found) == "<Scan test: 2 permutations, 1 failed>"


# -- spellings -------------------------------------------------------------------------------------


def test_spellings_of_2018(capsys):
    found = talos.Scan(
        X,
        Y,
        params={"a": list(range(20))},
        model=no_training,
        dataset_name="digits",
        experiment_no="1",
        grid_downsample=0.5,
        permutation_filter=lambda p: p["a"] < 15,
        reduce_loss=True,
        clear_tf_session=False,
        last_epoch_value=False,
        search_method="reverse",
        seed=2,
        debug=True,
        disable_progress_bar=True,
    )
    assert found.experiment_name == "digits_1"
    assert 1 <= len(found.data) <= 10
    assert (found.data["a"] < 15).all()
    assert found.minimize_loss
    assert found.fraction_limit == 0.5
    assert found.data["loss"].tolist() == [min(h["loss"]) for h in found.round_history]
    assert capsys.readouterr().err == "talos: debug has no effect here\n"


def test_the_call_of_the_article(capsys):
    """``ta.Scan(x, y, params, function)``: in 2018 a name was optional, and epochs were peaks."""
    found = talos.Scan(X, Y, {"a": [1, 2]}, no_training)
    assert found.log_path.parent == Path("talos_scans")
    assert found.log_path.is_file()
    assert found.data["loss"].tolist() == [1.0, 2.0]
    assert found.data["val_acc"].tolist() == [max(h["val_acc"]) for h in found.round_history]
    lines = capsys.readouterr().err.splitlines()[:2]
    assert [line.split()[1] for line in lines] == ["last_epoch_value", "experiment_name"]


def test_best_epochs_are_for_2018_only():
    def model(x_train, y_train, x_val, y_val, params):
        return {"loss": [1.0, 5.0]}, None

    def values(**arguments):
        return scan({"a": [1]}, model, **arguments).data["loss"].tolist()

    assert values() == values(grid_downsample=1, last_epoch_value=True) == [5.0]
    assert values(reduce_loss=True) == [1.0]


def test_every_argument_of_talos_is_there():
    names = """x y params model experiment_name x_val y_val val_split multi_input random_method seed
        performance_target fraction_limit round_limit time_limit boolean_limit reduction_method
        reduction_interval reduction_window reduction_threshold reduction_metric minimize_loss
        disable_progress_bar print_params clear_session save_weights save_models options"""
    assert list(inspect.signature(talos.Scan).parameters) == names.split()


def test_print_params(capsys):
    scan({"a": [1, 2]}, print_params=True)
    assert capsys.readouterr().err == "talos: {'a': 1}\ntalos: {'a': 2}\n"


def test_progress_is_one_line_where_there_is_no_terminal(capsys):
    talos.Scan(X, Y, {"a": [1, 2]}, no_training, "test")
    line = capsys.readouterr().err
    assert re.fullmatch(r"\[#{24}\] 2/2 permutations, [\d.]+ s, best val_acc 0\.5000\n", line)


def test_a_scan_that_begins_no_permutation_says_why(capsys):
    space = talos.ParamSpace({"a": [1]})
    scan(space, no_training)
    capsys.readouterr()
    assert len(scan(space, no_training).data) == 0
    assert "no permutation began: the space has no permutation left" in capsys.readouterr().err
    scan({"a": [1]}, no_training, time_limit="2020-01-01 00:00")
    told = "no permutation began: time_limit 2020-01-01 00:00 is in the past"
    assert told in capsys.readouterr().err
