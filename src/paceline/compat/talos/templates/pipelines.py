"""Whole scans of the template models."""

from __future__ import annotations

from paceline.compat.talos.scan import Scan
from paceline.compat.talos.templates import datasets, models, params


def iris(round_limit: int = 2, random_method: str = "uniform_mersenne") -> Scan:
    """Runs a scan on ``datasets.iris``."""
    x, y = datasets.iris()
    return Scan(
        x,
        y,
        params.iris(),
        models.iris,
        "test",
        round_limit=round_limit,
        random_method=random_method,
    )


def breast_cancer(round_limit: int = 2, random_method: str = "uniform_mersenne") -> Scan:
    """Runs a scan on ``datasets.breast_cancer``."""
    x, y = datasets.breast_cancer()
    return Scan(
        x,
        y,
        params.breast_cancer(),
        models.breast_cancer,
        "test",
        round_limit=round_limit,
        random_method=random_method,
    )
