"""Callbacks under the names of Talos."""

from __future__ import annotations

import csv
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from paceline.compat.talos.analyze import pyplot
from paceline.errors import MissingExtraError


class ExperimentLog(keras.callbacks.Callback):
    """Writes one row for each epoch to a file of the permutation.

    Args:
        experiment_name: Folder of the file.
        params: Parameter values of the permutation.
    """

    def __init__(
        self, experiment_name: str, params: dict[str, Any], backend: str = "keras"
    ) -> None:
        super().__init__()
        self.hash = uuid.uuid4().hex[:16]
        self._values = dict(params)
        folder = Path(experiment_name)
        folder.mkdir(parents=True, exist_ok=True)
        self.name = str(folder / f"epochs-{self.hash}.log")
        self.final_out: list[dict[str, Any]] = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts a new log when a fit begins."""
        self.final_out = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the row of an epoch."""
        row = {"id": self.hash, "epoch": epoch + 1, **(logs or {})}
        params = {k: getattr(v, "__name__", v) for k, v in self._values.items()}
        new = not self.final_out and not Path(self.name).exists()
        self.final_out.append(row)
        with Path(self.name).open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow([*row, *params])
            writer.writerow([*row.values(), *params.values()])


class PowerDraw(keras.callbacks.Callback):
    """Records the power that the GPU draws, in watts, at the start and the end of each epoch.

    In a pack, that is the power for all permutations of the pack together.

    Args:
        device: Number of the GPU.
        provider: Returns watts; None: ``nvidia-smi`` is asked.
    """

    def __init__(
        self,
        device: int = 0,
        backend: str = "keras",
        provider: Callable[[], float] | None = None,
    ) -> None:
        super().__init__()
        self._device, self._provider = device, provider
        self.log: dict[str, list[float]] = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts new lists when a fit begins."""
        self.log = {"epoch_begin": [], "epoch_end": [], "seconds": []}

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Measures the power."""
        self._began = time.monotonic()
        self.log["epoch_begin"].append(self._watts())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Measures the power."""
        self.log["epoch_end"].append(self._watts())
        self.log["seconds"].append(time.monotonic() - self._began)

    def _watts(self) -> float:
        if self._provider is not None:
            return float(self._provider())
        command = ["nvidia-smi", "-i", str(self._device), "--query-gpu=power.draw"]
        try:
            done = subprocess.run(
                [*command, "--format=csv,noheader,nounits"],
                check=True,
                capture_output=True,
                text=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise MissingExtraError(
                "PowerDraw needs nvidia-smi, which does not answer. Install NVIDIA's driver, or "
                "pass provider=, a function that returns watts."
            ) from error
        return float(done.stdout.strip())


class TrainingPlot(keras.callbacks.Callback):
    """Draws the metrics of a fit after each epoch."""

    def __init__(self, backend: str = "keras", **options: Any) -> None:
        super().__init__()
        self.history: dict[str, list[float]] = {}

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens a figure."""
        self.figure, self.axes = pyplot().subplots()
        self.history = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Draws the metrics with those of the epoch."""
        self.axes.clear()
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(float(value))
            values = self.history[name]
            self.axes.plot(range(1, len(values) + 1), values, label=name)
        self.axes.set_xlabel("epoch")
        self.axes.legend()
        self.figure.canvas.draw_idle()
