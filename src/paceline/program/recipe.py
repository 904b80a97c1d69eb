"""Skipping the trace: constants read off a model's configuration instead of tracing its steps again.

Tracing a small model's train and test step takes three quarters of the time a trial costs before it trains.
A stock Keras model, though, is a function of its serialised configuration: two models of one structure that
differ in numbers such as a dropout rate have the same steps but for constants that follow from those numbers.

A recipe is that configuration, split into structure and floating-point numbers. From the first trials of a
structure, all traced, each constant that differs is explained as one of a few formulas of one number
(``1 - rate``, ``1 / (1 - rate)``, ``2 * l2``, ...), equal to the bit in every trial seen; the next trial is
traced too, and must be as predicted. Only then are traces skipped, and only for numbers whose effect has
been seen. Anything else is traced: custom classes, functions, adapted preprocessing layers, numbers at 0 or 1
(where Keras drops an operation), constants that no formula explains.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import keras
import numpy as np

from paceline.program.canonical import Constant
from paceline.program.group import same

#: Configurations hold classes of these modules only; a user's class or function may do anything.
_STOCK = frozenset(
    {
        "keras",
        "keras.constraints",
        "keras.initializers",
        "keras.layers",
        "keras.losses",
        "keras.metrics",
        "keras.optimizers",
        "keras.optimizers.schedules",
        "keras.regularizers",
    }
)
#: Their steps hold what ``adapt`` has learnt, or code, which is not in their configuration.
_OPAQUE = frozenset(
    {
        "Discretization",
        "FlaxLayer",
        "HashedCrossing",
        "Hashing",
        "IntegerLookup",
        "JaxLayer",
        "Lambda",
        "Normalization",
        "StringLookup",
        "TFSMLayer",
        "TextVectorization",
        "TorchModuleWrapper",
    }
)
_OVERRIDES = frozenset({"call", "compute_loss", "compute_metrics", "test_step", "train_step"})
_LEARNING_RATE = ("optimizer", "config", "learning_rate")

#: Trials of one structure that are traced before any is predicted, and one more that checks the prediction.
_SAMPLES = 3
#: Trials whose constants are kept, for those whose numbers are all the same (seeds, learning rates).
_REMEMBERED = 32

_FORMULAS: tuple[Callable[[float], float], ...] = (
    lambda v: v,
    lambda v: 1.0 - v,
    lambda v: 1.0 / (1.0 - v),
    lambda v: 2.0 * v,
    lambda v: -v,
    lambda v: 1.0 / v,
    lambda v: v * v,
    lambda v: 1.0 - (1.0 - v),
    lambda v: 0.5 * v,
    lambda v: v - 1.0,
    lambda v: v / (1.0 - v),
    lambda v: 1.0 + v,
    lambda v: v**0.5,
)


@dataclass(frozen=True)
class Recipe:
    """A stock model's configuration.

    Attributes:
        structure: Digest of everything but the numbers.
        numbers: Floating-point numbers in the order they stand in the configuration. A constant learning rate
            is not among them: it is a variable, not a constant.
    """

    structure: str
    numbers: tuple[float, ...]


def recipe_of(model: Any) -> Recipe | None:
    """The recipe of a compiled model; None where its configuration does not tell all.

    Args:
        model: A compiled Keras model.
    """
    if not type(model).__module__.startswith("keras."):
        return None
    parts = [model, model.optimizer, *model.layers]
    if any(_OVERRIDES & vars(part).keys() for part in parts):
        return None
    try:
        config = {**model.get_compile_config(), "model": model.get_config()}
        numbers: list[float] = []
        plain = _plain(config, (), numbers)
        text = json.dumps(plain, sort_keys=True)
    except (TypeError, ValueError, RuntimeError, _NotStock):  # a get_config that gives up
        return None
    context = (
        keras.config.floatx(),
        str(jax.config.jax_default_matmul_precision),
        bool(jax.config.jax_enable_x64),
    )
    digest = hashlib.sha256(f"{type(model).__name__}{context}{text}".encode())
    return Recipe(digest.hexdigest(), tuple(numbers))


@dataclass
class Learned:
    """What is known of one structure.

    Attributes:
        group: Key of the group its trials belong to.
    """

    group: Any
    _samples: list[tuple[tuple[float, ...], list[tuple[Constant, ...]]]] = field(
        default_factory=list
    )
    _seen: dict[tuple[float, ...], list[tuple[Constant, ...]]] = field(default_factory=dict)
    _laws: list[dict[int, list[tuple[int, int]]]] | None = None  # constant -> (number, formula)s
    _state: str = "learning"  # learning, checking, trusted, hopeless

    def add(self, numbers: tuple[float, ...], steps: Sequence[tuple[Constant, ...]]) -> None:
        """Learns from a traced trial.

        Args:
            numbers: Of its recipe.
            steps: The constants of its train step and, with validation data, its test step.
        """
        if len(self._seen) < _REMEMBERED:
            self._seen.setdefault(numbers, [tuple(step) for step in steps])
        if self._state == "checking":
            expected = self._predict(numbers)
            if expected is None:
                return  # a number outside what has been seen: nothing to compare
            agree = all(
                same(a.value, b.value)
                for one, other in zip(expected, steps, strict=True)
                for a, b in zip(one, other, strict=True)
            )
            self._state = "trusted" if agree else "hopeless"
            return
        if self._state == "learning":
            self._samples.append((numbers, [tuple(step) for step in steps]))
            if len(self._samples) == _SAMPLES:
                self._laws = self._explain()
                self._state = "hopeless" if self._laws is None else "checking"

    def predict(self, numbers: tuple[float, ...]) -> list[tuple[Constant, ...]] | None:
        """The constants of a trial's steps; None where it has to be traced."""
        if numbers in self._seen:
            return self._seen[numbers]
        return self._predict(numbers) if self._state == "trusted" else None

    def _predict(self, numbers: tuple[float, ...]) -> list[tuple[Constant, ...]] | None:
        if self._laws is None or any(
            value != self._samples[0][0][j] and not self._known(j, value)
            for j, value in enumerate(numbers)
        ):
            return None
        steps = []
        for template, laws in zip(self._samples[0][1], self._laws, strict=True):
            constants = list(template)
            for i, explanations in laws.items():
                # Two numbers may have gone together in the samples: where they part, trace.
                values = [_apply(f, numbers[j], constants[i].value.dtype) for j, f in explanations]
                first = values[0]
                if first is None or any(v is None or not same(v, first) for v in values):
                    return None
                constants[i] = replace(constants[i], value=first)
            steps.append(tuple(constants))
        return steps

    def _known(self, j: int, value: float) -> bool:
        """Whether the effect of number j has been seen, away from where Keras decides by it."""
        seen = [numbers[j] for numbers, _ in self._samples]
        usual = all(v not in (0.0, 1.0) and (v > 0) == (value > 0) for v in (*seen, value))
        return len(set(seen)) == len(seen) and usual

    def _explain(self) -> list[dict[int, list[tuple[int, int]]]] | None:
        """A formula for every constant that differs between the samples."""
        numbers = [sample[0] for sample in self._samples]
        moving = [j for j in range(len(numbers[0])) if len({n[j] for n in numbers}) == _SAMPLES]
        laws: list[dict[int, list[tuple[int, int]]]] = []
        for step in range(len(self._samples[0][1])):
            found: dict[int, list[tuple[int, int]]] = {}
            for i, versions in enumerate(zip(*(s[1][step] for s in self._samples), strict=True)):
                values = [constant.value for constant in versions]
                if all(same(values[0], value) for value in values):
                    continue
                explanations = _explanations(values, numbers, moving)
                if not explanations:
                    return None
                found[i] = explanations
            laws.append(found)
        return laws


