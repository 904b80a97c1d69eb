"""Times Keras' own ``fit``: what a step costs, and why the first epoch is slower than others."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import keras

from paceline.benchmark.measure.cell import describe
from paceline.benchmark.measure.timing import quartiles
from paceline.benchmark.records import CellConfig, FirstEpoch, Measurement
from paceline.data.arrays import ArrayData
from paceline.program.initial_weights import values_kept

#: Epochs after the first that are timed: at least EPOCHS and at most MOST; after PATIENCE seconds
#: of them no further epoch begins.
EPOCHS, MOST, PATIENCE = 3, 10, 2.0
#: Seconds of an epoch at most; if all of the data would take longer, a part of it is used.
LONGEST = 5.0

#: JAX's own events for what happens before a program runs.
_TRACE = "/jax/core/compile/jaxpr_trace_duration"
_LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILE = "/jax/core/compile/backend_compile_duration"
Interval = tuple[float, float]


class CompileMoments:
    """Records when JAX traced, lowered and compiled, in any thread of the process."""

    def __init__(self) -> None:
        self.intervals: dict[str, list[Interval]] = {_TRACE: [], _LOWER: [], _COMPILE: []}
        self._lock = threading.Lock()

    def hear(self, event: str, seconds: float) -> None:
        """Records an event that has just ended and took ``seconds``."""
        if event in self.intervals:
            now = time.perf_counter()
            with self._lock:
                self.intervals[event].append((now - seconds, now))

    def split(self, until: float) -> tuple[float, float, float, int]:
        """Splits the time until a moment, of ``time.perf_counter``, into the seconds of each kind.

        Events nest, because a traced function calls another. So each second counts once: as
        compiling if JAX compiled, else as lowering if it lowered, else as tracing. Returns the
        seconds of tracing, of lowering and of compiling, and the number of compiled programs.
        """
        kept = {e: [i for i in found if i[1] <= until] for e, found in self.intervals.items()}
        compiled = length(kept[_COMPILE])
        lowered = length(kept[_COMPILE] + kept[_LOWER])
        traced = length(kept[_COMPILE] + kept[_LOWER] + kept[_TRACE])
        return traced - lowered, lowered - compiled, compiled, len(kept[_COMPILE])


def length(intervals: list[Interval]) -> float:
    """Returns the seconds that at least one of the intervals covers."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        if stop > end:
            total += stop - max(start, end)
            end = stop
    return total


_heard: list[CompileMoments] = []
_listening = False


@contextmanager
def listening() -> Iterator[CompileMoments]:
    """A block in which JAX's events are recorded.

    The process registers one listener, once: old versions of JAX cannot unregister one.
    """
    global _listening
    if not _listening:
        jax.monitoring.register_event_duration_secs_listener(_tell)
        _listening = True
    compiling = CompileMoments()
    _heard.append(compiling)
    try:
        yield compiling
    finally:
        _heard.remove(compiling)


def _tell(event: str, duration_secs: float, **more: Any) -> None:
    for compiling in list(_heard):
        compiling.hear(event, duration_secs)


class EpochMoments(keras.callbacks.Callback):
    """Records when the first batch ended, and when each epoch began and ended.

    No epoch begins once those after the first have taken ``patience`` seconds.
    """

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience
        self.first_batch: float | None = None
        self.epochs: list[Interval] = []
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes when an epoch begins."""
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes when the first step has been sent to the device: by then it is compiled."""
        if self.first_batch is None:
            self.first_batch = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes when an epoch ends: the device has done its steps, since the logs are numbers."""
        self.epochs.append((self._began, time.perf_counter()))
        later = self.epochs[1:]
        spent = sum(end - start for start, end in later)
        if len(later) >= EPOCHS and spent > self._patience and self.model is not None:
            self.model.stop_training = True


def measure_fit(
    model: Callable[[], Any],
    data: ArrayData,
    config: CellConfig,
    *,
    seconds_per_step: float | None = None,
    patience: float = PATIENCE,
) -> tuple[Measurement, FirstEpoch | None]:
    """Measures Keras' ``fit`` of the model that ``model`` builds; also returns its first epoch.

    An error does not reach the caller: the measurement has the state "failed" and the error as its
    reason, and there is no first epoch. ``seconds_per_step`` under another plan tells which part of
    the data makes a short epoch; None: all of the data is used. The epochs after the first take
    ``patience`` seconds.
    """
    try:
        return _measure(model, data, config, seconds_per_step, patience)
    except Exception as error:  # an error of one cell must not end the others
        return Measurement(config, "failed", describe(error)), None


def _measure(
    build: Callable[[], Any],
    data: ArrayData,
    config: CellConfig,
    seconds_per_step: float | None,
    patience: float,
) -> tuple[Measurement, FirstEpoch]:
    began = time.perf_counter()
    model = build()
    built = time.perf_counter() - began
    size, steps = config.batch_size, -(-data.n // config.batch_size)
    if seconds_per_step is not None and seconds_per_step * steps > LONGEST:
        steps = max(2, int(LONGEST / seconds_per_step))
        data = data.slice(0, steps * size)
    times = EpochMoments(patience)
    names = ("x", "y", "sample_weight")
    arrays: dict[str, Any] = dict(zip(names, data.inputs, strict=False))
    with values_kept(model), listening() as compiling:
        began = time.perf_counter()
        model.fit(**arrays, batch_size=size, epochs=1 + MOST, callbacks=[times], verbose=0)
    # A last batch that is not full counts as the part that it is: rates are of full batches.
    each = [(end - start) / (data.n / size) for start, end in times.epochs[1:]]
    low, step, high = quartiles(each)
    assert times.first_batch is not None
    parts: tuple[float | None, ...] = (None, None, None, None)
    known = 0.0
    if keras.backend.backend() == "jax":
        trace, lower, compiled, programs = compiling.split(times.epochs[0][1])
        parts, known = (trace, lower, compiled, programs), trace + lower + compiled
    # Starting up is the rest of the first step: without one ordinary step, tracing and compiling.
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
    measurement = Measurement(
        config,
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
    return measurement, first
