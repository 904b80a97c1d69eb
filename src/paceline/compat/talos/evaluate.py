"""``Evaluate``: scores the models of a scan on parts of other data."""

from __future__ import annotations

import importlib
from typing import Any

import keras
import numpy as np

from paceline.compat.talos.columns import column
from paceline.compat.talos.errors import TalosModelError, TalosParamsError
from paceline.compat.talos.results import ScanResults
from paceline.compat.talos.splits import check_inputs, kfold
from paceline.data.wide_integers import as_model_casts

_CONTINUOUS = ("continuous", "regression")
_MULTI_CLASS = ("multi_class", "multiclass")
#: Tasks with several labels at once, each of which is decided independently.
_INDEPENDENT = ("multilabel", "multi_label_independent")
TASKS = ("binary", *_MULTI_CLASS, "multi_label", *_INDEPENDENT, *_CONTINUOUS)


class Evaluate:
    """Scores the models of a scan.

    Args:
        scan_object: A ``Scan`` or a ``Restore``.
    """

    def __init__(self, scan_object: ScanResults) -> None:
        self.scan_object = scan_object
        self.data = scan_object.data

    def evaluate(
        self,
        x: Any,
        y: Any,
        task: str,
        metric: str | None,
        model_id: int | None = None,
        folds: int = 5,
        shuffle: bool = True,
        asc: bool = False,
        saved: bool = False,
        custom_objects: dict[str, Any] | None = None,
        multi_input: bool = False,
        print_out: bool = False,
        average: str | None = None,
        model_factory: Any = None,
        seed: int | None = None,
    ) -> list[float]:
        """Scores a model on each of ``folds`` parts of the data.

        Args:
            x: Features [N, ...].
            y: Targets [N, ...].
            task: "binary", "multi_class", "multi_label" or "continuous".
            metric: The model is the one that is best in this column of the scan's ``data``.
            model_id: Number of a row of ``data``: its model is scored instead.
            folds: Number of parts.
            shuffle: Whether examples are shuffled before.
            asc: Whether low values of the metric are better.
            saved: Whether the model is loaded from the file that the scan saved; else from memory.
            custom_objects: Name -> class or function, for Keras to load the model.
            multi_input: Whether x is a list of arrays.
            print_out: Whether mean and deviation are printed.
            average: How F1 is averaged over classes; None: binary or macro.
            model_factory: Has no effect: Keras models need none.
            seed: Decides how examples are shuffled.

        Returns:
            A score for each part: the mean absolute error for "continuous", else F1.
        """
        _check_task(task)
        check_inputs(x, multi_input)
        scan = self.scan_object
        row = scan.best_row(metric, asc) if model_id is None else model_id
        model = scan.activate(row, saved, custom_objects)
        found = [
            score(truth, outputs(model, part), task, average)
            for part, truth in kfold(x, y, folds, shuffle=shuffle, seed=seed)
        ]
        if print_out:
            print(f"mean : {np.mean(found):.2f} \n std : {np.std(found):.2f}")  # noqa: T201 - asked for
        return found


def evaluate_models(
    scan: ScanResults,
    x_val: Any,
    y_val: Any,
    task: str,
    n_models: int = 10,
    metric: str | None = "val_acc",
    folds: int = 5,
    shuffle: bool = True,
    asc: bool = False,
    saved: bool = False,
    custom_objects: dict[str, Any] | None = None,
    average: str | None = None,
    multi_input: bool | None = None,
    seed: int | None = None,
) -> None:
    """Scores the best models of a scan, and adds mean and deviation as columns to its ``data``.

    Args:
        scan: The scan.
        x_val: Features [N, ...].
        y_val: Targets [N, ...].
        task: "binary", "multi_class", "multi_label" or "continuous".
        n_models: Number of models to score.
        metric: The models that are best in this column of ``data`` are scored.
        folds: Number of parts of the data that each model is scored on.
        shuffle: Whether examples are shuffled before.
        asc: Whether low values of the metric are better.
        saved: Whether models are loaded from the files that the scan saved; else from memory.
        custom_objects: Name -> class or function, for Keras to load models.
        average: How F1 is averaged over classes; None: binary or macro.
        multi_input: Whether ``x_val`` is a list of arrays; None: told from its type.
        seed: Decides how examples are shuffled.
    """
    _check_task(task)
    name = column("val_acc" if metric is None else metric, scan.data.columns)
    rows = scan.data.sort_values(name, ascending=asc, kind="stable").index[:n_models]
    heading = "eval_mae" if task in _CONTINUOUS else "eval_f1score"
    for statistic in ("mean", "std"):
        scan.data[f"{heading}_{statistic}"] = np.nan
    several = isinstance(x_val, list) if multi_input is None else multi_input
    for row in rows:
        found = Evaluate(scan).evaluate(
            x_val,
            y_val,
            task,
            metric,
            int(row),
            folds,
            shuffle,
            asc,
            saved,
            custom_objects,
            several,
            average=average,
            seed=seed,
        )
        scan.data.loc[row, f"{heading}_mean"] = np.mean(found)
        scan.data.loc[row, f"{heading}_std"] = np.std(found)


