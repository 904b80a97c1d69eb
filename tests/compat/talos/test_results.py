"""Analyze, Evaluate, Predict, Deploy and Restore on a scan that has trained."""

from __future__ import annotations

import io
import json
import sys
import zipfile

import keras
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import f1_score

from compat.talos.notebook import PARAMS, X, Y, classifier
from paceline.compat import talos
from paceline.compat.talos import errors
from paceline.compat.talos.evaluate import classes, score
from paceline.errors import MissingExtraError

EXCLUDE = ["start", "end", "duration", "round_epochs", "loss", "acc", "val_loss"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("results"))
        found = talos.Scan(X, Y, PARAMS, classifier, "results", seed=1, disable_progress_bar=True)
        found.log_path = found.log_path.absolute()
    return found


@pytest.fixture
def table():
    return pd.DataFrame(
        {
            "round_epochs": [3, 3, 3, 3],
            "val_acc": [0.1, 0.4, 0.3, 0.4],
            "lr": [1.0, 4.0, 3.0, 4.0],
            "units": [8, 8, 4, 4],
            "activation": ["relu", "elu", "relu", "elu"],
        }
    )


# -- Analyze ---------------------------------------------------------------------------------------


def test_numbers(table):
    report = talos.Reporting(table)
    assert (report.high("val_acc"), report.low("val_accuracy")) == (0.4, 0.1)
    assert (report.rounds(), report.rounds2high("val_acc")) == (4, 1)
    for method in ("pearson", "spearman", "kendall"):
        found = report.correlate("val_acc", ["round_epochs"], method=method)
        assert list(found.index) == ["lr", "units"]
        assert found["lr"] == pytest.approx(1.0)


def test_tables(table):
    report = talos.Analyze(table)
    found = report.table("val_acc", exclude=["round_epochs"], ascending=True)
    assert list(found) == ["val_acc", "lr", "units", "activation"]
    assert found.index.tolist() == [0, 2, 1, 3]
    assert report.table(["val_acc", "lr"], sort_by="units").index.tolist() == [0, 1, 2, 3]
    best = report.best_params("val_acc", ["round_epochs", "activation"], n=2)
    assert best.tolist() == [[4.0, 8.0, 0.0], [4.0, 4.0, 1.0]]


def test_sources(trained):
    best = int(trained.data["val_acc"].idxmax())
    for source in (trained, trained.data, str(trained.log_path), trained.log_path):
        assert talos.Reporting(source).rounds2high("val_acc") == best
    # A scan tells parameters from metrics.
    values = talos.Analyze(trained).best_params("val_acc", [])[0]
    row = trained.data.sort_values("val_acc", ascending=False, kind="stable").iloc[0]
    assert values.tolist() == [row["first_neuron"], row["dropout"], row["lr"], 0]
    with pytest.raises(
        errors.TalosDataError, match=r"source must be an existing file, got nowhere\.csv"
    ):
        talos.Analyze("nowhere.csv")
    with pytest.raises(
        errors.TalosTypeError, match="source must be a Scan, a table or a path, got int"
    ):
        talos.Analyze(3)
    with pytest.raises(errors.TalosDataError, match="source has no rows"):
        talos.Analyze(trained.data.head(0))


def test_defaults_of_2018(table):
    """``r.high()``, ``r.table()``: the metric was val_acc, the second of best_params was n."""
    report = talos.Reporting(table)
    assert (report.high(), report.low(), report.rounds2high()) == (0.4, 0.1, 1)
    assert report.table().index.tolist() == [1, 3, 2, 0]
    assert list(report.correlate().index) == ["round_epochs", "lr", "units"]
    assert report.best_params("val_acc", 2).shape[0] == 2


