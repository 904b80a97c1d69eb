"""Hyperparameters of every kind, whose values a copy may change."""

from __future__ import annotations

from typing import Any

from paceline.search_space import HyperParameters, Parameter


def parameter(kind: str, *arguments: Any, **named: Any) -> Parameter:
    hp = HyperParameters()
    getattr(hp, kind)("x", *arguments, **named)
    return next(iter(hp.parameters.values()))


PARAMETERS = {
    "float": parameter("Float", -1.0, 3.0),
    "float with a step": parameter("Float", 0.1, 0.9, step=0.1),
    "log": parameter("Float", 1e-5, 1e-1, sampling="log"),
    "reverse log": parameter("Float", 0.5, 0.999, sampling="reverse_log"),
    "log with a step": parameter("Float", 1e-4, 1.0, step=10, sampling="log"),
    "int": parameter("Int", 3, 90),
    "int with a step": parameter("Int", 32, 512, step=32),
    "int, log": parameter("Int", 1, 1000, sampling="log"),
    "int, log with a step": parameter("Int", 1, 1024, step=2, sampling="log"),
    "int, reverse log": parameter("Int", 1, 1000, sampling="reverse_log"),
    "numbers": parameter("Choice", [1, 8, 2, 4]),
    "names": parameter("Choice", ["relu", "tanh", "elu"]),
    "boolean": parameter("Boolean"),
}
