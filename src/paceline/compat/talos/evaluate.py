"""``Evaluate`` and ``Predict``: the models of a scan on other data."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import keras
import numpy as np
import pandas as pd

from paceline.compat.talos.errors import (
    TalosDataError,
    TalosModelError,
    TalosParamsError,
    TalosTypeError,
)
from paceline.compat.talos.logs import column
from paceline.executor.batch_checks import batches_checked

_CONTINUOUS = ("continuous", "regression")
_MULTI_CLASS = ("multi_class", "multiclass")
#: Tasks with several labels at once, each of which is decided independently.
_INDEPENDENT = ("multilabel", "multi_label_independent")
TASKS = ("binary", *_MULTI_CLASS, "multi_label", *_INDEPENDENT, *_CONTINUOUS)


class ScanResults(Protocol):
    """A ``Scan`` or a ``Restore``; ``asc``: low values of a metric are better."""

    data: pd.DataFrame  # a row for each permutation that trained

    def best_row(self, metric: str | None, asc: bool) -> int:
        """Returns the row of ``data`` that is best in a metric."""
        ...

    def activate(
        self, row: int, saved: bool = False, custom_objects: dict[str, Any] | None = None
    ) -> Any:
        """Returns the trained model of a row of ``data``."""
        ...


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
        task: str | int | None = None,
        metric: str | None = "val_acc",
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
        *,
        mode: str | None = None,
    ) -> list[float]:
        """Scores a model on each of ``folds`` parts of the data.

        Args:
            x: Features [N, ...].
            y: Targets [N, ...].
            task: "binary", "multi_class", "multi_label" or "continuous"; None: "multi_label", as
                before version 1. An integer is a ``model_id``, which stood here in old versions.
            metric: The model is the best one in this column of the scan's ``data``.
            model_id: Number of a row of ``data``: its model is scored instead.
            folds: Number of parts.
            shuffle: Whether examples are shuffled first.
            asc: Whether low values of the metric are better.
            saved: Whether the model is loaded from the file that the scan saved; else from memory.
            custom_objects: Name -> class or function, for Keras to load the model.
            multi_input: Whether x is a list of arrays.
            print_out: Whether mean and deviation are printed.
            average: How F1 is averaged over classes; None: binary or macro.
            model_factory: Has no effect: Keras models need none.
            seed: Decides how examples are shuffled.
            mode: The name of ``task`` before version 1; "regression" is "continuous".

        Returns:
            A score for each part: the mean absolute error for "continuous", else F1.
        """
        if isinstance(task, int):
            task, model_id = None, task
        what = task or mode or "multi_label"
        scoring = Scoring(x, y, what, multi_input, folds, shuffle, average, seed)
        scan = self.scan_object
        row = scan.best_row(metric, asc) if model_id is None else model_id
        found = scoring.scores(scan.activate(row, saved, custom_objects))
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

    The models are the ``n_models`` best ones in the column ``metric``. ``multi_input=None`` goes by
    the type of ``x_val``. The other arguments are those of ``Evaluate.evaluate``.
    """
    several = isinstance(x_val, list) if multi_input is None else multi_input
    scoring = Scoring(x_val, y_val, task, several, folds, shuffle, average, seed)
    name = column("val_acc" if metric is None else metric, scan.data.columns)
    rows = scan.data.sort_values(name, ascending=asc, kind="stable").index[:n_models]
    heading = f"eval_{measure(task)}"
    for statistic in ("mean", "std"):
        scan.data[f"{heading}_{statistic}"] = np.nan
    for row in rows:
        found = scoring.scores(scan.activate(int(row), saved, custom_objects))
        scan.data.loc[row, f"{heading}_mean"] = np.mean(found)
        scan.data.loc[row, f"{heading}_std"] = np.std(found)


class Predict:
    """Predicts with models of a scan.

    Args:
        scan_object: A ``Scan`` or a ``Restore``.
        task: The default task of ``predict_classes``, as before version 1.
    """

    def __init__(self, scan_object: ScanResults, task: str = "multi_class") -> None:
        _check_task(task)
        self.scan_object, self._task = scan_object, task
        self.data = scan_object.data

    def predict(
        self,
        x: Any,
        metric: str | None = "val_acc",
        asc: bool = False,
        model_id: int | None = None,
        saved: bool = False,
        custom_objects: dict[str, Any] | None = None,
        model_factory: Any = None,
        **options: Any,
    ) -> Any:
        """Returns the outputs of a model.

        Args:
            x: Features [N, ...].
            metric: The model is the best one in this column of the scan's ``data``.
            asc: Whether low values of the metric are better.
            model_id: Number of a row of ``data``: its model predicts instead.
            saved: Whether the model is loaded from the file that the scan saved; else from memory.
            custom_objects: Name -> class or function, for Keras to load the model.
            model_factory: Has no effect: Keras models need none.
            **options: Further arguments of ``model.predict``.
        """
        row = self.scan_object.best_row(metric, asc) if model_id is None else model_id
        model = self.scan_object.activate(row, saved, custom_objects)
        return outputs(model, x, **options)

    def predict_classes(
        self,
        x: Any,
        metric: str | None = "val_acc",
        asc: bool = False,
        task: str | None = None,
        model_id: int | None = None,
        saved: bool = False,
        custom_objects: dict[str, Any] | None = None,
        model_factory: Any = None,
    ) -> np.ndarray:
        """Returns the classes that a model predicts; the other arguments are those of ``predict``.

        ``task`` is "binary", "multi_class" or "multi_label"; None: that of ``Predict``.
        """
        found = self.predict(x, metric, asc, model_id, saved, custom_objects)
        return classes(found, self._task if task is None else task)