def score(truth: Any, predicted: Any, task: str, average: str | None = None) -> float:
    """Returns the mean absolute error for "continuous", else F1; of several outputs the mean."""
    from sklearn import metrics

    f1_score: Any = metrics.f1_score
    if isinstance(truth, (list, dict)) and isinstance(predicted, (list, dict)):
        pairs = zip(_listed(truth), _listed(predicted), strict=True)
        return float(np.mean([score(t, p, task, average) for t, p in pairs]))
    truth = np.asarray(truth)
    if task in _CONTINUOUS:
        return float(
            metrics.mean_absolute_error(
                truth.reshape(len(truth), -1), np.asarray(predicted).reshape(len(truth), -1)
            )
        )
    if task == "binary":
        found = classes(predicted, task).reshape(-1)
        if truth.ndim > 1 and truth.shape[-1] == 2:
            truth = truth.argmax(-1)
        return float(
            f1_score(truth.reshape(-1), found, average=average or "binary", zero_division=0)
        )
    one_of_many = task in _MULTI_CLASS or (
        task == "multi_label" and (truth.ndim < 2 or bool((truth.sum(axis=-1) == 1).all()))
    )
    if one_of_many:
        if truth.ndim > 1 and truth.shape[-1] > 1:
            truth = truth.argmax(-1)
        truth, found = truth.reshape(-1), classes(predicted, "multi_class").reshape(-1)
    else:
        found = classes(predicted, "multilabel")
    return float(f1_score(truth, found, average=average or "macro", zero_division=0))


def classes(predicted: Any, task: str) -> np.ndarray:
    """Returns the classes that a model's outputs stand for.

    Args:
        predicted: Outputs [N, ...], one row for each example.
        task: The task, as for ``Evaluate``.
    """
    _check_task(task)
    values = np.asarray(predicted)
    if task in _CONTINUOUS:
        return values
    if task == "binary" and not (values.ndim > 1 and values.shape[-1] == 2):
        return (values >= 0.5).astype(int)
    if task in _INDEPENDENT:
        return (values >= 0.5).astype(int)
    return values.argmax(-1) if values.ndim > 1 else values.astype(int)


def outputs(model: Any, x: Any, **options: Any) -> Any:
    """Returns the outputs of a model: Keras', PyTorch's, or any that has ``predict``.

    Args:
        model: The model.
        x: Features [N, ...].
        **options: Further arguments of ``model.predict``.

    Raises:
        TalosModelError: The model cannot predict.
    """
    if isinstance(model, keras.Model):
        return model.predict(as_model_casts(x, model), **{"verbose": 0, **options})
    if hasattr(model, "predict"):
        return model.predict(x, **options)
    if any(kind.__module__.partition(".")[0] == "torch" for kind in type(model).__mro__):
        return _torch_outputs(model, x)
    raise TalosModelError(
        f"model: a {type(model).__name__} has no predict, so there is nothing to score; return a "
        "model that predicts from the function of the scan."
    )


def _torch_outputs(module: Any, x: Any) -> np.ndarray:
    # Not imported before: only who returns a module of PyTorch has it.
    torch: Any = importlib.import_module("torch")
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            found = module(torch.as_tensor(np.asarray(x), dtype=torch.float32))
    finally:
        module.train(training)
    return found.detach().cpu().numpy()


def _listed(values: Any) -> list[Any]:
    return list(values.values()) if isinstance(values, dict) else list(values)


def _check_task(task: str) -> None:
    if task not in TASKS:
        raise TalosParamsError(f"task: {task!r} is not one of {', '.join(TASKS)}.")
