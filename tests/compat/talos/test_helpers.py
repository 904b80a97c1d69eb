"""What notebooks import beside Scan: parts of models, utils, metrics, callbacks, templates."""

from __future__ import annotations

import importlib
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import keras
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk

from compat.talos.notebook import X, Y
from paceline.compat import talos
from paceline.compat.talos import errors
from paceline.compat.talos.evaluate import outputs
from paceline.compat.talos.model import network_shape
from paceline.errors import MissingExtraError

# -- paths -----------------------------------------------------------------------------------------

IMPORTS = """
scan.Scan Scan | commands.analyze Analyze | commands.reporting Reporting | commands.deploy Deploy
commands.evaluate Evaluate | commands.predict Predict | commands.restore Restore
parameters.ParamSpace ParamSpace | parameters.DistributeParamSpace DistributeParamSpace
model.normalizers lr_normalizer | model.layers hidden_layers | model.early_stopper early_stopper
model.hidden_layers hidden_layers | model.output_layer output_layer | model lr_normalizer
metrics.keras_metrics fmeasure_acc | utils.metrics f1score | utils gpu_utils | utils.exceptions
TalosParamsError | utils.gpu_utils parallel_gpu_jobs | utils.recover_best_model recover_best_model
callbacks.experiment_log ExperimentLog | autom8 AutoParams | templates.datasets iris
"""


def test_paths_that_people_import():
    for pair in IMPORTS.replace("\n", " | ").replace("exceptions | ", "exceptions ").split("|"):
        if not pair.strip():
            continue
        path, name = pair.split()
        module = importlib.import_module(f"paceline.compat.talos.{path}")
        assert getattr(module, name) is not None, pair