# -- how a model is scored ------------------------------------------------------------------------


class Scoring:
    """Scores models on the same parts of data; see ``Evaluate.evaluate`` for the arguments."""

    def __init__(
        self,
        x: Any,
        y: Any,
        task: str,
        multi_input: bool,
        folds: int,
        shuffle: bool = True,
        average: str | None = None,
        seed: int | None = None,
    ) -> None:
        _check_task(task)
        check_inputs(x, multi_input)
        self._task, self._average = task, average
        self._parts = kfold(x, y, folds, shuffle, seed)

    def scores(self, model: Any) -> list[float]:
        """Returns a score of the model for each part."""
        return [score(y, outputs(model, x), self._task, self._average) for x, y in self._parts]


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
    """Returns the classes that a model's outputs [N, ...] stand for."""
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
    """Returns the outputs of a model for x [N, ...]: Keras', PyTorch's, or any with ``predict``."""
    if isinstance(model, keras.Model):
        with batches_checked():
            return model.predict(x, **{"verbose": 0, **options})
    if hasattr(model, "predict"):
        return model.predict(x, **options)
    if any(kind.__module__.partition(".")[0] == "torch" for kind in type(model).__mro__):
        return _torch_outputs(model, x)
    raise TalosModelError(
        f"model must have a method predict, got {type(model).__name__}. Return a model that "
        "predicts from the function of the scan."
    )


def _torch_outputs(module: Any, x: Any) -> np.ndarray:
    # Late: only users who return a module of PyTorch have the package.
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


def measure(task: str) -> str:
    """Returns what scores of a task are called in headings."""
    return "mae" if task in _CONTINUOUS else "f1score"


def _check_task(task: str) -> None:
    if task not in TASKS:
        raise TalosParamsError(f"task must be one of {', '.join(TASKS)}, got {task!r}.")


# -- parts of data: arrays, pandas objects, lists and dicts of them --------------------------------


def is_several(values: Any) -> bool:
    """Returns whether this is a list of arrays, as for a model with several inputs."""
    return isinstance(values, list) and bool(values) and hasattr(values[0], "shape")


def take(values: Any, index: np.ndarray) -> Any:
    """Returns the examples with the numbers in ``index`` i64[K], of data nested in any way."""
    if isinstance(values, dict):
        return {key: take(value, index) for key, value in values.items()}
    if is_several(values):
        return [take(value, index) for value in values]
    table: Any = values
    if hasattr(table, "iloc"):
        return table.iloc[index]
    return np.asarray(values)[index]


def length(values: Any) -> int:
    """Returns the number of examples."""
    if isinstance(values, dict):
        return length(next(iter(values.values())))
    return len(values[0] if is_several(values) else values)


def check_inputs(x: Any, multi_input: bool) -> None:
    """Checks that a list of arrays is given with ``multi_input`` only."""
    if is_several(x) and not multi_input:
        raise TalosTypeError(
            "x must be one array, got a list of arrays. Pass one array, or multi_input=True for a "
            "model with several inputs."
        )


def check_split(x: Any, y: Any, fraction: float) -> int:
    """Returns the number of training examples, if ``fraction`` of the examples validate."""
    if not isinstance(fraction, (int, float)) or not 0 <= fraction < 1:
        raise TalosDataError(f"val_split must be at least 0 and below 1, got {fraction!r}.")
    n = length(y)
    if length(x) != n:
        raise TalosDataError(
            f"x and y must have the same number of examples, got {length(x)} and {n}."
        )
    at = int(n * (1 - fraction))
    if at in (0, n) and fraction:  # of 0, the function validates by itself
        raise TalosDataError(
            f"val_split must leave examples in both parts, got {fraction} of {n} examples. Pass "
            "more data or another fraction."
        )
    return at


def split(
    x: Any, y: Any, fraction: float, *, shuffle: bool = True, seed: int | None = None
) -> tuple[Any, Any, Any, Any]:
    """Returns x_train, y_train, x_val, y_val; ``fraction`` of the examples validate."""
    at, n = check_split(x, y, fraction), length(y)
    order = np.random.default_rng(seed).permutation(n) if shuffle else np.arange(n)
    train, val = order[:at], order[at:]
    return take(x, train), take(y, train), take(x, val), take(y, val)


def kfold(
    x: Any, y: Any, folds: int, shuffle: bool = True, seed: int | None = None
) -> list[tuple[Any, Any]]:
    """Splits data into ``folds`` parts, pairs of features and targets."""
    n = length(y)
    if not isinstance(folds, int) or not 1 <= folds <= n:
        raise TalosDataError(f"folds must be an integer from 1 to {n}, got {folds!r}.")
    order = np.random.default_rng(seed).permutation(n) if shuffle else np.arange(n)
    return [(take(x, part), take(y, part)) for part in np.array_split(order, folds)]
