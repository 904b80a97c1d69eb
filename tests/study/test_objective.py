import inspect
import math
from types import SimpleNamespace

import pytest

from paceline.errors import ObjectiveError
from paceline.study.objectives import Objective, infer_direction, resolve_objective

LOGS = ["loss", "accuracy", "auc", "val_loss", "val_accuracy", "val_auc"]


def test_none_is_the_first_metric_that_is_no_loss_on_validation_data():
    assert resolve_objective(None, None, LOGS) == Objective("val_accuracy", "maximize")


def test_none_is_the_validation_loss_without_metrics():
    assert resolve_objective(None, None, ["loss", "val_loss"]) == Objective("val_loss", "minimize")


def test_none_passes_over_the_losses_of_several_outputs():
    logs = ["a_loss", "b_loss", "a_mae", "loss", "val_a_loss", "val_b_loss", "val_a_mae"]
    assert resolve_objective(None, None, logs) == Objective("val_a_mae", "minimize")


@pytest.mark.parametrize("metric_names", [["loss"], ["loss", "accuracy"]])
def test_a_validation_metric_without_validation_data_is_refused_with_the_way_out(metric_names):
    trained = metric_names[-1]
    with pytest.raises(ObjectiveError, match=f'needs validation data. .*objective="{trained}"'):
        resolve_objective(None, None, metric_names)


def test_a_name_that_is_no_metric_lists_those_there_are():
    with pytest.raises(
        ObjectiveError, match='"val_acc" is not a metric .*loss, accuracy, auc, val'
    ):
        resolve_objective("val_acc", None, LOGS)


@pytest.mark.parametrize(
    ("objective", "direction", "expected"),
    [
        ("val_loss", None, Objective("val_loss", "minimize")),
        ("accuracy", None, Objective("accuracy", "maximize")),
        ("max:val_loss", None, Objective("val_loss", "maximize")),
        ("min:val_auc", "minimize", Objective("val_auc", "minimize")),
        ("val_auc", "minimize", Objective("val_auc", "minimize")),
        ("val_auc", "min", Objective("val_auc", "minimize")),
        (SimpleNamespace(name="val_auc", direction="max"), None, Objective("val_auc", "maximize")),
        (SimpleNamespace(name="val_auc", direction=None), None, Objective("val_auc", "maximize")),
    ],
)
def test_the_direction_may_be_spelt_out(objective, direction, expected):
    assert resolve_objective(objective, direction, LOGS) == expected


def test_an_unknown_direction_asks_for_max_or_min():
    with pytest.raises(ObjectiveError, match='"max:val_fidelity" or "min:val_fidelity"'):
        resolve_objective("val_fidelity", None, ["loss", "val_fidelity"])
    with pytest.raises(ObjectiveError, match='"max:val_dice" or "min:val_dice"'):
        resolve_objective(None, None, ["loss", "dice", "val_loss", "val_dice"])


@pytest.mark.parametrize(
    ("objective", "direction", "match"),
    [
        ("max:val_auc", "minimize", "Pass only one"),
        ("val_auc", "upwards", "got 'upwards'"),
        ("", None, "objective must be .* got ''"),
        ("max:", None, "objective must be .* got 'max:'"),
        (["val_auc"], None, "name of one metric"),
        (3, None, "objective must be .* got 3"),
    ],
)
def test_what_cannot_be_meant_is_refused(objective, direction, match):
    with pytest.raises(ObjectiveError, match=match):
        resolve_objective(objective, direction, LOGS)


def test_names_need_not_be_known_yet():
    assert resolve_objective("val_mse", None, None) == Objective("val_mse", "minimize")
    with pytest.raises(ObjectiveError, match="Name a metric"):
        resolve_objective(None, None, None)


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("val_auc_1", "maximize"),
        ("AUC", "maximize"),
        ("val_MSE", "minimize"),
        ("sparse_top_k_categorical_accuracy_12", "maximize"),
        ("weighted_accuracy", "maximize"),
        ("anything_loss", "minimize"),
        ("val_decoder_out_acc", "maximize"),
        ("TopKCategoricalAccuracy", "maximize"),
        ("mean", None),
        ("negative_accuracy", None),
        ("accuracy_gap", None),
    ],
)
def test_directions_of_names_in_logs(name, direction):
    # "negative" is no output, since it has no loss: the metric is somebody's own.
    assert infer_direction(name, ["decoder_out_loss", "negative_accuracy", name]) == direction


def test_every_metric_and_loss_of_keras_has_a_direction():
    keras = pytest.importorskip("keras")
    needed = {
        "IoU": {"num_classes": 2, "target_class_ids": [0]},
        "MeanIoU": {"num_classes": 2},
        "OneHotIoU": {"num_classes": 2, "target_class_ids": [0]},
        "OneHotMeanIoU": {"num_classes": 2},
        "PrecisionAtRecall": {"recall": 0.5},
        "RecallAtPrecision": {"precision": 0.5},
        "SensitivityAtSpecificity": {"specificity": 0.5},
        "SpecificityAtSensitivity": {"sensitivity": 0.5},
    }
    general = {"Metric", "Mean", "Sum", "MeanMetricWrapper", "Loss"}
    names = set()
    for module in (keras.metrics, keras.losses):
        for name, found in vars(module).items():
            if name.startswith("_") or name in general or name in {"deserialize", "get"}:
                continue
            if inspect.isclass(found) and module is keras.metrics:
                names.add(found(**needed.get(name, {})).name)
            elif callable(found) and name != "serialize":
                names.add(name)  # a loss, or a function given as a metric, is named as it is
    assert len(names) > 60
    # Users' own scores have these names too, and high is good of them: nobody can tell by the name.
    ambiguous = {"dice", "Dice", "tversky", "Tversky", "circle", "Circle"}
    assert {name for name in names if infer_direction(name) is None} == ambiguous & names


def test_better_knows_none_and_nan():
    up, down = Objective("a", "maximize"), Objective("a", "minimize")
    assert up.better(2.0, 1.0) and not up.better(1.0, 2.0) and not up.better(1.0, 1.0)
    assert down.better(1.0, 2.0) and not down.better(2.0, 1.0)
    assert up.better(0.0, None) and up.better(-math.inf, math.nan)
    assert not up.better(None, None) and not down.better(math.nan, None)
