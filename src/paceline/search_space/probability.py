"""Maps cumulative probabilities in [0, 1) to the values of a hyperparameter, and back.

Draws, grids and Gaussian processes of KerasTuner's tuners use these maps. The arithmetic is that of
KerasTuner, so that a seed gives the same configurations. Each function is given a declared
``HyperParameter``, whose methods these functions are.
"""

from __future__ import annotations

import math
from typing import Any


def value_at(hp: Any, probability: float) -> Any:
    """Return the value at a cumulative probability in [0, 1]."""
    if hp.kind == "Fixed":
        return hp.value
    if hp.kind == "Boolean":
        return probability >= 0.5
    if hp.choices is not None:
        return hp.choices[_index(probability, len(hp.choices))]
    if hp.step is not None:
        return nth_value(hp, _index(probability, n_values(hp)))
    if hp.kind == "Float":
        return _between(hp, hp.max_value, probability)
    # + 1: the upper bound is as likely as the others.
    return int(_between(hp, hp.max_value + 1, probability))


def probability_of(hp: Any, value: Any) -> float:
    """Return the middle of the probabilities that lead to a value."""
    if hp.kind == "Fixed":
        return 0.5
    if hp.kind == "Boolean":
        return 0.75 if value else 0.25
    if hp.choices is not None:
        exact = [i for i, c in enumerate(hp.choices) if type(c) is type(value) and c == value]
        return ((exact or [hp.choices.index(value)])[0] + 0.5) / len(hp.choices)
    low, high, step = hp.min_value, hp.max_value, hp.step
    if step is not None:
        if hp.sampling == "linear":
            index = (value - low) // step
        else:
            ratio = value if hp.sampling == "log" else high - value + low
            index = math.log(ratio / low, step)
        return (index + 0.5) / n_values(hp)
    if hp.kind == "Int":
        value, high = value + 0.5, high + 1
    if low == high:
        return 0.5
    if hp.sampling == "linear":
        return (value - low) / (high - low)
    if hp.sampling == "log":
        return math.log(value / low) / math.log(high / low)
    return 1.0 - math.log((high + low - value) / low) / math.log(high / low)


def n_values(hp: Any) -> int:
    """Return the number of values of a range with a step."""
    low, high, step = hp.min_value, hp.max_value, hp.step
    if hp.sampling == "linear":
        return int((high - low) // step + 1)
    return int(math.log(high / low, step) + 1e-8) + 1


def nth_value(hp: Any, index: int) -> Any:
    """Return the value at an index, from 0, of a range with a step."""
    low, high, step = hp.min_value, hp.max_value, hp.step
    if hp.sampling == "linear":
        value = low + index * step
    else:
        value = low * math.pow(step, index)
        value = value if hp.sampling == "log" else high + low - value
    return int(value) if hp.kind == "Int" else value


def _index(probability: float, count: int) -> int:
    return min(math.floor(probability / (1 / count)), count - 1)


def _between(hp: Any, high: Any, share: float) -> float:
    low = hp.min_value
    if hp.sampling == "linear":
        return share * (high - low) + low
    if hp.sampling == "log":
        return low * math.pow(high / low, share)
    return high + low - low * math.pow(high / low, 1 - share)
