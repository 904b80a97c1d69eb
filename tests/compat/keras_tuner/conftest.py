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


#: KerasTuner itself, of which the locks have one version, for `make test-slow`: that it does what
#: is asked of ours.
@pytest.fixture(params=[pytest.param("keras_tuner", marks=pytest.mark.slow), "paceline"])
def kt(request, theirs) -> Iterator[Any]:
    """Each side in turn; KerasTuner may warn (of ``currentThread``, of optimizers), we may not."""
    if request.param == "paceline":
        yield ours
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield theirs
