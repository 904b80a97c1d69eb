"""Whole scans of the template models."""

from __future__ import annotations

from typing import Any

from paceline.compat.talos.scan import Scan
from paceline.compat.talos.templates import datasets, models, params


def iris(round_limit: int = 2, random_method: str = "uniform_mersenne") -> Scan:
    """Runs a scan on ``datasets.iris``."""
    return _scan(datasets.iris(), params.iris(), models.iris, round_limit, random_method)


def breast_cancer(round_limit: int = 2, random_method: str = "uniform_mersenne") -> Scan:
    """Runs a scan on ``datasets.breast_cancer``."""
    data, function = datasets.breast_cancer(), models.breast_cancer
    return _scan(data, params.breast_cancer(), function, round_limit, random_method)


def cervical_cancer(round_limit: int = 2, random_method: str = "uniform_mersenne") -> Scan:
    """Runs a scan on ``datasets.cervical_cancer``."""
    data, function = datasets.cervical_cancer(), models.cervical_cancer
    return _scan(data, params.cervical_cancer(), function, round_limit, random_method)


def titanic(
    round_limit: int = 2, random_method: str = "uniform_mersenne", debug: bool = False
) -> Scan:
    """Runs a scan on ``datasets.titanic``."""
    return _scan(
        datasets.titanic(), params.titanic(debug), models.titanic, round_limit, random_method
    )


def _scan(
    data: tuple[Any, Any],
    values: dict[str, Any],
    function: Any,
    round_limit: int,
    random_method: str,
) -> Scan:
    x, y = data
    limits: dict[str, Any] = {"round_limit": round_limit, "random_method": random_method}
    return Scan(x, y, values, function, "test", **limits)
