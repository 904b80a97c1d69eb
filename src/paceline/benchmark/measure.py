"""One cell measured: compiled afresh under its plan, run as a search runs it, timed.

S: slots of a lane. N: training examples.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from paceline.benchmark import flops as arithmetic
from paceline.benchmark.records import Config, Measurement
from paceline.benchmark.subject import Subject, Traced
from paceline.benchmark.timing import Clock, Timing, time_steps
from paceline.data.arrays import epoch_order
from paceline.executor.memory import is_out_of_memory, size_text
from paceline.pack.mesh import MeshLayout
from paceline.pack.plan import CompiledPlan, MappedProgram, SequentialProgram, StackedProgram
from paceline.program.canonical import Unpackable

#: Seconds for the timed runs of a cell.
PATIENCE = 1.0


@contextlib.contextmanager
def nothing_cached() -> Iterator[None]:
    """Programs are compiled afresh inside: what comes from a cache cannot be timed."""
    from jax.experimental.compilation_cache import compilation_cache

    config: Any = jax.config
    before = config.jax_enable_compilation_cache
    config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides at a process' first compile
    try:
        yield
    finally:
        config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def measure(
    subject: Subject,
    spot: Config,
    *,
    patience: float = PATIENCE,
    clock: Clock = time.perf_counter,
) -> Measurement:
    """Measures one spot; what fails is in the cell.

    Args:
        subject: The model and its data.
        spot: Any plan but fit.
        patience: Seconds for the timed runs.
        clock: Seconds that never go back.
    """
    known: dict[str, Any] = {}
    try:
        return _measure(subject, spot, known, patience, clock)
    except Unpackable as why:
        return Measurement(spot, "failed", f"it cannot be packed: {why}", **known)
    except Exception as error:  # the user's code, or XLA: the other cells go on
        if is_out_of_memory(error):
            known["fits"] = False
        return Measurement(spot, "failed", describe(error), **known)


def _measure(
    subject: Subject,
    spot: Config,
    known: dict[str, Any],
    patience: float,
    clock: Clock,
) -> Measurement:
    traced = subject.traced(spot.batch_size)
    known |= {"build": traced.build, "trace": traced.trace}
    layout = layout_of(spot)
    began = clock()
    program = _compile(traced, spot, layout)
    executables = [each for role in program.roles() for each in role]
    known["compile"] = clock() - began
    side_by_side = spot.slots // spot.trial_devices if spot.plan == "stacked" else 1
    flops, counted = arithmetic.of_step(
        traced.group.train.full.closed, executables[0], side_by_side
    )
    # Of a batch that is split, each device's program holds its share.
    flops = None if flops is None else flops * (spot.data_devices if counted == "xla" else 1)
    known |= {"flops": flops, "flops_from": counted}
    known["memory"] = _memory(subject, executables, spot)
    if known["memory"] is not None and subject.free != float("inf"):
        known["fits"] = known["memory"] <= subject.free
        if not known["fits"]:
            needs, free = size_text(known["memory"]), size_text(subject.free)
            return Measurement(
                spot, "failed", f"it needs {needs} on the device; {free} are free", **known
            )
    with _Lanes(program, traced, subject.on_device(layout), spot, subject.seed) as lanes:
        timing: Timing = time_steps(
            lanes.run, most_steps=traced.group.work.steps, patience=patience, clock=clock
        )
    return Measurement(
        spot,
        "measured",
        first=timing.first,
        step=timing.median,
        low=timing.low,
        high=timing.high,
        runs=timing.runs,
        steps=timing.steps,
        **{**known, "fits": True},
    )


def layout_of(spot: Config) -> MeshLayout | None:
    """The devices of a spot; None for the default one."""
    if spot.devices == 1:
        return None
    devices = tuple(jax.local_devices()[: spot.devices])
    return MeshLayout(devices, spot.trial_devices, spot.data_devices)


def _compile(traced: Traced, spot: Config, layout: MeshLayout | None) -> CompiledPlan:
    group = traced.group
    # Without validation: a step of it is timed by the epochs of ``rehearsal``.
    parts = (group.train, None, group.state, group.work)
    if spot.plan == "sequential":
        return SequentialProgram(*parts, quick=False)
    kind = MappedProgram if spot.plan == "mapped" else StackedProgram
    return kind(*parts, n_slots=spot.slots, quick=False, layout=layout)


def _memory(subject: Subject, executables: list[Any], spot: Config) -> float | None:
    """Bytes on a device at most: the data once, and each lane's arrays."""
    sizes = [size for size in (each.memory() for each in executables) if size is not None]
    if not sizes:
        return None
    data = subject.data.nbytes
    return data + spot.lanes * max(0.0, max(sizes) - data)


class _Lanes:
    """Packs with all slots taken, one per lane, that step together.

    Args:
        program: Compiled; the lanes share it.
        traced: What it is made of.
        data: On the device.
        spot: Lanes and slots.
        seed: Of the first slot's order.
    """

    def __init__(
        self, program: CompiledPlan, traced: Traced, data: Any, spot: Config, seed: int
    ) -> None:
        self._program, self._data = program, traced.group.work.epoch_data(data)
        train = traced.group.train
        values = [train.full.canonical.constants[i].value for i in program.lifted[0]]
        self._constants = program.lay([values] * spot.slots)
        n = traced.group.work.n_train
        orders = [epoch_order(seed + i, 0, n, True) for i in range(spot.at_once)]
        cut = [orders[i * spot.slots : (i + 1) * spot.slots] for i in range(spot.lanes)]
        self._orders = [np.stack(each) for each in cut]
        self._states = [program.place([traced.state] * spot.slots) for _ in range(spot.lanes)]
        jax.block_until_ready(self._states)
        self._pool = ThreadPoolExecutor(spot.lanes) if spot.lanes > 1 else None

    def __enter__(self) -> _Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._states.clear()

    def run(self, steps: int) -> None:
        """So many steps of every lane; returns when the device has done them."""
        if self._pool is None:
            self._run_lane(0, steps)
            return
        lanes = [self._pool.submit(self._run_lane, i, steps) for i in range(len(self._states))]
        for lane in lanes:
            lane.result()

    def _run_lane(self, lane: int, steps: int) -> None:
        *state, metrics = self._states[lane]
        order = self._orders[lane]
        new, logs = self._program.train(
            [*state, metrics], self._constants, self._data, order, steps=steps
        )
        jax.block_until_ready((new, logs))
        self._states[lane] = [*new, metrics]


def describe(error: BaseException) -> str:
    """An error in one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
