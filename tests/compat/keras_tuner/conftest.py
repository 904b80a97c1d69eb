"""Both sides: KerasTuner as installed, and ours."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import paceline.compat.keras_tuner as ours


@pytest.fixture(scope="session")
def theirs() -> Any:
    """KerasTuner itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("keras_tuner")


@pytest.fixture(params=["keras_tuner", "paceline"])
def kt(request, theirs) -> Iterator[Any]:
    """Each side in turn; KerasTuner may warn (of ``currentThread``, of optimizers), we may not."""
    if request.param == "paceline":
        yield ours
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield theirs