@pytest.mark.slow
def test_a_path_is_found_first_of_all(child_environment):
    code = (
        "from paceline.compat.talos.model.normalizers import lr_normalizer as f; print(f(1, 'sgd'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "0.01\n"), done.stderr


# -- parts of models -------------------------------------------------------------------------------


def test_learning_rates():
    kinds = keras.optimizers
    assert [
        talos.utils.lr_normalizer(2, kind) for kind in (kinds.SGD, kinds.Adam, kinds.Adamax)
    ] == [
        0.02,
        0.002,
        0.004,
    ]
    assert talos.utils.lr_normalizer(1, kinds.RMSprop()) == talos.utils.lr_normalizer(1, "rmsprop")
    with pytest.raises(errors.TalosModelError, match="optimizer must be one of .*, got Lion"):
        talos.utils.lr_normalizer(1, kinds.Lion)


@pytest.mark.parametrize(
    ("shape", "widths"),
    [
        ("brick", [32, 32, 32]),
        ("funnel", [22, 12, 2]),
        ("triangle", [9, 17, 24]),
        (0.5, [16, 8, 4]),
        (0.9, [3, 2, 2]),
    ],
)
def test_shapes_of_networks(shape, widths):
    params = {"hidden_layers": 3, "first_neuron": 32, "shapes": shape}
    assert network_shape(params, 2) == widths


def test_hidden_layers():
    params = {
        "hidden_layers": 2,
        "first_neuron": 8,
        "shapes": "brick",
        "dropout": 0.3,
        "activation": "elu",
        "use_bias": False,
    }
    model = keras.Sequential([keras.Input((4,))])
    talos.utils.hidden_layers(model, params, 1)
    assert [type(layer).__name__ for layer in model.layers] == ["Dense", "Dropout"] * 2
    assert [model.layers[0].units, model.layers[1].rate, model.layers[2].use_bias] == [
        8,
        0.3,
        False,
    ]
    del params["dropout"]
    with pytest.raises(errors.TalosParamsError, match="params must have 'dropout'"):
        talos.utils.hidden_layers(model, params, 1)
    with pytest.raises(errors.TalosParamsError, match="shapes must be .*, got 'round'"):
        network_shape({**params, "shapes": "round"}, 1)


@pytest.mark.parametrize(
    ("arguments", "patience", "min_delta"),
    [
        ({"epochs": 30}, 3, 0),
        ({"epochs": 30, "mode": "lazy"}, 10, 0),
        ({"mode": "strict"}, 2, 0),
        ({"mode": [0.01, 7]}, 7, 0.01),
        ({"mode": None, "patience": 4}, 4, 0),
    ],
)
def test_early_stoppers(arguments, patience, min_delta):
    made = talos.utils.early_stopper(monitor="loss", **arguments)
    assert (made.monitor, made.patience, abs(made.min_delta)) == ("loss", patience, min_delta)


def test_early_stoppers_that_cannot_be():
    with pytest.raises(errors.TalosParamsError, match="mode 'moderate' needs epochs"):
        talos.utils.early_stopper()
    with pytest.raises(errors.TalosParamsError, match="mode must be .*, got 'calm'"):
        talos.utils.early_stopper(3, mode="calm")


# -- utils -----------------------------------------------------------------------------------------


def test_batches():
    sequence = talos.utils.SequenceGenerator(X, Y, batch_size=40)
    assert [len(sequence[i][0]) for i in range(len(sequence))] == [40, 40, 10]
    batches = talos.utils.generator(X, Y, 50)
    assert [next(batches)[0].shape for _ in range(3)] == [(50, 6), (40, 6), (50, 6)]


def test_splits():
    x_train, y_train, x_val, y_val = talos.utils.val_split(pd.DataFrame(X), Y, 0.2, seed=1)
    assert [len(part) for part in (x_train, y_train, x_val, y_val)] == [72, 72, 18, 18]
    np.testing.assert_array_equal(X[x_val.index], x_val)
    np.testing.assert_array_equal(Y[x_val.index], y_val)
    assert talos.utils.val_split(X, Y, 0.2, shuffled=False)[2].tolist() == X[72:].tolist()


def test_rescaling():
    found = talos.utils.rescale_meanzero(np.array([[1.0, 5.0], [3.0, 5.0]]))
    assert found == pytest.approx(np.array([[-(0.5**0.5), 0], [0.5**0.5, 0]]))


def test_the_best_permutations_of_a_log_are_trained_again():
    rows = {"val_acc": [0.1, 0.9, 0.5], "units": [1, 2, 3], "rate": [0.1, 0.2, 0.3]}
    pd.DataFrame(rows).to_csv("log.csv", index=False)
    seen = []

    class Model:
        def predict(self, x):
            return np.eye(3)[Y[: len(x)]]

    def model(x_train, y_train, x_val, y_val, params):
        seen.append(params)
        return None, Model()

    table, models = talos.utils.recover_best_model(
        X, Y, X, Y, "log.csv", model, "val_accuracy", n_models=2, folds=1
    )
    assert seen == [{"units": 2, "rate": 0.2}, {"units": 3, "rate": 0.3}]
    assert all(type(params["units"]) is int for params in seen)
    assert len(models) == 2
    assert table["val_acc"].tolist() == [0.9, 0.5]
    assert table["crossval_mean_f1score"].between(0, 1).all()
    space = talos.utils.create_param_space(pd.DataFrame(rows), no_of_metrics=1)
    assert space.p == {"units": [1, 2, 3], "rate": [0.1, 0.2, 0.3]}


@pytest.mark.parametrize("sorted_since", [False, True])
def test_the_log_of_a_killed_scan_keeps_its_rows_and_params_together(sorted_since):
    scan = talos.Scan(X, Y, {"size": [(1, 1), (2, 2), (3, 3)]}, sizes, "test", seed=1)
    ended = [2, 0, 1]  # permutations end in another order than they begin
    rounds = scan.run_dir / "round_data.jsonl"
    lines = rounds.read_text().splitlines(keepends=True)
    rounds.write_text("".join(lines[n] for n in ended))
    scan.data.iloc[sorted(ended) if sorted_since else ended].to_csv(scan.log_path, index=False)
    seen = []

    def again(*arguments):
        seen.append(arguments[-1]["size"])
        return None, SimpleNamespace(predict=lambda x: np.eye(3)[Y[: len(x)]])

    talos.utils.recover_best_model(X, Y, X, Y, scan.log_path, again, "loss", folds=1)
    assert seen == [(1, 1), (2, 2), (3, 3)]


def test_params_of_a_log_are_those_of_its_columns_where_the_scan_left_no_line():
    scan = talos.Scan(X, Y, {"size": [1, 2]}, sizes, "test", seed=1)
    (scan.run_dir / "round_data.jsonl").write_text("")
    seen = []

    def again(*arguments):
        seen.append(arguments[-1])
        return None, SimpleNamespace(predict=lambda x: np.eye(3)[Y[: len(x)]])

    talos.utils.recover_best_model(X, Y, X, Y, scan.log_path, again, "loss", folds=1)
    assert seen == [{"size": 1}, {"size": 2}]


def sizes(x_train, y_train, x_val, y_val, params):
    return {"loss": [float(np.sum(params["size"]))]}, None


def test_a_module_of_torch_is_called(monkeypatch):
    class Module:
        training = True

        def eval(self):
            self.training = False

        def train(self, mode):
            self.training = mode

        def __call__(self, x):
            assert not self.training
            self.found = 2 * x
            return self

        def detach(self):
            return self

        def cpu(self):
            return self

        def numpy(self):
            return self.found

    Module.__module__ = "torch.nn"
    torch = SimpleNamespace(no_grad=nullcontext, as_tensor=lambda x, dtype: x, float32=None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    module = Module()
    np.testing.assert_array_equal(outputs(module, X), 2 * X)
    assert module.training
    with pytest.raises(
        errors.TalosModelError, match="model must have a method predict, got object"
    ):
        outputs(object(), X)


def test_what_need_not_be_arranged_is_said(capsys):
    model = object()
    talos.utils.gpu_utils.parallel_gpu_jobs(0.5)
    assert talos.utils.gpu_utils.multi_gpu(model) is model
    talos.utils.gpu_utils.force_cpu()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["parallel_gpu_jobs:", "multi_gpu"]


# -- metrics ---------------------------------------------------------------------------------------


def test_metrics_of_numbers():
    truth, found = np.array([1.0, 2.0, 4.0]), np.array([[1.5], [2.0], [3.0]])
    column = truth[:, None]
    m = talos.utils.metrics
    for name, expected in {
        "mae": abs(column - found),
        "mse": (column - found) ** 2,
        "rmae": abs(column - found) ** 0.5,
        "rmse": abs(column - found),
        "mape": 100 * abs(column - found) / column,
        "msle": (np.log1p(column) - np.log1p(found)) ** 2,
        "rmsle": abs(np.log1p(column) - np.log1p(found)),
    }.items():
        for shape in (truth, column):
            got = np.asarray(getattr(m, name)(shape, found))
            assert got == pytest.approx(expected[:, 0], rel=1e-5), name


@pytest.mark.parametrize("n_classes", [2, 3])
def test_metrics_of_classes_count_over_batches(n_classes):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, n_classes, 60)
    outputs = rng.random((60, n_classes if n_classes > 2 else 1)).astype("float32")
    found = outputs.argmax(-1) if n_classes > 2 else (outputs[:, 0] >= 0.5).astype(int)
    average = "macro" if n_classes > 2 else "binary"
    m = talos.metrics
    expected = {
        m.precision: sk.precision_score(truth, found, average=average),
        m.recall: sk.recall_score(truth, found, average=average),
        m.f1score: sk.f1_score(truth, found, average=average),
        m.fbeta: sk.fbeta_score(truth, found, beta=1, average=average),
        m.matthews: sk.matthews_corrcoef(truth, found),
    }
    for kind, value in expected.items():
        metric = kind()
        # Batches of one size: each operation compiles once.
        metric.update_state(np.zeros(15, "int64"), outputs[:15])
        metric.reset_state()
        for start in range(0, 60, 15):
            y = truth[start : start + 15]
            y = np.eye(n_classes)[y] if n_classes > 2 and start else y
            metric.update_state(y, outputs[start : start + 15])
        assert float(metric.result()) == pytest.approx(value, abs=1e-6), kind


def test_metrics_in_a_model():
    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    m = talos.metrics
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[m.f1score, m.matthews])
    history = model.fit(X, Y, epochs=1, verbose=0).history
    assert set(history) == {"loss", "f1score", "matthews"}