def test_plots_name_the_package_that_they_need(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = talos.Analyze(table)
    for plot in (
        lambda: report.plot_line("val_acc"),
        lambda: report.plot_corr("val_acc"),
        lambda: report.plot_bars("lr", "val_acc"),
    ):
        with pytest.raises(MissingExtraError, match=r'pip install "paceline\[plots\]"'):
            plot()


# -- Evaluate, Predict -----------------------------------------------------------------------------


def test_a_model_is_scored_on_parts(trained):
    found = talos.Evaluate(trained).evaluate(
        X, Y, task="multi_class", metric="val_acc", folds=3, shuffle=False
    )
    model = trained.best_model("val_acc")
    parts = np.array_split(np.arange(len(X)), 3)
    expected = [
        f1_score(Y[p], model.predict(X[p], verbose=0).argmax(-1), average="macro") for p in parts
    ]
    assert found == pytest.approx(expected)
    one = talos.Evaluate(trained).evaluate(X, Y, "multi_class", "val_acc", model_id=2, folds=1)
    assert len(one) == 1
    with pytest.raises(errors.TalosParamsError, match="task must be one of binary.*, got 'guess'"):
        talos.Evaluate(trained).evaluate(X, Y, "guess", "val_acc")
    with pytest.raises(errors.TalosDataError, match="folds must be an integer from 1 to 90, got 0"):
        talos.Evaluate(trained).evaluate(X, Y, "multi_class", "val_acc", folds=0)


def test_models_are_scored_into_the_table(trained):
    trained.evaluate_models(X, Y, "multi_class", n_models=2, folds=2, seed=0)
    means = trained.data["eval_f1score_mean"]
    best = trained.data.sort_values("val_acc", ascending=False, kind="stable").index[:2]
    assert sorted(means.dropna().index) == sorted(best)
    assert trained.data["eval_f1score_std"].notna().tolist() == means.notna().tolist()
    assert trained.best_model("eval_f1score_mean") is not None
    trained.data = trained.data.drop(columns=["eval_f1score_mean", "eval_f1score_std"])


def test_predictions(trained):
    model = trained.best_model("val_loss", asc=True)
    predict = talos.Predict(trained)
    outputs = predict.predict(X, "val_loss", True)
    np.testing.assert_allclose(outputs, model.predict(X, verbose=0), rtol=1e-6)
    found = predict.predict_classes(X, "val_loss", True, "multi_class")
    np.testing.assert_array_equal(found, outputs.argmax(-1))


@pytest.mark.parametrize(
    ("truth", "predicted", "task", "expected"),
    [
        ([0, 1, 1], [[0.2], [0.9], [0.6]], "binary", 1.0),
        ([0, 1, 1], [[0.8, 0.2], [0.1, 0.9], [0.6, 0.4]], "binary", 2 / 3),
        ([[1, 0], [0, 1]], [[0.9, 0.1], [0.6, 0.4]], "multi_label", 1 / 3),
        ([[1, 1], [0, 1]], [[0.9, 0.6], [0.1, 0.9]], "multi_label", 1.0),
        ([1.0, 3.0], [[2.0], [3.5]], "continuous", 0.75),
    ],
)
def test_scores(truth, predicted, task, expected):
    assert score(np.array(truth), np.array(predicted), task) == pytest.approx(expected)


def test_classes():
    assert classes([[0.2], [0.7]], "binary").tolist() == [[0], [1]]
    assert classes([[0.2, 0.8], [0.7, 0.3]], "multi_label").tolist() == [1, 0]
    assert classes([[0.2, 0.8], [0.7, 0.6]], "multilabel").tolist() == [[0, 1], [1, 1]]
    assert classes([[0.2], [3.0]], "continuous").tolist() == [[0.2], [3.0]]


# -- Deploy, Restore -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(trained, tmp_path_factory):
    return talos.Deploy(trained, tmp_path_factory.mktemp("deploy") / "best", "val_acc").path


def test_what_was_deployed_is_restored(trained, package):
    found = talos.Restore(package)
    np.testing.assert_array_equal(
        found.model.predict(X, verbose=0), trained.best_model("val_acc").predict(X, verbose=0)
    )
    pd.testing.assert_frame_equal(found.results, trained.data, check_dtype=False)
    assert found.params == {"first_neuron": [6], "dropout": (0.1, 0.5, 2), "lr": [0.001, 0.03]}
    assert found.details["experiment_name"] == "results"
    assert found.round_history == trained.round_history
    np.testing.assert_array_equal(found.x, X)
    np.testing.assert_array_equal(found.y, Y)
    assert talos.Predict(found).predict(X[:3]).shape == (3, 3)
    assert talos.Reporting(found).rounds() == 4
    with pytest.raises(errors.TalosModelError, match="model_id must be .*, got 99"):
        talos.Evaluate(found).evaluate(X, Y, "multi_class", None, model_id=99)


def test_files_are_talos_own_and_json(package):
    with zipfile.ZipFile(package) as archive:
        names = set(archive.namelist())
        config = json.loads(archive.read("best_model.json"))
    own = "model.json model.h5 details.txt x.csv y.csv results.csv".split()
    ours = "model.keras params.json details.json history.json manifest.json x.npz y.npz".split()
    assert names == {f"best_{name}" for name in (*own, *ours)} | {"README.txt"}
    assert config["class_name"] == "Sequential"


def test_data_of_any_shape_go_along(trained, tmp_path, monkeypatch):
    images = np.arange(300 * 2 * 2, dtype="float32").reshape(300, 2, 2)
    monkeypatch.setattr(trained, "x", images)
    monkeypatch.setattr(trained, "y", [Y, np.array(["a", None] * 45, dtype=object)])
    found = talos.Restore(talos.Deploy(trained, tmp_path / "odd.zip", "val_acc").path)
    np.testing.assert_array_equal(found.x, images[:100])
    assert [part.dtype.kind for part in found.y] == ["i", "U"]


def rewritten(package, path, change):
    """Another archive, its files changed."""
    with zipfile.ZipFile(package) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in change(files).items():
            archive.writestr(name, content)
    return path


def pickled(value) -> bytes:
    box, file = np.empty((), dtype=object), io.BytesIO()
    box[()] = value
    np.save(file, box, allow_pickle=True)
    return file.getvalue()


def test_pickled_arrays_are_refused(package, tmp_path):
    class Runs:
        ran = False

        def __reduce__(self):
            return (setattr, (Runs, "ran", True))

    def as_talos(files):
        kept = ("model.json", "model.h5", "details.txt", "results.csv", "x.csv", "y.csv")
        files = {n: c for n, c in files.items() if n.endswith(kept)}
        return {**files, "best_params.npy": pickled({"lr": [0.1]})}

    old = talos.Restore(rewritten(package, tmp_path / "old.zip", as_talos))
    assert old.model.count_params() > 0
    assert old.x.shape == X.shape
    assert old.details.shape[1] == 2
    assert old.round_history == []
    text = r"params: best_params\.npy in .*old\.zip is pickled, .*allow_pickle=True"
    with pytest.raises(errors.TalosDataError, match=text):
        old.params  # noqa: B018 - reading it is the test

    def evil(files):
        files = {n: c for n, c in files.items() if not n.endswith(("x.csv", "x.npz"))}
        return {**files, "best_x.npy": b""}

    found = talos.Restore(rewritten(package, tmp_path / "evil.zip", evil))
    with pytest.raises((errors.TalosDataError, EOFError), match="x: |No data left"):
        found.x  # noqa: B018 - as above
    assert not Runs.ran


def test_names_that_point_outside_are_not_followed(package, tmp_path):
    path = rewritten(
        package, tmp_path / "out.zip", lambda files: {**files, "../../outside.txt": b"here"}
    )
    assert talos.Restore(path).model is not None
    assert not list(tmp_path.parent.glob("**/outside.txt"))


def test_no_package(package, tmp_path):
    with pytest.raises(
        errors.TalosDataError, match=r"path_to_zip must be an existing file, got nowhere\.zip"
    ):
        talos.Restore("nowhere.zip")
    (tmp_path / "text.zip").write_text("text")
    with pytest.raises(
        errors.TalosDataError, match=r"must be a zip file that Deploy wrote, got .*text\.zip"
    ):
        talos.Restore(tmp_path / "text.zip")
    other = rewritten(package, tmp_path / "other.zip", lambda files: {"a.txt": b""})
    with pytest.raises(errors.TalosDataError, match="must be a zip file that Deploy wrote"):
        talos.Restore(other)


def test_a_class_of_the_users_own_needs_custom_objects(package, tmp_path):
    def renamed(files):
        files.pop("best_model.keras")
        config = files["best_model.json"].decode().replace('"Dropout"', '"Mine"')
        return {**files, "best_model.json": config.replace("keras.layers", "mine").encode()}

    path = rewritten(package, tmp_path / "mine.zip", renamed)
    with pytest.raises(errors.TalosModelError, match="Keras cannot read the model"):
        talos.Restore(path)
    keras.utils.clear_session()
