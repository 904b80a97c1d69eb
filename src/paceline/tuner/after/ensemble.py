"""One model of several trials: those whose mean prediction is best on validation data.

Greedy selection with replacement, as in Caruana, Niculescu-Mizil, Crew and Ksikes, "Ensemble
selection from libraries of models" (ICML 2004). It begins with the best single model. It adds the
model whose prediction most improves the mean, perhaps repeatedly, and keeps the best of all these
means. One half of the data selects, the other half evaluates the ensemble.

N: examples. K: models of the ensemble, repeated ones included.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import tree

from paceline.data.arrays import ArrayData
from paceline.errors import UsageError
from paceline.executor.wide_integers import cast_for
from paceline.program.keras_private import all_layers
from paceline.program.trace import each_number, flat_logs
from paceline.report import formats
from paceline.study.ensemble_record import EnsembleRecord
from paceline.study.objectives import Objective
from paceline.study.trials.trial_codec import plain

#: Examples in a step of predictions, and of the measurements that select, where that changes no
#: value. A masked loss and a metric of one number are means over steps, so they are measured in the
#: steps that ``evaluate`` takes by itself.
_BATCH = 256
#: Before the name of a metric that is measured on validation data.
_VALIDATION = "val_"
#: Keras' own regularizers, which are proportional to their factors.
_SCALABLE = (
    keras.regularizers.L1,
    keras.regularizers.L2,
    keras.regularizers.L1L2,
    keras.regularizers.OrthogonalRegularizer,
)
#: The factors, by their names in the configurations.
_FACTORS = ("l1", "l2", "factor")


def check_models(models: Sequence[tuple[int, keras.Model]]) -> None:
    """Refuses models, with their trials' numbers, of which no single model can be made.

    Each must be Functional or Sequential, with the inputs and outputs of the first, the best.
    """

    def ends(model: keras.Model) -> tuple[Any, ...]:
        tensors = (model.inputs, model.outputs)
        return tuple((tuple(t.shape), str(t.dtype)) for side in tensors for t in side)

    best = models[0][1]
    for number, model in models:
        if not getattr(model, "inputs", None):  # of a subclass Keras knows no symbolic inputs
            raise UsageError(
                f"ensemble: the model of trial {number} is a {type(model).__name__}, but only "
                "Functional and Sequential models can be combined. Compute the mean of the "
                "predictions of best_models(n) yourself."
            )
        if ends(model) != ends(best):
            raise UsageError(
                f"ensemble: the model of trial {number} has other inputs or outputs than that of "
                f"trial {models[0][0]}, so their predictions have no mean."
            )


def select(
    n_models: int, value_of: Callable[[Sequence[int]], float], objective: Objective, k: int
) -> list[int]:
    """Selects at most ``k`` models whose mean prediction is best: positions, the best one first.

    One that comes twice counts twice. ``value_of`` returns the objective of models' mean
    prediction.
    """
    chosen: list[int] = []
    best: tuple[list[int], float] = ([0], math.nan)
    for _ in range(k):
        found: tuple[int, float] = (-1, math.nan)
        for position in range(n_models):
            value = value_of(_lowest_terms([*chosen, position]))
            if found[0] < 0 or objective.better(value, found[1]):
                found = (position, value)
        chosen = [*chosen, found[0]]
        if objective.better(found[1], best[1]):
            best = (chosen, found[1])
    return best[0]


def _lowest_terms(positions: Sequence[int]) -> list[int]:
    """The fewest models of the same mean: of one mean rounding would make values that differ."""
    counts = Counter(positions)
    common = math.gcd(*counts.values())
    return [each for each in sorted(counts) for _ in range(counts[each] // common)]


@dataclass(eq=False)
class EnsembleCandidate:
    """A model that may become a part of an ensemble."""

    number: int  # of its trial
    model: keras.Model  # its regularizers are replaced by copies when it becomes a part
    #: What holds a regularizer, the attribute, and the regularizer that the user gave.
    _held: list[tuple[Any, str, keras.Regularizer]] = field(init=False)

    def __post_init__(self) -> None:
        # Keras computes with the regularizers of the variables, and saves those of the layers.
        # ActivityRegularization saves its factors by other names, so it cannot be scaled.
        layers = (
            layer
            for layer in all_layers(self.model)
            if not isinstance(layer, keras.layers.ActivityRegularization)
        )
        self._held = [
            (holder, name, each)
            for holder in (*layers, *self.model.trainable_variables)
            for name, each in tuple(vars(holder).items())
            if type(each) in _SCALABLE
        ]

    def scale_penalties(self, share: float) -> None:
        """Gives the model copies of Keras' regularizers, with ``share`` of the user's factors.

        Models of the user may share the regularizers themselves. Earlier shares do not count.
        """
        for holder, name, regularizer in self._held:
            config = regularizer.get_config()
            scaled = {n: v * share if n in _FACTORS else v for n, v in config.items()}
            setattr(holder, name, type(regularizer).from_config(scaled))

    def penalties(self, x: Any) -> list[float]:
        """What the model adds to its loss, apart from the loss that it was compiled with."""
        self.model(x, training=False)
        sums: list[Any] = [keras.ops.sum(each) for each in self.model.losses]
        return [float(each) for each in sums]


def check_penalties(parts: Sequence[EnsembleCandidate], data: ArrayData) -> None:
    """Refuses models with penalties of no regularizer of Keras, which an ensemble would add up."""
    x = data.slice(0, 1).inputs[0]
    for part in parts:
        part.scale_penalties(0.0)
        others = any(part.penalties(x))
        part.scale_penalties(1.0)
        if others:
            raise UsageError(
                f"ensemble: the model of trial {part.number} adds to its loss (add_loss, "
                "ActivityRegularization, or your own regularizer), which has no mean over several "
                "models. Compute the mean of the predictions of best_models(n) yourself."
            )


class _MaskOf(keras.layers.Layer):
    """Returns the mask that Keras carries beside a tensor; None if there is none."""

    def __init__(self) -> None:
        super().__init__(autocast=False)
        self.supports_masking = True

    def call(self, x: Any, mask: Any = None) -> Any:
        return mask


class _WithMasks(keras.Model):
    """Returns the outputs of a model in a list, and output's position -> mask."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__(autocast=False)
        self.part = model
        self.mask_of = _MaskOf()

    def call(self, x: Any) -> Any:
        outputs = tree.flatten(self.part(x, training=False))
        masks = {str(i): self.mask_of(output) for i, output in enumerate(outputs)}
        return outputs, {i: mask for i, mask in masks.items() if mask is not None}