# -- callbacks -------------------------------------------------------------------------------------


def test_the_log_of_epochs():
    log = talos.callbacks.ExperimentLog("logs", {"units": 3, "kind": keras.optimizers.Adam})
    log.on_train_begin()
    for epoch in range(2):
        log.on_epoch_end(epoch, {"loss": 1.0 - epoch})
    table = pd.read_csv(log.name)
    assert list(table) == ["id", "epoch", "loss", "units", "kind"]
    assert table["loss"].tolist() == [1.0, 0.0]
    assert table["kind"].tolist() == ["Adam", "Adam"]


def test_power():
    watts = iter([10.0, 20.0, 30.0, 40.0])
    draw = talos.callbacks.PowerDraw(provider=lambda: next(watts))
    draw.on_train_begin()
    for epoch in range(2):
        draw.on_epoch_begin(epoch)
        draw.on_epoch_end(epoch)
    history = keras.callbacks.History()
    found = talos.utils.power_draw_append(history, draw).history
    assert (found["watts_min"], found["watts_max"]) == ([10.0], [40.0])
    seconds = draw.log["seconds"]
    assert found["Ws"] == [pytest.approx(15 * seconds[0] + 35 * seconds[1], abs=0.01)]


def test_power_without_a_gpu(monkeypatch):
    monkeypatch.setenv("PATH", "")
    draw = talos.callbacks.PowerDraw()
    draw.on_train_begin()
    with pytest.raises(MissingExtraError, match="needs nvidia-smi, which does not answer"):
        draw.on_epoch_begin(0)


