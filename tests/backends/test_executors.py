"""The contract of executors on the backend that Keras runs on here (`make test-backends`)."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from paceline.data.arrays import prepare
from paceline.executor.base import Executor, PackOptions, SearchData
from paceline.executor.fit import FitExecutor
from paceline.executor.testing import Data, ExecutorContract

JAX = keras.backend.backend() == "jax"


class TestFitExecutor(ExecutorContract):
    def executor(self, data: Data, validation: Data) -> Executor:
        arguments: dict[str, Any] = {"x": data[0], "y": data[1], "validation_data": validation}
        return FitExecutor({**arguments, "shuffle": False})


@pytest.mark.skipif(not JAX, reason="packs need JAX")
class TestLocalExecutor(ExecutorContract):
    def executor(self, data: Data, validation: Data) -> Executor:
        from paceline.executor.local import LocalExecutor

        return LocalExecutor(
            SearchData(prepare(*data), prepare(*validation), shuffle=False), PackOptions(slots=2)
        )