class _Masked(keras.layers.Layer):
    """Returns the first of two tensors; the second is its mask."""

    def call(self, inputs: Any) -> Any:
        return inputs[0]

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        return inputs[1]


class Predictions:
    """What models predict for the same examples, and the objective of means of it.

    The loss and the metrics are those of the first model, the best; ``metric`` is the objective's
    name in the logs of ``evaluate``.
    """

    def __init__(self, parts: Sequence[EnsembleCandidate], data: ArrayData, metric: str) -> None:
        x, self._y, self._weight = (*data.inputs, None, None)[:3]
        self._best = parts[0].model
        self._each = [
            _WithMasks(part.model).predict(x, batch_size=_BATCH, verbose="0") for part in parts
        ]
        self._metric = metric
        self._judges: dict[tuple[str, ...], keras.Model] = {}
        self._penalties = [0.0] * len(parts)
        if metric == "loss":
            first = data.slice(0, 1).inputs[0]
            for position, part in enumerate(parts):
                if part.penalties(first):
                    whole = measured(joined([part]), data, metric)
                    self._penalties[position] = whole - self._without_penalties([position], None)
        self._step: int | None = None
        if not any(masks for _, masks in self._each):
            small, large = (self._without_penalties([0], step) for step in (None, _BATCH))
            if math.isclose(small, large, rel_tol=1e-6, abs_tol=1e-8):
                self._step = _BATCH

    def value(self, positions: Sequence[int]) -> float:
        """The objective of models' mean prediction; penalties in the loss are the mean, too."""
        penalty = float(np.mean([self._penalties[position] for position in positions]))
        return self._without_penalties(positions, self._step) + penalty

    def _without_penalties(self, positions: Sequence[int], step: int | None) -> float:
        outputs, masks = zip(*(self._each[position] for position in positions), strict=True)
        mean = [
            np.mean([np.asarray(each, _mean_dtype(each)) for each in arrays], axis=0)
            for arrays in zip(*outputs, strict=True)
        ]
        # As Average does: an example counts where one of the models counts it.
        masked = tuple(i for i in masks[0] if all(i in each for each in masks))
        either = [np.logical_or.reduce([each[i] for each in masks]) for i in masked]
        if masked not in self._judges:
            self._judges[masked] = _judge(self._best, masked, either)
        return measured(
            self._judges[masked],
            ArrayData(([*mean, *either], self._y, self._weight), len(mean[0])),
            self._metric,
            step,
        )


def measured(model: keras.Model, data: ArrayData, metric: str, step: int | None = None) -> float:
    """A number of what ``evaluate`` returns, those of an array among them as in a history."""
    x, y, weight = (*data.inputs, None, None)[:3]
    logs = model.evaluate(
        x, y, sample_weight=weight, batch_size=step, verbose="0", return_dict=True
    )
    logs = each_number({name: np.asarray(value) for name, value in flat_logs(logs).items()})
    if metric not in logs:
        raise UsageError(
            f"ensemble: the model's evaluate does not return the objective {metric!r}, only "
            f"{', '.join(logs)}."
        )
    return float(logs[metric])


def _mean_dtype(tensor: Any) -> str:
    """The dtype of a mean: models in bfloat16 predict numbers whose mean needs more digits."""
    return keras.backend.result_type(tensor.dtype, "float32")