# -- templates and autom8 --------------------------------------------------------------------------


def test_made_data_are_the_same_each_time_and_can_be_learnt():
    sets = talos.templates.datasets
    for function, shape, share in (
        (sets.titanic, (891, 21), 0.4),
        (sets.cervical_cancer, (668, 30), 0.1),
        (sets.icu_mortality, (3500, 40), 1 / 6),
    ):
        x, y = function()
        assert x.shape == shape
        assert y.mean() == pytest.approx(share, abs=0.01)
        np.testing.assert_array_equal(x, function()[0])
        scaled = (x - x.mean(axis=0)) / x.std(axis=0)
        weights = np.linalg.lstsq(scaled, y - y.mean(), rcond=None)[0]
        assert sk.roc_auc_score(y, scaled @ weights) > 0.7
    assert [len(part) for part in sets.icu_mortality(50)] == [50, 50]
    x, targets = sets.telco_churn(0.3)
    assert [round(float(y.mean()), 2) for y in targets] == [0.3, 0.7]
    assert sets.telco_churn(0)[1][0].dtype == float


@pytest.mark.slow
@pytest.mark.parametrize("name", ["titanic", "cervical_cancer"])
def test_a_template_on_made_data_scans(name, monkeypatch):
    params = getattr(talos.templates.params, name)()
    few = {"epochs": [1], "batch_size": [64], "hidden_layers": [1]}
    monkeypatch.setattr(talos.templates.params, name, lambda *debug: params | few)
    found = getattr(talos.templates.pipelines, name)(random_method="korobov_matrix")
    assert len(found.data) == 2
    assert np.isfinite(found.data["val_loss"]).all()


@pytest.mark.slow
def test_a_template_scans():
    x, y = talos.templates.datasets.iris()
    assert (x.shape, y.shape) == ((150, 4), (150, 3))
    params = {
        name: values[-1:] if isinstance(values, list) else [values[1]]
        for name, values in talos.templates.params.iris().items()
    }
    params |= {"epochs": [2], "hidden_layers": [1], "batch_size": [64], "lr": [1.0, 2.0]}
    model = talos.templates.models.iris
    found = talos.Scan(x, y, params, model, "iris", disable_progress_bar=True)
    assert {"val_acc", "val_f1score"} <= set(found.data)
    assert len(found.data) == 2


def test_auto_params():
    params = talos.AutoParams(task="continuous").params
    assert all(len(values) <= 4 for values in params.values())
    assert params["losses"] == ["mae"]
    one = talos.AutoParams({"lr": [9]}, replace=False, network=False, resample_params=1)
    assert one.params["lr"] == [9]
    assert one.params["network"] == ["dense"]
    assert {len(values) for values in one.params.values()} == {1}
    with pytest.raises(errors.TalosParamsError, match="task must be .*, got 'art'"):
        talos.AutoParams(task="art")


@pytest.mark.slow
def test_auto_scan_and_predict():
    params = talos.AutoParams(task="multi_class", network=False, resample_params=1).params
    params |= {"epochs": [1], "batch_size": [32], "hidden_layers": [1], "lr": [1]}
    scan = talos.AutoScan("multi_class", "auto").start(
        X, Y, params=params, disable_progress_bar=True
    )
    assert len(scan.data) == 1
    found = talos.AutoPredict(scan, X, Y, X[:5], "multi_class", "val_acc", n_models=1, folds=1)
    assert found.preds_probabilities.shape == (5, 3)
    assert found.preds_classes.shape == (5,)
    assert found.preds_parameters["epochs"] == 1
