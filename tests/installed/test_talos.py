"""The same notebook on Talos itself and on ours: same permutations, same numbers, same answers.

Talos runs Keras on JAX here, so that trained weights can be compared; TensorFlow, which cannot
share a process with that, runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import talos as theirs

from compat.talos.notebook import PARAMS, X, Y, classifier, no_training
from paceline.compat import talos as ours

# Talos' own: pandas 2 warns of what pandas 3 does, SciPy of its entropy.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
#: Sums in another order, as everywhere in packs.
RTOL, ATOL = 1e-4, 1e-5


#: Whose helpers ``stopped`` builds with: Talos takes no modules among the params.
TOOLS: list[Any] = []


def stopped(x_train, y_train, x_val, y_val, params):
    """Callbacks, two fits, Talos' helpers."""
    tools = TOOLS[-1]
    model = keras.Sequential([keras.Input((6,))])
    tools.utils.hidden_layers(model, params, 3)
    model.add(keras.layers.Dense(3, activation="softmax"))
    rate = tools.utils.lr_normalizer(params["lr"], keras.optimizers.Adam)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["acc"])
    model.fit(x_train, y_train, epochs=1, verbose=0)
    history = model.fit(
        x_train,
        y_train,
        validation_data=(x_val, y_val),
        epochs=6,
        callbacks=[tools.utils.early_stopper(6, mode=[0.05, 0])],
        verbose=0,
    )
    return history, model


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Theirs and ours, of each function."""
    found = {}
    more = {"hidden_layers": [1, 2], "shapes": ["triangle"], "activation": ["elu"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("scans"))
        for tool in (theirs, ours):
            arguments = {"seed": 4, "disable_progress_bar": True}
            plain = tool.Scan(X, Y, PARAMS, classifier, "plain", **arguments)
            params = {**PARAMS, **more, "lr": [30.0]}
            TOOLS.append(tool)
            found[tool] = plain, tool.Scan(X, Y, params, stopped, "stopped", **arguments)
    return found


@pytest.mark.parametrize("which", [0, 1])
def test_permutations_come_out_the_same(scans, which):
    one, other = scans[theirs][which], scans[ours][which]
    assert len(one.data) == len(other.data)
    for name in [*PARAMS, "round_epochs"]:
        assert one.data[name].tolist() == pytest.approx(other.data[name].tolist())
    for row, history in enumerate(one.round_history):
        assert set(history) == set(other.round_history[row])
        for name, values in history.items():
            np.testing.assert_allclose(other.round_history[row][name], values, RTOL, ATOL)
        weights = one.models[row].get_weights()
        for got, want in zip(other.saved_weights[row], weights, strict=True):
            np.testing.assert_allclose(got, want, RTOL, ATOL)


def test_epochs_were_stopped(scans):
    epochs = scans[ours][1].data["round_epochs"]
    assert epochs.min() < 6


def test_entropies_are_theirs(scans):
    one, other = scans[theirs][0].learning_entropy, scans[ours][0].learning_entropy
    for name in one:
        np.testing.assert_allclose(other[name], one[name], 1e-2, 1e-6)


def test_reports_are_theirs(scans):
    one = theirs.Analyze(scans[theirs][0])
    other = ours.Analyze(scans[ours][0])
    for method in ("high", "low", "rounds2high"):
        assert getattr(other, method)("val_acc") == pytest.approx(getattr(one, method)("val_acc"))
    assert one.rounds() == other.rounds()
    exclude = ["start", "end", "duration", "execution_time", "round_epochs", "first_neuron"]
    got, want = (each.correlate("val_loss", exclude) for each in (other, one))
    for name in ("lr", "dropout", "loss"):
        assert got[name] == pytest.approx(want[name], abs=1e-3)
    got, want = (each.best_params("val_loss", exclude, ascending=True) for each in (other, one))
    np.testing.assert_allclose(got.astype(float), want.astype(float))


def test_scores_and_predictions_are_theirs(scans):
    arguments = {"metric": "val_loss", "asc": True}
    found = [
        tool.Evaluate(scans[tool][0]).evaluate(X, Y, "multi_class", seed=3, **arguments)
        for tool in (ours, theirs)
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-3)
    found = [tool.Predict(scans[tool][0]).predict(X, **arguments) for tool in (ours, theirs)]
    np.testing.assert_allclose(found[0], found[1], RTOL, ATOL)


def test_we_read_what_they_deploy(scans, tmp_path):
    path = theirs.Deploy(scans[theirs][0], str(tmp_path / "theirs"), "val_loss", asc=True).path
    restored = ours.Restore(path)
    np.testing.assert_allclose(
        restored.model.predict(X, verbose=0),
        ours.Predict(scans[ours][0]).predict(X, "val_loss", True),
        RTOL,
        ATOL,
    )
    assert len(restored.results) == 4
    with pytest.raises(ours.errors.TalosDataError, match=r"params: params\.npy .* is pickled"):
        restored.params  # noqa: B018 - reading it is the test


def test_their_log_becomes_a_study(scans):
    import paceline

    scans[theirs][0].data.to_csv("log.csv", index=False)
    assert paceline.from_talos_csv("log.csv", objective="val_loss") == "log"


@pytest.mark.parametrize(
    "given", [(0, 10, 5), (0, 3, 6), (0.0, 1.0, 4), (5, 1, 4), [3, 3.5, "a", None]]
)
def test_values_expand_as_theirs(given):
    from talos.parameters.ParamSpace import ParamSpace

    assert ours.ParamSpace({"a": given}).p["a"] == ParamSpace({"a": given}).p["a"]


@pytest.mark.parametrize("shape", ["brick", "funnel", "triangle", 0.3])
@pytest.mark.parametrize("layers", [0, 1, 4])
def test_shapes_are_theirs(shape, layers):
    from talos.model.network_shape import network_shape

    params = {"hidden_layers": layers, "first_neuron": 37, "shapes": shape}
    assert ours.model.network_shape(params, 3) == network_shape(params, 3)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", ["precision", "recall", "f1score", "matthews"])
def test_metrics_are_theirs(name, n_classes):
    from talos.metrics import keras_metrics

    rng = np.random.default_rng(1)
    truth = rng.integers(0, n_classes, 50)
    outputs = rng.random((50, n_classes if n_classes > 2 else 1)).astype("float32")
    one, other = getattr(keras_metrics, name), getattr(ours.metrics, name)()
    for metric in (one, other):
        metric.update_state(truth[:20], outputs[:20])
        metric.update_state(truth[20:], outputs[20:])
    assert float(other.result()) == pytest.approx(float(one.result()), abs=1e-5)


@pytest.mark.parametrize(
    ("plot", "arguments"),
    [
        ("plot_line", ("loss",)),
        ("plot_hist", ("loss",)),
        ("plot_corr", ("loss", ["start", "end", "optimizer"])),
        ("plot_regs", ("lr", "loss")),
        ("plot_box", ("n", "loss")),
        ("plot_bars", ("n", "loss", "kind", "other")),
        ("plot_kde", ("loss",)),
        ("plot_kde", ("loss", "lr")),
    ],
)
def test_plots_are_drawn(plot, arguments, monkeypatch):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    params = {"lr": [0.1, 0.2, 0.4], "n": [1, 2], "kind": ["a", "b"], "other": ["c", "d"]}
    scan = ours.Scan(X, Y, params, no_training, "plots", disable_progress_bar=True)
    drawn = getattr(ours.Reporting(scan), plot)(*arguments)
    figure = getattr(drawn, "figure", drawn) or drawn
    figure.savefig(f"{plot}.png")
    assert os.path.getsize(f"{plot}.png") > 1000
    axes = figure.axes[0]
    assert axes.has_data() or axes.images
    labels = {axes.get_xlabel(), axes.get_ylabel()}
    assert plot == "plot_corr" or set(arguments[:1]) <= {
        *labels,
        *axes.get_xlabel().split(", "),
    } | {"loss"}
    pyplot.close("all")


ON_TENSORFLOW = """
import json, sys
import numpy as np
tool = __import__(sys.argv[1], fromlist=["Scan"])
from compat.talos.notebook import PARAMS, X, Y, classifier
scan = tool.Scan(X, Y, PARAMS, classifier, "tf", seed=4, disable_progress_bar=True)
report = tool.Reporting(scan)
best = tool.Predict(scan).predict(X, "val_loss", True)
print(json.dumps({"rows": len(scan.data), "lr": scan.data["lr"].tolist(),
                  "high": float(report.high("val_acc")), "shape": list(np.shape(best))}))
"""


@pytest.mark.parametrize("module", ["talos", "paceline.compat.talos"])
def test_on_tensorflow_the_notebook_runs_on_both(module):
    """Ours trains in Keras' own fit there, permutation after permutation."""
    done = subprocess.run(
        [sys.executable, "-c", ON_TENSORFLOW, module],
        env={
            **os.environ,
            "KERAS_BACKEND": "tensorflow",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["lr"] == [0.001, 0.03, 0.001, 0.03]
    assert found["shape"] == [90, 3]
    assert 0 <= found["high"] <= 1


def test_a_log_whose_trial_id_looks_like_a_number_is_read(tmp_path):
    """pandas 2.3 reads digits, an "e" and digits as a number, and this one ends the process."""
    log = tmp_path / "scan.csv"
    trial_id = "58e127015713299b34333c998f63479b4f5f868c126f0cb211742dd37837c379"
    log.write_text(f"loss,val_loss,lr,_trial_id\n0.5,0.4,3,{trial_id}\n")
    code = (
        "import sys; from paceline.compat.talos import Analyze; "
        "print(Analyze(sys.argv[1]).data['_trial_id'][0])"
    )
    run = [sys.executable, "-c", code, str(log)]
    assert (
        subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip() == trial_id
    )
