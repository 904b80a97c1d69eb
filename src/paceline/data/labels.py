"""Labels: each must be a class of the model, and each class may have a weight.

Notation
    N: examples. K: classes, the last axis of an output [N, ..., K]. Labels: integers [N, ...], as
    int or float.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np

from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset
from paceline.errors import DataError, UsageError


def output_shapes(model: Any, x: Any = None) -> list[Any]:
    """Shapes of a model's outputs, in Keras' order; empty where they cannot be told.

    ``x``: shapes of the inputs, a nest of [B, ...]; a subclassed model shows its outputs only with
    them.
    """
    shapes = getattr(model, "output_shape", None)
    if shapes is None and x is not None:
        try:
            spec = model.compute_output_spec(
                jax.tree.map(lambda a: keras.KerasTensor(a.shape, str(a.dtype)), x)
            )
            shapes = jax.tree.map(
                lambda a: a.shape, spec, is_leaf=lambda a: isinstance(a, keras.KerasTensor)
            )
        except Exception:  # whatever the model's own call may raise
            return []
    if isinstance(shapes, dict):
        names = getattr(model, "output_names", None) or list(shapes)
        return [shapes.get(name) for name in names]
    return [shapes] if _is_shape(shapes) else list(shapes or [])


def check_labels(
    model: Any, data: ArrayData, what: str, outputs: Sequence[Any] | None = None
) -> None:
    """Checks integer labels against the number of classes: JAX would train on without a word.

    ``data`` have labels [N, ...] among their targets. ``what``: name of the data in errors.
    ``outputs``: shapes of the outputs; None: the model is asked. Raises DataError where a label is
    negative or not below the size of an output's last axis.
    """
    if len(data.inputs) < 2:
        return
    for name, loss, shape, y, weight in _targets(model, data, outputs):
        ours = isinstance(y, np.ndarray) and _is_shape(shape) and shape and _is_sparse(loss)
        if not ours or not isinstance(shape[-1], int):
            continue
        labels = _counted(y, weight, getattr(loss, "ignore_class", None))
        if not labels.size:
            continue
        low, high, classes = int(labels.min()), int(labels.max()), shape[-1]
        if low < 0 or high >= classes:
            units = f"set {high + 1} units in its last layer, " if high >= classes else ""
            raise DataError(
                f"{what}: labels{name} go from {low} to {high}, but the model has {classes} "
                f"classes, 0 to {classes - 1}; {units}renumber the labels, or exclude one with "
                "ignore_class."
            )


def _targets(
    model: Any, data: ArrayData, outputs: Sequence[Any] | None
) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """For each output: its name in messages, loss, shape, labels and sample weights."""
    shapes = output_shapes(model) if outputs is None else outputs
    names = getattr(model, "output_names", None) or []
    y, weights = data.inputs[1], data.inputs[2] if len(data.inputs) > 2 else None
    for i, shape in enumerate(shapes):
        name = names[i] if i < len(names) else None

        def of(nest: Any, i: int = i, name: Any = name) -> Any:
            if isinstance(nest, dict):
                return nest.get(name)
            if isinstance(nest, (list, tuple)):
                return nest[i] if i < len(nest) else None
            return nest

        label = f" of output {name!r}" if len(shapes) > 1 else ""
        yield label, of(model.loss), shape, of(y), of(weights)


def _counted(y: np.ndarray, weight: Any, ignored: Any) -> np.ndarray:
    """The labels that the loss counts: not the class to ignore, and none of weight 0."""
    if weight is not None and weight.shape == y.shape[: weight.ndim]:
        y = y[weight != 0]
    if jax.numpy.issubdtype(y.dtype, np.floating):
        y = y[np.isfinite(y)]
    return y if ignored is None else y[y != ignored]


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and all(n is None or isinstance(n, int) for n in shape)


def _is_sparse(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    return (
        isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
        or str(name).lower().replace("_", "") == "sparsecategoricalcrossentropy"
    )


# -- weights of classes ----------------------------------------------------------------------------


def check_class_weight(class_weight: Any) -> None:
    """Checks class weights as far as they do not depend on the targets.

    They must be a dict of class -> weight: integers from 0, finite numbers.
    """
    if not isinstance(class_weight, Mapping):
        hint = "Pass one such as {0: 1.0, 1: 5.0}."
        if isinstance(class_weight, str):  # "balanced" is scikit-learn's
            hint = (
                "Compute the weights, as by sklearn.utils.class_weight.compute_class_weight, and "
                "pass dict(enumerate(weights))."
            )
        elif isinstance(class_weight, (list, tuple, np.ndarray)):
            hint = "Pass dict(enumerate(weights))."
        raise UsageError(
            f"class_weight must be a dict of class -> weight, got {repr(class_weight)[:60]}. {hint}"
        )
    by_output = [name for name, weight in class_weight.items() if isinstance(weight, Mapping)]
    if by_output:
        raise UsageError(
            "class_weight must be a dict of class -> weight, got one for each output "
            f"({str(by_output)[1:-1][:60]}). Keras takes class weights for a single output: pass "
            "sample_weight, a dict or list of one array for each output."
        )
    for index, weight in class_weight.items():
        whole = isinstance(index, (int, float, np.integer, np.floating))
        if not whole or isinstance(index, bool) or index % 1 or index < 0:
            raise UsageError(
                "class_weight must be a dict of class -> weight, where classes are numbers from 0 "
                f"as in y, got the class {index!r}. Pass one such as {{0: 1.0, 1: 5.0}}."
            )
        try:
            finite = not isinstance(weight, str) and math.isfinite(weight)
        except (TypeError, ValueError, OverflowError):
            finite = False
        if not finite:
            raise UsageError(
                f"class_weight: the weight of class {index!r} must be a finite number, got "
                f"{weight!r}."
            )


def weights_by_class(class_weight: Any, data: ArrayData | BatchedDataset) -> np.ndarray:
    """A trial's class weights as a table, float[classes]; the weight of other classes is 1.

    ``class_weight``: class -> weight, from a function of hp. ``data``: training data, which tell
    the number of classes. Raises UsageError if ``class_weight`` is not such a dict, or the targets
    are not classes.
    """
    check_class_weight(class_weight)
    n = n_classes(data)
    table = np.ones(n, keras.config.floatx())
    for index, weight in class_weight.items():
        if 0 <= int(index) < n:
            table[int(index)] = weight
    return table


def n_classes(data: ArrayData | BatchedDataset) -> int:
    """Number of classes of the targets: columns of one-hot rows, or the largest class plus one.

    Raises UsageError where the targets are not one array, or the data have sample weights too.
    """
    if isinstance(data, BatchedDataset) and data.epochs.n_batches is None:
        raise UsageError(
            f"class_weight: a function of hp needs to know all classes, but x is a {data.kind} "
            "without an end. Make x yield (x, y, sample_weight)."
        )
    known = data.labels if isinstance(data, BatchedDataset) else data
    weighed = isinstance(data, BatchedDataset) and len(data.sample.inputs) > 2
    inputs = () if known is None or weighed else known.inputs
    if len(inputs) != 2 or not isinstance(inputs[1], np.ndarray):
        raise UsageError(
            "class_weight: a function of hp needs one array of targets and no sample weights."
        )
    y = inputs[1]
    if math.prod(y.shape[1:-1]) > 1:
        raise UsageError(
            f"class_weight: y of shape {y.shape} has several classes in each example. Pass "
            "sample_weight instead."
        )
    if y.ndim > 1 and y.shape[-1] > 1:
        return y.shape[-1]
    return int(np.round(y.max())) + 1
