"""The contract of executors on the backend that Keras runs on here (`make test-backends`)."""

from __future__ import annotations

from typing import Any

from paceline.executor.base import Executor
from paceline.executor.fit import FitExecutor
from paceline.executor.testing import Data, ExecutorContract


class TestFitExecutor(ExecutorContract):
    def executor(self, data: Data, validation: Data) -> Executor:
        arguments: dict[str, Any] = {"x": data[0], "y": data[1], "validation_data": validation}
        return FitExecutor({**arguments, "shuffle": False})
