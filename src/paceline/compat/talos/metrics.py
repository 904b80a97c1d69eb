"""Metrics under the names of Talos, for ``model.compile(metrics=[...])``.

Metrics of classes count over all examples of an epoch. (Before version 2.0 of Talos, they were
means over batches.) They are Keras metrics. With one output, the class is decided at 0.5; with
several outputs, it is the largest one. ``f1score(y_true, y_pred)`` returns the value for these
examples.
"""

from __future__ import annotations

from typing import Any

import keras

from paceline.compat.talos.errors import TalosParamsError

ops: Any = keras.ops
#: Keras finds registered classes when it reads a model that was compiled with them.
_registered: Any = keras.saving.register_keras_serializable("talos")


def mae(y_true: Any, y_pred: Any) -> Any:
    """Returns the mean absolute error."""
    y_true, y_pred = _pair(y_true, y_pred)
    return ops.mean(ops.abs(y_pred - y_true), axis=-1)


def mse(y_true: Any, y_pred: Any) -> Any:
    """Returns the mean squared error."""
    y_true, y_pred = _pair(y_true, y_pred)
    return ops.mean(ops.square(y_pred - y_true), axis=-1)


def rmae(y_true: Any, y_pred: Any) -> Any:
    """Returns the root of the absolute error of each example."""
    return ops.sqrt(mae(y_true, y_pred))


def rmse(y_true: Any, y_pred: Any) -> Any:
    """Returns the root of the squared error of each example."""
    return ops.sqrt(mse(y_true, y_pred))


def mape(y_true: Any, y_pred: Any) -> Any:
    """Returns the mean absolute error in per cent of the targets."""
    y_true, y_pred = _pair(y_true, y_pred)
    return 100 * ops.mean(ops.abs((y_true - y_pred) / ops.maximum(ops.abs(y_true), 1e-7)), axis=-1)


def msle(y_true: Any, y_pred: Any) -> Any:
    """Returns the mean squared error of logarithms."""
    y_true, y_pred = _pair(y_true, y_pred)
    logs = [ops.log(ops.maximum(y, 1e-7) + 1) for y in (y_true, y_pred)]
    return ops.mean(ops.square(logs[0] - logs[1]), axis=-1)


def rmsle(y_true: Any, y_pred: Any) -> Any:
    """Returns the root of the squared error of logarithms of each example."""
    return ops.sqrt(msle(y_true, y_pred))


