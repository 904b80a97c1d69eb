"""k-fold cross-validation: which examples each fold trains on, and which it validates on.

All folds of a search have one size, so that they can be slots of one compiled program. Where k does
not divide the number of examples, the folds that would be larger leave one example out.

Notation
    N: examples. K: folds. V = N // K: examples that a fold validates on; it trains on (K - 1) V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import UsageError

# Other draws begin with the study's seed too; with this number the folds differ from them.
_FOLDS = 0xF01D5


@dataclass(frozen=True)
class Fold:
    """One part of the data to validate on, and the other parts to train on."""

    train: np.ndarray  # i32[(K - 1) V], numbers of the examples to train on, ascending
    validation: np.ndarray  # i32[V], numbers of the examples to validate on, ascending


def make_folds(y: Any, n: int, k: int, seed: int) -> tuple[tuple[Fold, ...], str]:
    """Draws K folds, with a sentence about them for the user.

    No example is validated on in two of them. Where y holds one class per example (integers, or
    one-hot rows), every fold has its share of every class, to one example. ``y``: targets [N, ...],
    as ``prepare`` leaves them; None: the data have no targets. The same seed gives the same folds.

    Raises UsageError if there are more folds than examples, or than examples of a class.
    """
    if k > n:
        raise UsageError(f"folds must be at most {n}, the number of examples, got {k}.")
    classes = class_labels(y)
    rng = np.random.default_rng([_FOLDS, seed])
    if classes is None:
        dealt, kind = rng.permutation(n)[: n - n % k], "drawn at random"
    else:
        _check_classes(classes, k)
        dealt, kind = _by_class(classes, k, rng), "stratified by class"
    # Dealt like cards: the examples of a class lie together, so each fold gets its share of them.
    parts = [np.sort(dealt[fold::k]).astype(np.int32) for fold in range(k)]
    folds = tuple(
        Fold(np.sort(np.concatenate([*parts[:fold], *parts[fold + 1 :]])), part)
        for fold, part in enumerate(parts)
    )
    return folds, _text(k, len(parts[0]), n % k, kind)


def class_labels(y: Any) -> np.ndarray | None:
    """One class per example, int[N], of targets [N], [N, 1] or one-hot [N, K]; else None."""
    if not isinstance(y, np.ndarray):
        return None
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 1:
        return y if y.dtype.kind in "biu" else None
    one_hot = y.ndim == 2 and np.all((y == 0) | (y == 1)) and np.all(y.sum(axis=1) == 1)
    return y.argmax(axis=1) if one_hot else None


def _check_classes(classes: np.ndarray, k: int) -> None:
    values, counts = np.unique(classes, return_counts=True)
    least = int(counts.argmin())
    if counts[least] < k:
        raise UsageError(
            f"folds: {k} folds, but class {values[least]} has {_examples(int(counts[least]))}. "
            "Pass fewer folds or more data. If y holds no classes, pass it as floats, so that "
            "folds are not stratified."
        )


def _by_class(classes: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """The examples class by class, each class in random order; their number is a multiple of K.

    The examples left out are the remainders of classes that K does not divide, of large classes
    first. So no fold has fewer than N_class // K examples of a class.
    """
    values, counts = np.unique(classes, return_counts=True)
    kept, excess = counts.copy(), len(classes) % k
    for index in np.argsort(-counts, kind="stable"):
        taken = min(excess, counts[index] % k)
        kept[index] -= taken
        excess -= taken
    numbers = [rng.permutation(np.flatnonzero(classes == value)) for value in values]
    return np.concatenate([some[:keep] for some, keep in zip(numbers, kept, strict=True)])


def _text(k: int, size: int, left_out: int, kind: str) -> str:
    text = f"{k} folds of {_examples(size)} each, {kind}"
    if left_out:
        are = "is" if left_out == 1 else "are"
        text += f"; {_examples(left_out)} {are} left out, so that all folds have the same size"
    return text


def _examples(count: int) -> str:
    return f"{count:,} example{'' if count == 1 else 's'}"


def check_alone(validation_data: Any, validation_split: Any) -> None:
    """Refuses folds of data beside other data to validate on."""
    given = "validation_data" if validation_data is not None else None
    given = given or ("validation_split" if validation_split else None)
    if given is not None:
        raise UsageError(
            f"folds: each fold is validated on its own part of x and y, but got {given}. Pass "
            "only one of them."
        )
