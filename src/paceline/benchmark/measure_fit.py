"""Keras' own ``fit``, timed: what it costs, and why its first epoch is slower than the others."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import keras

from paceline.benchmark.measure import describe
from paceline.benchmark.records import Config, FirstEpoch, Measurement
from paceline.benchmark.timing import quartiles
from paceline.data.arrays import ArrayData

#: Epochs after the first that are timed, at least and at most; no further one after so many
#: seconds.
EPOCHS, MOST, PATIENCE = 3, 10, 2.0
#: Seconds for an epoch; of more data a part is taken.
LONGEST = 5.0

#: JAX's own events for what happens before a program runs.
_TRACE = "/jax/core/compile/jaxpr_trace_duration"
_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"
Interval = tuple[float, float]


class Compiling:
    """When JAX traced, lowered and compiled, in whatever thread, while this was listened to."""

    def __init__(self) -> None:
        self.intervals: dict[str, list[Interval]] = {_TRACE: [], _LOWER: [], _COMPILE: []}
        self._lock = threading.Lock()

    def hear(self, event: str, seconds: float) -> None:
        """Takes an event that has just ended."""
        if event in self.intervals:
            now = time.perf_counter()
            with self._lock:
                self.intervals[event].append((now - seconds, now))

    def split(self, until: float) -> tuple[float, float, float, int]:
        """Seconds of tracing, lowering and compiling until then, each second counted once.

        Events nest (a traced function calls another): their union counts, and compiling is taken
        out of lowering, and both out of tracing. The last number is how many were compiled.
        """
        kept = {e: [i for i in found if i[1] <= until] for e, found in self.intervals.items()}
        compiled = length(kept[_COMPILE])
        lowered = length(kept[_COMPILE] + kept[_LOWER])
        traced = length(kept[_COMPILE] + kept[_LOWER] + kept[_TRACE])
        return traced - lowered, lowered - compiled, compiled, len(kept[_COMPILE])


def length(intervals: list[Interval]) -> float:
    """Seconds that any of the intervals covers."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        if stop > end:
            total += stop - max(start, end)
            end = stop
    return total


_heard: list[Compiling] = []
_listening = False


@contextmanager
def listening() -> Iterator[Compiling]:
    """Listens to JAX; one listener for the whole process, since old JAX cannot take one back."""
    global _listening
    if not _listening:
        jax.monitoring.register_event_duration_secs_listener(_tell)
        _listening = True
    compiling = Compiling()
    _heard.append(compiling)
    try:
        yield compiling
    finally:
        _heard.remove(compiling)


def _tell(event: str, duration_secs: float, **more: Any) -> None:
    for compiling in list(_heard):
        compiling.hear(event, duration_secs)


class Times(keras.callbacks.Callback):
    """When the first batch ended, and when each epoch began and ended.

    Args:
        patience: Seconds of later epochs after which no other begins.
    """

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience
        self.first_batch: float | None = None
        self.epochs: list[Interval] = []
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins."""
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step was sent to the device, everything before it being compiled."""
        if self.first_batch is None:
            self.first_batch = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Its steps are done: the logs are numbers."""
        self.epochs.append((self._began, time.perf_counter()))
        later = self.epochs[1:]
        spent = sum(end - start for start, end in later)
        if len(later) >= EPOCHS and spent > self._patience and self.model is not None:
            self.model.stop_training = True


def measure_fit(
    model: Callable[[], Any],
    data: ArrayData,
    spot: Config,
    *,
    seconds_per_step: float | None = None,
    patience: float = PATIENCE,
) -> tuple[Measurement, FirstEpoch | None]:
    """Measures Keras' ``fit``; what fails is in the cell.

    Args:
        model: Builds the model.
        data: Training data.
        spot: Its plan is fit.
        seconds_per_step: What a step takes elsewhere, to tell how much data makes a short epoch;
            None: not known.
        patience: Seconds for epochs after the first.
    """
    try:
        return _measure(model, data, spot, seconds_per_step, patience)
    except Exception as error:  # the user's code, or Keras: the other cells go on
        return Measurement(spot, "failed", describe(error)), None


def _measure(
    build: Callable[[], Any],
    data: ArrayData,
    spot: Config,
    seconds_per_step: float | None,
    patience: float,
) -> tuple[Measurement, FirstEpoch]:
    began = time.perf_counter()
    model = build()
    built = time.perf_counter() - began
    size, steps = spot.batch_size, -(-data.n // spot.batch_size)
    if seconds_per_step is not None and seconds_per_step * steps > LONGEST:
        steps = max(2, int(LONGEST / seconds_per_step))
        data = data.slice(0, steps * size)
    times = Times(patience)
    names = ("x", "y", "sample_weight")
    arrays: dict[str, Any] = dict(zip(names, data.inputs, strict=False))
    with listening() as compiling:
        began = time.perf_counter()
        model.fit(**arrays, batch_size=size, epochs=1 + MOST, callbacks=[times], verbose=0)
    each = [(end - start) / steps for start, end in times.epochs[1:]]
    low, step, high = quartiles(each)
    assert times.first_batch is not None
    parts: tuple[float | None, ...] = (None, None, None, None)
    known = 0.0
    if keras.backend.backend() == "jax":
        trace, lower, compiled, programs = compiling.split(times.epochs[0][1])
        parts, known = (trace, lower, compiled, programs), trace + lower + compiled
    # What the first step took beyond a step and beyond what JAX accounts for.
    before = compiling.split(times.first_batch)
    startup = times.first_batch - began - step - (sum(before[:3]) if known else 0.0)
    first = FirstEpoch(
        batch_size=size,
        steps=steps,
        first=times.epochs[0][1] - began,
        later=statistics.median(end - start for start, end in times.epochs[1:]),
        epochs=len(each),
        trace=parts[0],
        lower=parts[1],
        compile=parts[2],
        programs=None if parts[3] is None else int(parts[3]),
        startup=max(0.0, startup),
    )
    cell = Measurement(
        spot,
        "measured",
        build=built,
        trace=first.trace,
        compile=None if first.compile is None else first.compile + (first.lower or 0.0),
        first=times.first_batch - began,
        step=step,
        low=low,
        high=high,
        runs=len(each),
        steps=steps,
    )
    return cell, first
