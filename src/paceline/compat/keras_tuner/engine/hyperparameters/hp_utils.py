"""What tuners do with one hyperparameter: draws, grids, and texts."""

from __future__ import annotations

import math
from typing import Any

from paceline.compat.keras_tuner.protos import get_proto
from paceline.search_space import HyperParameter
from paceline.search_space.probability import n_values, nth_value, value_at

#: Scales of Int and Float; KerasTuner's messages have numbers for them.
_SAMPLINGS = ("linear", "log", "reverse_log")


def config_of(hp: HyperParameter) -> dict[str, Any]:
    """Returns the config as KerasTuner prints it; an Int without a given default has None."""
    config = hp.get_config()
    conditions = config.pop("conditions")
    found = {"name": config.pop("name")}
    if hp.kind != "Fixed":
        default = config.pop("default")
        given = hp.kind != "Int" or default != hp.min_value
        found["default"] = default if given else None
    return {**found, "conditions": conditions, **config}


def grid_of(hp: HyperParameter) -> list[Any]:
    """Returns the values of a grid, the default first; 10 values of a range without step."""
    if hp.kind == "Fixed":
        return [hp.value]
    if hp.choices is not None:
        values = list(dict.fromkeys(hp.choices))
    elif hp.step is not None:
        values = [nth_value(hp, index) for index in range(n_values(hp))]
    else:
        # KerasTuner's order, that of a set: numbers have the same one in every process.
        values = list({value_at(hp, share * 0.1 + 0.05) for share in range(10)})
    return [hp.default, *(value for value in values if value != hp.default)]


def prob_to_index(prob: float, n_index: int) -> int:
    """Returns the index, from 0, of several equally likely ones at a cumulative probability."""
    return min(math.floor(prob * n_index), n_index - 1)


def index_to_prob(index: int, n_index: int) -> float:
    """Returns the middle of the probabilities that lead to an index."""
    return (index + 0.5) / n_index


def sampling_to_proto(sampling: str) -> Any:
    """Returns the number that KerasTuner's messages have for a scale; needs KerasTuner itself.

    Raises:
        ValueError: There is no such scale.
    """
    if sampling not in _SAMPLINGS:
        raise ValueError(f"Expected sampling to be one of {_SAMPLINGS}. Received: {sampling!r}.")
    return get_proto().Sampling.Value(sampling.upper())


def sampling_from_proto(sampling: Any) -> str:
    """Returns the scale of a number from ``sampling_to_proto``; needs KerasTuner itself.

    Raises:
        ValueError: No scale has this number.
    """
    numbers = {sampling_to_proto(name): name for name in _SAMPLINGS}
    if sampling not in numbers:
        raise ValueError(f"Expected sampling to be one of {list(numbers)}. Received: {sampling!r}.")
    return numbers[sampling]
