"""Data of KerasHub's tasks: arrays that a task's own preprocessor makes of the user's samples.

The ``fit`` of a task (``BertTextClassifier``, ``ImageClassifier``) runs a preprocessor over each
batch, in each epoch and each trial. If the preprocessor always returns the same arrays for an
example, in any batch, a search runs it over all data once. All trials with equal preprocessors then
train on these arrays in packs. Otherwise trials train in ``fit``: some preprocessors mask words at
random, or pad to the longest text of a batch.

This module never imports KerasHub: before the user has, there are no tasks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from paceline.data.arrays import NotArrays, beyond
from paceline.errors import DataError

#: Examples that are preprocessed twice, to see whether the same comes out.
_TRIED = 64
#: Examples that are preprocessed at once.
_AT_ONCE = 256
#: Examples that are preprocessed each alone, to see whether others in the batch change them.
_ALONE = 8
#: GiB of the arrays that a preprocessor makes, at most.
_MOST = 4


class Preprocessing:
    """What a task (``model``) does to the user's samples before its step sees them."""

    def __init__(self, model: Any) -> None:
        self._name = type(model).__name__
        self._why_not = _why_not(model)
        self._call: Callable[..., Any] = model.preprocess_samples
        self._identity = model.preprocessor is None
        # Text that two tasks have in common if they make the same of the same samples.
        self.key = ""
        if self._why_not is None and not self._identity:
            try:
                self.key = _key(model.preprocessor)
            except Exception as error:  # what Keras cannot write down
                self._why_not = f"its preprocessor cannot be compared ({type(error).__name__})"

    def samples(
        self, training: tuple[Any, ...], validation: tuple[Any, ...] | None
    ) -> PreprocessedSamples:
        """Runs the preprocessor over samples.

        ``training``: the user's x, y and sample weights; the latter two may be None.
        ``validation``: the same to validate on; None: there are none. Raises NotArrays if the
        arrays of a sample depend on the run or the batch or are too large, or if ``fit`` does more.
        """
        if self._why_not is not None:
            raise NotArrays(f"of {self._name} {self._why_not}")
        given = _as_samples(*training)
        others = None if validation is None else _as_samples(*validation)
        made = None if others is None else self._arrays(others)
        return PreprocessedSamples(self._arrays(given), made, given, others)

    def as_read(self, x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """The user's samples in arrays, which ``fit`` can split, where that is possible."""
        try:
            samples = _as_samples(x, y, sample_weight)
        except NotArrays:
            return x, y, sample_weight
        x, y, sample_weight = (*samples, *[None] * (3 - len(samples)))
        return x, y, sample_weight

    def _arrays(self, samples: tuple[Any, ...]) -> tuple[Any, ...]:
        """x, y and weights as the step sees them, nests of arrays [N, ...]; or None."""
        if self._identity:
            return keras.utils.unpack_x_y_sample_weight(samples)
        n = len(keras.tree.flatten(samples)[0])
        some = _rows(samples, np.arange(min(n, _TRIED)))
        made = self._run(some, _TRIED)
        # In another order: with TensorFlow's seed set, each run draws the same one after the other.
        turned = np.arange(min(n, _TRIED))[::-1]
        if not _same(made, _rows(self._run(_rows(some, turned), _TRIED), turned)):
            raise NotArrays(
                f"the preprocessor of {self._name} returns different arrays for the same samples"
            )
        few = _rows(samples, np.unique(np.linspace(0, n - 1, _ALONE, dtype=int)))
        if not _same(self._run(few, _ALONE), self._run(few, 1)):
            raise NotArrays(self._by_batch)
        nbytes = sum(leaf.nbytes for leaf in keras.tree.flatten(made) if leaf is not None)
        gigabytes = nbytes / min(n, _TRIED) * n / 2**30
        if gigabytes > _MOST:
            raise NotArrays(
                f"the output of the preprocessor of {self._name} would take {gigabytes:.0f} GiB"
            )
        return keras.utils.unpack_x_y_sample_weight(self._run(samples, _AT_ONCE))

    def _run(self, samples: tuple[Any, ...], size: int) -> Any:
        """Preprocesses batches of a size as the task's ``fit`` does, in ``tf.data`` or Grain."""
        try:
            batches = self._batches(samples, size)
        except Exception as error:  # as it would in ``fit``
            raise DataError(
                f"training data: the preprocessor of {self._name} failed: {type(error).__name__}: "
                f"{error}"
            ) from error
        try:
            arrays = [keras.tree.map_structure(_as_array, batch) for batch in batches]
            return keras.tree.map_structure(lambda *leaves: np.concatenate(leaves), *arrays)
        except (TypeError, ValueError):  # rows of different lengths
            raise NotArrays(self._by_batch) from None

    def _batches(self, samples: tuple[Any, ...], size: int) -> list[Any]:
        packed = keras.utils.pack_x_y_sample_weight(*samples)
        if importlib.util.find_spec("grain") is None:
            import tensorflow as tf  # KerasHub has no other pipeline

            return list(tf.data.Dataset.from_tensor_slices(packed).batch(size).map(self._call))
        n = len(keras.tree.flatten(samples)[0])
        parts = [_rows(samples, np.arange(at, min(at + size, n))) for at in range(0, n, size)]
        return [self._call(*(_as_python(each) for each in part)) for part in parts]

    @property
    def _by_batch(self) -> str:
        return (
            f"the preprocessor of {self._name} returns different arrays for a sample in different "
            "batches (set a fixed sequence_length)"
        )


def preprocessing_of(model: Any) -> Preprocessing | None:
    """What a model does to samples in its ``fit``; None if it is not a task of KerasHub."""
    task = task_class()
    return Preprocessing(model) if task is not None and isinstance(model, task) else None


def task_class() -> Any:
    """``keras_hub.models.Task``; None before the user has imported KerasHub."""
    return getattr(getattr(sys.modules.get("keras_hub"), "models", None), "Task", None)


@dataclass(frozen=True)
class PreprocessedSamples:
    """What a task's preprocessor has made of the user's samples, and these samples."""

    training: tuple[Any, ...]  # x, y and sample weights to train on, as the step sees them
    validation: tuple[Any, ...] | None  # the same to validate on; None: none were given
    given: tuple[Any, ...]  # the user's samples to train on: ``(x,)``, ``(x, y)`` or with weights
    given_validation: tuple[Any, ...] | None  # the same to validate on

    def as_given(self, n: int | None) -> dict[str, Any]:
        """The data as the task's own ``fit`` takes them, which runs the preprocessor itself.

        ``n``: number of examples to train on, if the others are for validation. None: there are
        validation data, or each member of a trial has its fold.
        """
        training, validation = self.given, self.given_validation
        size = len(keras.tree.flatten(training)[0])
        if n is None and validation is None:
            validation = training
        elif n is not None and n < size:
            training, validation = (
                _rows(training, np.arange(n)),
                _rows(training, np.arange(n, size)),
            )
        fit: dict[str, Any] = dict(zip(("x", "y", "sample_weight"), training, strict=False))
        return fit if validation is None else {**fit, "validation_data": validation}


def _as_samples(x: Any, y: Any = None, sample_weight: Any = None) -> tuple[Any, ...]:
    """The user's samples as ``fit`` of a task reads them: nests of arrays [N, ...].

    ``x`` is an array or list of samples, or a tuple or dict of these; a list is one array. So are
    ``y`` and ``sample_weight``, or None. Returns ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``.
    Raises NotArrays where rows of a list have different lengths, or parts have.
    """
    given = (x, y, sample_weight)
    n_parts = max(i + 1 for i, part in enumerate(given) if i == 0 or part is not None)
    samples = tuple(_leaves(part, _read) for part in given[:n_parts])
    lengths = {leaf.shape[:1] for leaf in keras.tree.flatten(samples) if leaf is not None}
    if len(lengths) != 1 or lengths == {()}:
        raise NotArrays("x, y and sample_weight have different numbers of examples")
    return samples


def _why_not(model: Any) -> str | None:
    """Why a task's data cannot be preprocessed once for all trials; None: they can, it seems."""
    task, hub = task_class(), sys.modules["keras_hub"]
    for name in ("fit", "evaluate", "preprocess_samples"):
        if getattr(type(model), name) is not getattr(task, name):
            return f"the class has its own {name}()"
    preprocessor = model.preprocessor
    if preprocessor is not None and not isinstance(preprocessor, hub.models.Preprocessor):
        return f"the preprocessor is a {type(preprocessor).__name__}, not a keras_hub Preprocessor"
    return None


def _key(preprocessor: Any) -> str:
    """A digest of all that decides what a preprocessor does: its configuration and vocabulary."""
    config = keras.saving.serialize_keras_object(preprocessor)
    found = hashlib.sha256(json.dumps(config, sort_keys=True, default=repr).encode())
    save = getattr(preprocessor.tokenizer, "save_assets", None)
    if save is not None:  # a vocabulary is in no configuration
        with tempfile.TemporaryDirectory() as folder:
            save(folder)
            for path in sorted(Path(folder).rglob("*")):
                found.update(path.name.encode())
                found.update(path.read_bytes() if path.is_file() else b"")
    return found.hexdigest()[:16]


def _leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """Maps a nest in which tuples and dicts are structure, and a list is one array."""
    if isinstance(value, tuple):
        return tuple(_leaves(each, function) for each in value)
    if isinstance(value, dict):
        return {name: _leaves(each, function) for name, each in value.items()}
    return None if value is None else function(value)


def _read(leaf: Any) -> np.ndarray:
    try:
        array = np.asarray(leaf)
    except ValueError:
        raise NotArrays("x holds rows of different lengths") from None
    if not hasattr(leaf, "dtype"):  # Python's numbers, as TensorFlow reads them
        narrow = {"f": np.float32, "i": np.int32}.get(array.dtype.kind)
        array = array if narrow is None or beyond(array) is not None else array.astype(narrow)
    return array


def _as_python(value: Any) -> Any:
    """Texts as lists of ``str``, as Grain's pipeline of KerasHub hands them on."""
    return _leaves(value, lambda leaf: leaf.tolist() if leaf.dtype.kind in "OSU" else leaf)


def _as_array(value: Any) -> np.ndarray:
    if type(value).__name__ == "RaggedTensor":
        raise ValueError
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        raise ValueError
    return array


def _rows(samples: Any, numbers: np.ndarray) -> Any:
    return keras.tree.map_structure(lambda leaf: leaf[numbers], samples)


def _same(one: Any, other: Any) -> bool:
    """Whether two nests hold the same arrays."""
    ones, others = keras.tree.flatten(one), keras.tree.flatten(other)
    return len(ones) == len(others) and all(
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(ones, others, strict=True)
    )