def _explanations(
    values: Sequence[np.ndarray], numbers: Sequence[tuple[float, ...]], moving: Sequence[int]
) -> list[tuple[int, int]]:
    """Every (number, formula) that gives all the values, to the bit."""
    if values[0].ndim:
        return []
    found = []
    for j in moving:
        for formula in range(len(_FORMULAS)):
            pairs = (
                (_apply(formula, n[j], value.dtype), value)
                for n, value in zip(numbers, values, strict=True)
            )
            if all(made is not None and same(made, value) for made, value in pairs):
                found.append((j, formula))
    return found


def _apply(formula: int, number: float, dtype: Any) -> np.ndarray | None:
    try:
        return np.asarray(_FORMULAS[formula](number)).astype(dtype)
    except (ArithmeticError, TypeError, ValueError):
        return None


class _NotStock(Exception):
    pass


def _plain(value: Any, path: tuple[str, ...], numbers: list[float]) -> Any:
    """The configuration with its numbers taken out, in one fixed order."""
    if isinstance(value, dict):
        _check_stock(value)
        return {
            key: _plain(value[key], (*path, str(key)), numbers) for key in sorted(value, key=str)
        }
    if isinstance(value, (list, tuple)):
        return [_plain(part, path, numbers) for part in value]
    if isinstance(value, float):
        if path != _LEARNING_RATE:
            numbers.append(value)
        return "number"
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise _NotStock(type(value))


def _check_stock(config: dict[str, Any]) -> None:
    if "class_name" not in config:
        return
    if config.get("module") not in _STOCK or config.get("registered_name") is not None:
        raise _NotStock(config["class_name"])
    if config["class_name"] in _OPAQUE:
        raise _NotStock(config["class_name"])
