"""One model of several trials: those whose mean prediction is best on validation data.

Greedy selection with replacement, as in Caruana, Niculescu-Mizil, Crew and Ksikes, "Ensemble
selection from libraries of models" (ICML 2004): from the best single model on, the model whose
prediction most improves the mean is added, and may be added again; the best of all these means is
kept. One half of the data selects, the other half shows what the ensemble is worth.

N: examples. K: models of the ensemble, repeated ones included.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import tree

from paceline.data.arrays import ArrayData
from paceline.errors import UsageError
from paceline.report import formats
from paceline.study.ensemble_record import EnsembleRecord
from paceline.study.objective import Objective
from paceline.study.trial_codec import plain

#: Examples in a step of the measurement.
_BATCH = 256
#: Before the name of a metric that is measured on validation data.
_VALIDATION = "val_"


def check_models(models: Sequence[tuple[int, keras.Model]]) -> None:
    """Refuses models of which no single model can be made.

    Args:
        models: Numbers of trials and their models, the best first.

    Raises:
        UsageError: A model is no Functional or Sequential one, or has other inputs or outputs than
            the best.
    """

    def ends(model: keras.Model) -> tuple[Any, ...]:
        tensors = (model.inputs, model.outputs)
        return tuple((tuple(t.shape), str(t.dtype)) for side in tensors for t in side)

    best = models[0][1]
    for number, model in models:
        if not getattr(model, "inputs", None):  # of a subclass Keras knows no symbolic inputs
            raise UsageError(
                f"ensemble: the model of trial {number} is a {type(model).__name__}, and only "
                "Functional and Sequential models can be put together into one; take the mean of "
                "the predictions of best_models(n) by hand."
            )
        if ends(model) != ends(best):
            raise UsageError(
                f"ensemble: the model of trial {number} has other inputs or outputs than that of "
                f"trial {models[0][0]}, so their predictions have no mean."
            )


def select(
    n_models: int, value_of: Callable[[Sequence[int]], float], objective: Objective, k: int
) -> list[int]:
    """Selects models whose mean prediction is best.

    Args:
        n_models: The number of models to select from.
        value_of: Returns the objective of the mean prediction of models, given by their positions;
            one that comes twice counts twice.
        objective: Says which values are better.
        k: Models of the ensemble at most, repeated ones included.

    Returns:
        Their positions, in the order in which they were added: the first is the best by itself.
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


class Predictions:
    """What models predict for the same examples, and the objective of means of it.

    Args:
        models: The models, the best first; the loss and the metrics are those of the first.
        data: The examples.
        metric: The objective's name in the logs of ``evaluate``.
    """

    def __init__(self, models: Sequence[keras.Model], data: ArrayData, metric: str) -> None:
        x, self._y, self._weight = (*data.inputs, None, None)[:3]
        self._each = [model.predict(x, batch_size=_BATCH, verbose="0") for model in models]
        self._metric = metric
        self._judge = _judge(models[0])

    def value(self, positions: Sequence[int], rows: np.ndarray) -> float:
        """The objective of the mean prediction of models.

        Args:
            positions: The models, by their positions.
            rows: The examples, by their positions.

        Raises:
            UsageError: The objective is not among what ``evaluate`` measures.
        """

        def taken(nest: Any) -> Any:
            return tree.map_structure(lambda a: np.asarray(a)[rows], nest)

        several = [taken(self._each[position]) for position in positions]
        mean = [np.mean(arrays, axis=0) for arrays in zip(*map(tree.flatten, several), strict=True)]
        logs = self._judge.evaluate(
            mean,
            taken(self._y),
            sample_weight=None if self._weight is None else taken(self._weight),
            batch_size=min(_BATCH, len(rows)),
            verbose="0",
            return_dict=True,
        )
        if self._metric not in logs:
            raise UsageError(
                f"ensemble: the objective {self._metric!r} is not among what the model's evaluate "
                f"measures: {', '.join(logs)}."
            )
        return float(logs[self._metric])


def _judge(model: keras.Model) -> keras.Model:
    """A model whose inputs are predictions, with the loss and the metrics of ``model``."""
    inputs = [keras.Input(t.shape[1:], dtype=t.dtype) for t in model.outputs]
    names = _output_names(model)
    outputs = [keras.layers.Identity(name=n)(t) for n, t in zip(names, inputs, strict=True)]
    judge = keras.Model(inputs, tree.pack_sequence_as(_nest(model, "output"), outputs))
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
            "ensemble: Keras cannot repeat the model's compile, as for saving: "
            f"{str(error).splitlines()[0]} Register your own losses and metrics with "
            "keras.saving.register_keras_serializable."
        ) from None
    return other


def joined(models: Sequence[tuple[int, keras.Model]]) -> keras.Model:
    """Makes one model that returns the mean of what models return.

    Args:
        models: Numbers of trials and their models; one that comes twice counts twice.

    Returns:
        The model, compiled as the first one, its parts called ``trial_NUMBER``.
    """

    def like(tensor: Any) -> Any:
        return keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name)

    best = models[0][1]
    inputs = tree.map_structure(like, _nest(best, "input"))
    by_number = dict(models)
    for number, model in by_number.items():
        model.name = f"trial_{number}"
    made = {number: tree.flatten(model(inputs)) for number, model in by_number.items()}
    outputs = []
    for position, name in enumerate(_output_names(best)):
        parts = [made[number][position] for number, _ in models]
        # Average takes at least two; the same prediction may be several of them.
        average = keras.layers.Average(name=name)
        outputs.append(average(parts if len(parts) > 1 else parts * 2))
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
    """Selects models and joins them.

    Args:
        models: Numbers of trials and their models, the best first.
        data: Validation data.
        objective: Of the study.
        k: Models of the ensemble at most, repeated ones included.
        seed: Decides which half of the data selects.

    Returns:
        The model, and of which trials it is and what it is worth on the half that took no part in
        the selection.

    Raises:
        UsageError: The models, the data or the objective do not allow an ensemble.
    """
    check_models(models)
    if data.n < 2:
        raise UsageError(f"ensemble: {data.n} example cannot be halved; give more data.")
    if not objective.name.startswith(_VALIDATION):
        raise UsageError(
            f"ensemble: the objective {objective.name!r} is not of validation data; an ensemble is "
            "selected by one such as 'val_loss'."
        )
    order = np.random.default_rng(seed).permutation(data.n)
    halves = np.sort(order[: data.n // 2]), np.sort(order[data.n // 2 :])
    metric = objective.name.removeprefix(_VALIDATION)
    predictions = Predictions([model for _, model in models], data, metric)
    chosen = select(len(models), lambda some: predictions.value(some, halves[0]), objective, k)
    alone = chosen[0]  # the best single model: the selection begins with it
    value, single = predictions.value(chosen, halves[1]), predictions.value([alone], halves[1])
    parts = [models[position] for position in chosen]
    numbers = [number for number, _ in parts]
    record = EnsembleRecord(numbers, objective.name, plain(value), plain(single), len(halves[1]))
    return joined(parts), record


def worth_of(record: EnsembleRecord) -> str:
    """A sentence that says of which trials an ensemble is, and what it is worth."""
    return (
        f"ensemble of trials {formats.repeated(record.trials)}: {record.objective} "
        f"{formats.metric(float(record.value))}, and {formats.metric(float(record.alone))} "
        f"of trial {record.trials[0]} alone, on the {record.n_examples:,} examples that took no "
        "part in the selection"
    )