def _pair(y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Targets and outputs with the same axes: if one is a column, so is the other."""
    y_pred = ops.convert_to_tensor(y_pred)
    y_true = ops.cast(y_true, y_pred.dtype)
    if len(y_pred.shape) == len(y_true.shape) + 1 and y_pred.shape[-1] == 1:
        y_true = ops.expand_dims(y_true, -1)
    elif len(y_true.shape) == len(y_pred.shape) + 1 and y_true.shape[-1] == 1:
        y_pred = ops.expand_dims(y_pred, -1)
    return y_true, y_pred


class _Counts(keras.metrics.Metric):
    """A metric of the confusion matrix ``counts``, f[C, C], with one row for each true class.

    ``f1score(y_true, y_pred)`` is the value for these examples, and no metric object.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        given, options = _examples(arguments, options)
        if given is None:
            return super().__new__(cls)
        y_true, y_pred, *more = given
        counts, one_column = _confusion(y_true, y_pred)
        return cls(*more, **options)._of(counts, one_column)

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        super().__init__(name=name or type(self).__name__, **arguments)
        self.counts: Any = None
        self._one_column = True

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts a batch."""
        found, self._one_column = _confusion(y_true, y_pred, sample_weight, self.dtype)
        if self.counts is None:
            self.counts = self.add_variable(found.shape, initializer="zeros", name="counts")
        self.counts.assign_add(found)

    def result(self) -> Any:
        """Returns the metric over the batches so far."""
        if self.counts is None:
            return 0.0
        return self._of(ops.convert_to_tensor(self.counts), self._one_column)

    def _of(self, counts: Any, one_column: bool) -> Any:
        raise AssertionError("a metric says what it makes of the counts")

    def reset_state(self) -> None:
        """Forgets all batches."""
        if self.counts is not None:
            self.counts.assign(ops.zeros(self.counts.shape, self.dtype))


def _examples(
    arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...] | None, dict[str, Any]]:
    """Tells a call with examples, such as ``fbeta(y_true, y_pred, 2)``, from a new metric.

    Returns targets, outputs and the arguments after them, or None for a new metric; and options.
    """
    if "y_true" in options and "y_pred" in options:
        options = dict(options)
        return (options.pop("y_true"), options.pop("y_pred"), *arguments), options
    if "y_pred" in options and len(arguments) == 1:
        options = dict(options)
        return (*arguments, options.pop("y_pred")), options
    several = len(arguments) > 1 and not isinstance(arguments[1], (str, type(None)))
    return (arguments if several else None), options


def _confusion(
    y_true: Any, y_pred: Any, sample_weight: Any = None, dtype: Any = "float32"
) -> tuple[Any, bool]:
    """Counts f[C, C], a row for each true class, and whether the outputs have one column."""
    y_pred = ops.convert_to_tensor(y_pred)
    width = int(y_pred.shape[-1]) if ops.ndim(y_pred) > 1 else 1
    n = max(2, width)
    if width == 1:
        truth = ops.reshape(ops.cast(y_true, "float32"), (-1,)) >= 0.5
        found = ops.reshape(y_pred, (-1,)) >= 0.5
    else:
        truth = ops.convert_to_tensor(y_true)
        one_hot = ops.ndim(truth) > 1 and truth.shape[-1] == width
        truth = ops.argmax(truth, axis=-1) if one_hot else truth
        found = ops.reshape(ops.argmax(y_pred, axis=-1), (-1,))
        truth = ops.reshape(truth, (-1,))
    rows = ops.one_hot(ops.cast(truth, "int32"), n, dtype=dtype)
    columns = ops.one_hot(ops.cast(found, "int32"), n, dtype=dtype)
    if sample_weight is not None:
        rows = rows * ops.reshape(ops.cast(sample_weight, dtype), (-1, 1))
    return ops.matmul(ops.transpose(rows), columns), width == 1


def _shares(counts: Any, one_column: bool) -> tuple[Any, Any]:
    """Precision and recall of each class; if the outputs have one column, of the second class."""
    right = ops.diagonal(counts)
    precision = right / ops.maximum(ops.sum(counts, axis=0), 1e-7)
    recall = right / ops.maximum(ops.sum(counts, axis=1), 1e-7)
    return (precision[1:], recall[1:]) if one_column else (precision, recall)


@_registered
class precision(_Counts):  # noqa: N801 - what users write
    """Precision: the share of a class's predictions that are right; the mean over classes."""

    def _of(self, counts: Any, one_column: bool) -> Any:
        return ops.mean(_shares(counts, one_column)[0])


@_registered
class recall(_Counts):  # noqa: N801 - as above
    """Recall: the share of a class's examples that are predicted right; the mean over classes."""

    def _of(self, counts: Any, one_column: bool) -> Any:
        return ops.mean(_shares(counts, one_column)[1])


@_registered
class fbeta(_Counts):  # noqa: N801 - as above
    """The F-beta score of precision and recall; recall counts ``beta`` times as much."""

    def __init__(self, beta: float = 1.0, name: str | None = None, **arguments: Any) -> None:
        if beta < 0:
            raise TalosParamsError(f"beta must be at least 0, got {beta!r}.")
        super().__init__(name=name, **arguments)
        self.beta = beta

    def _of(self, counts: Any, one_column: bool) -> Any:
        share, found = _shares(counts, one_column)
        square = self.beta**2
        below = ops.maximum(square * share + found, 1e-7)
        return ops.mean((1 + square) * share * found / below)

    def get_config(self) -> dict[str, Any]:
        """Returns the configuration with which Keras saves the metric."""
        return {**super().get_config(), "beta": self.beta}


@_registered
class f1score(fbeta):  # noqa: N801 - as above
    """The F1 score: the harmonic mean of precision and recall; mean over classes."""

    def __init__(self, name: str | None = None, **arguments: Any) -> None:
        arguments.pop("beta", None)
        super().__init__(1.0, name=name, **arguments)


@_registered
class matthews(_Counts):  # noqa: N801 - as above
    """Matthews' correlation between true and predicted classes."""

    def _of(self, counts: Any, one_column: bool) -> Any:
        total, right = ops.sum(counts), ops.trace(counts)
        found, there = ops.sum(counts, axis=0), ops.sum(counts, axis=1)
        above = right * total - ops.sum(found * there)
        spread = (total**2 - ops.sum(found**2)) * (total**2 - ops.sum(there**2))
        return above / ops.sqrt(ops.maximum(spread, 1e-7))


_KINDS = {kind.__name__: kind for kind in (precision, recall, f1score, fbeta, matthews)}


def classification_metric(
    kind: str = "f1score",
    beta: float = 1.0,
    num_classes: int | None = None,
    name: str | None = None,
) -> keras.metrics.Metric:
    """Returns a new metric of classes.

    Args:
        kind: "precision", "recall", "f1score", "fbeta" or "matthews".
        beta: How many times as much recall counts, for "f1score" and "fbeta".
        num_classes: Has no effect: the outputs tell the number of classes.
        name: The metric's name; None: its kind.

    Raises:
        TalosParamsError: The kind is unknown, or beta is below 0.
    """
    if kind not in _KINDS:
        raise TalosParamsError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}.")
    if beta != 1 and kind in ("f1score", "fbeta"):
        return fbeta(beta, name=name or kind)
    return _KINDS[kind](name=name or kind)


#: The names of 2018.
precision_acc, recall_acc, fmeasure_acc, matthews_acc = precision, recall, f1score, matthews
