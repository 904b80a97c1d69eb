"""What articles use: the names and arguments of Talos before version 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import paceline.compat.talos as ta
import toys
from compat.talos.notebook import X, Y, classifier, no_training
from paceline.compat.talos.errors import TalosParamsError
from paceline.compat.talos.utils import live

PARAMS = {"first_neuron": [6], "dropout": [0.1], "lr": [0.001, 0.03]}


def scan_of(params=PARAMS, model=classifier, **arguments):
    return ta.Scan(X, Y, params, model, seed=3, disable_progress_bar=True, **arguments)


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("scan"))
        found = scan_of(dataset_name="iris", experiment_no="1", save_models=True)
        found.beside = pd.read_csv("iris_1.csv")
    return found


def test_the_table_is_written_beside_the_folder_too(scan):
    assert list(scan.beside) == list(scan.data)
    np.testing.assert_allclose(scan.beside["val_loss"], scan.data["val_loss"])
    assert ta.Reporting(scan.beside).rounds() == len(scan.data)


def test_a_file_of_the_user_s_stays(capsys):
    Path("iris_2.csv").write_text("sepal,petal\n1,2\n")
    scan_of(model=no_training, dataset_name="iris_2")
    assert Path("iris_2.csv").read_text() == "sepal,petal\n1,2\n"
    assert "iris_2.csv is not the log of a scan and stays as it is" in capsys.readouterr().err


def test_evaluate_takes_the_mode_or_nothing_and_a_number_of_a_model(scan):
    evaluate = ta.Evaluate(scan).evaluate
    now = evaluate(X, Y, "multi_label", "val_acc", model_id=1, seed=1)
    assert evaluate(X, Y, model_id=1, folds=5, seed=1) == now
    assert evaluate(X, Y, 1, mode="multi_label", metric="val_acc", seed=1) == now
    with pytest.raises(TalosParamsError, match="task must be one of .*, got 'many'"):
        evaluate(X, Y, mode="many")


def test_predict_is_told_its_task_first(scan):
    told, asked = ta.Predict(scan, task="multi_label"), ta.Predict(scan)
    want = asked.predict_classes(X, task="multi_label", model_id=0)
    np.testing.assert_array_equal(told.predict_classes(X, model_id=0), want)
    with pytest.raises(TalosParamsError, match="task must be one of .*, got 'many'"):
        ta.Predict(scan, task="many")


def test_older_names_of_what_there_is(scan):
    pd.testing.assert_frame_equal(scan.peak_epochs_df, scan.peak_epochs)
    assert isinstance(live(), type(ta.callbacks.TrainingPlot()))
    assert isinstance(ta.utils.live(), type(live()))


def test_a_function_may_split_by_itself():
    def splits(x_train, y_train, x_val, y_val, params):
        assert len(x_train) == len(X) and len(x_val) == len(y_val) == 0
        model = toys.softmax_at(params["lr"])
        history = model.fit(x_train, y_train, validation_split=0.3, epochs=2, verbose=0)
        return history, model

    found = scan_of({"lr": [0.01]}, splits, val_split=0, experiment_name="split")
    assert found.data["val_loss"].notna().all()


def test_data_sets_of_2018_have_their_places():
    assert ta.datasets.iris()[0].shape == (150, 4)
    from paceline.compat.talos.examples import datasets, params
    from paceline.compat.talos.examples.pipelines import iris

    assert datasets.iris is ta.templates.datasets.iris and "lr" in params.iris()
    assert iris is ta.templates.pipelines.iris