def _judge(model: keras.Model, masked: Sequence[str], masks: Sequence[np.ndarray]) -> keras.Model:
    """A model with the loss and metrics of ``model``: its inputs are predictions and masks."""
    predicted = [keras.Input(t.shape[1:], dtype=_mean_dtype(t)) for t in model.outputs]
    beside = {
        i: keras.Input(mask.shape[1:], dtype="bool") for i, mask in zip(masked, masks, strict=True)
    }
    outputs = [
        _Masked(name=name)([tensor, beside[str(i)]])
        if str(i) in beside
        else keras.layers.Identity(name=name)(tensor)
        for i, (name, tensor) in enumerate(zip(_output_names(model), predicted, strict=True))
    ]
    judge = keras.Model(
        [*predicted, *beside.values()], tree.pack_sequence_as(_nest(model, "output"), outputs)
    )
    return _compiled_like(model, judge)


def _nest(model: keras.Model, side: str) -> Any:
    """The symbolic ``input`` or ``output`` of a model, in the form in which it takes or returns it.

    A Sequential model that was never called has lists of them only.
    """
    if isinstance(model, keras.Sequential):
        return getattr(model, f"{side}s")[0]
    return getattr(model, side)


def _output_names(model: keras.Model) -> list[str]:
    """The names by which ``compile`` knows the outputs of a model."""
    if isinstance(model, keras.Sequential):
        return [model.layers[-1].name]
    return list(model.output_names)


def _compiled_like(model: keras.Model, other: keras.Model) -> keras.Model:
    try:
        other.compile_from_config(model.get_compile_config())
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"ensemble: Keras cannot compile a copy of the model: {str(error).splitlines()[0]} "
            "Register your own losses and metrics with keras.saving.register_keras_serializable."
        ) from None
    return other


def joined(parts: Sequence[EnsembleCandidate]) -> keras.Model:
    """Makes one model that returns the mean of models; one that comes twice counts twice.

    It is compiled as the first one, its parts called ``trial_NUMBER``. Penalties of Keras'
    regularizers are the mean of those of the models.
    """

    def like(tensor: Any) -> Any:
        return keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name)

    best = parts[0].model
    inputs = tree.map_structure(like, _nest(best, "input"))
    made = {}
    for part, times in Counter(parts).items():
        part.model.name = f"trial_{part.number}"
        part.scale_penalties(times / len(parts))
        made[part] = tree.flatten(part.model(inputs))
    outputs = []
    for position, name in enumerate(_output_names(best)):
        tensors = [made[part][position] for part in parts]
        # Average takes at least two; the same prediction may be several of them.
        average = keras.layers.Average(name=name, dtype=_mean_dtype(tensors[0]))
        outputs.append(average(tensors if len(tensors) > 1 else tensors * 2))
    model = keras.Model(
        inputs, tree.pack_sequence_as(_nest(best, "output"), outputs), name="ensemble"
    )
    return _compiled_like(best, model)


def make_ensemble(
    models: Sequence[tuple[int, keras.Model]],
    data: ArrayData,
    objective: Objective,
    k: int,
    seed: int,
) -> tuple[keras.Model, EnsembleRecord]:
    """Selects at most ``k`` of the models, the best first, on one half of ``data``, and joins them.

    The models are used up: those selected become parts of the ensemble. ``seed`` decides which half
    of the validation data selects. The record says what the ensemble is worth on the other half.
    """
    check_models(models)
    if data.n < 2:
        raise UsageError(f"ensemble: {data.n} example cannot be halved. Pass more data.")
    if not objective.name.startswith(_VALIDATION):
        raise UsageError(
            f"ensemble: the objective {objective.name!r} is not measured on validation data. An "
            "ensemble needs an objective such as 'val_loss'."
        )
    metric = objective.name.removeprefix(_VALIDATION)
    parts = [EnsembleCandidate(number, model) for number, model in models]
    if metric == "loss":
        check_penalties(parts, data)
    selecting, other = _halves(cast_for([model for _, model in models], data), seed)
    chosen = select(len(parts), Predictions(parts, selecting, metric).value, objective, k)
    # The best single model comes first: the selection begins with it.
    value_alone = measured(joined([parts[chosen[0]]]), other, metric)
    model = joined([parts[position] for position in chosen])
    numbers = [parts[position].number for position in chosen]
    value = measured(model, other, metric)
    return model, EnsembleRecord(numbers, objective.name, plain(value), plain(value_alone), other.n)


def _halves(data: ArrayData, seed: int) -> tuple[ArrayData, ArrayData]:
    """The examples that select and the others, both in the order of the data."""
    order = np.random.default_rng(seed).permutation(data.n)
    rows, others = np.sort(order[: data.n // 2]), np.sort(order[data.n // 2 :])

    def taken(some: np.ndarray) -> ArrayData:
        inputs: Any = tree.map_structure(lambda array: np.asarray(array)[some], data.inputs)
        return ArrayData(inputs, len(some), data.wrapped)

    return taken(rows), taken(others)


def worth_of(record: EnsembleRecord) -> str:
    """A sentence that says of which trials an ensemble is, and what it is worth."""
    return (
        f"ensemble of trials {formats.repeated(record.trials)}: {record.objective} "
        f"{formats.metric(float(record.value))}, and {formats.metric(float(record.alone))} of "
        f"trial {record.trials[0]} alone, on the {record.n_examples:,} examples that were not "
        "used for the selection"
    )
