"""Measures one cell: compiles its plan again, runs it as a search would, and times the steps.

S: slots of a pack. N: training examples.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from paceline.benchmark.measure.subject import BenchModel, TracedSteps
from paceline.benchmark.measure.timing import Clock, time_steps
from paceline.benchmark.records import CellConfig, Measurement
from paceline.data.arrays import epoch_order
from paceline.executor.training.memory import is_out_of_memory, size_text
from paceline.pack.mesh import MeshLayout
from paceline.pack.plan import CompiledPlan, LoopedProgram, SequentialProgram, VectorizedProgram
from paceline.pack.plan.base import count_flops
from paceline.program.canonical import Unpackable
from paceline.program.compile import CompileEffort, Executable

#: Seconds for the timed runs of a cell by default.
PATIENCE = 1.0


@contextlib.contextmanager
def nothing_cached() -> Iterator[None]:
    """A block in which every program is compiled again: one from a cache has no compile time."""
    from jax.experimental.compilation_cache import compilation_cache

    config: Any = jax.config
    before = config.jax_enable_compilation_cache
    config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX reads the option only when the cache is first used
    try:
        yield
    finally:
        config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def measure(
    subject: BenchModel,
    config: CellConfig,
    *,
    patience: float = PATIENCE,
    clock: Clock = time.perf_counter,
) -> Measurement:
    """Measures one cell with any plan but "fit", its runs for ``patience`` seconds.

    An error of the user's code or of XLA does not reach the caller. The measurement has the state
    "failed" and the error as its reason.
    """
    known: dict[str, Any] = {}
    try:
        return _measure(subject, config, known, patience, clock)
    except Unpackable as why:
        return Measurement(config, "failed", f"it cannot be packed: {why}", **known)
    except Exception as error:  # an error of one cell must not end the others
        if is_out_of_memory(error):
            known["fits"] = False
        return Measurement(config, "failed", describe(error), **known)


def _measure(
    subject: BenchModel,
    config: CellConfig,
    known: dict[str, Any],
    patience: float,
    clock: Clock,
) -> Measurement:
    traced = subject.traced(config.batch_size)
    known |= {"build": traced.build, "trace": traced.trace}
    layout = layout_of(config)
    began = clock()
    program = _compile(traced, config, layout)
    executables = [each for role in program.roles() for each in role]
    known["compile"] = clock() - began
    side_by_side = config.slots // config.trial_devices if config.plan == "vectorized" else 1
    flops, counted = flops_of_step(traced.group.train.full.closed, executables[0], side_by_side)
    # Where a batch is split over devices, XLA counts the share of one device.
    flops = None if flops is None else flops * (config.data_devices if counted == "xla" else 1)
    known |= {"flops": flops, "flops_from": counted}
    known["memory"] = _memory(subject, executables, config)
    if known["memory"] is not None and subject.free != float("inf"):
        known["fits"] = known["memory"] <= subject.free
        if not known["fits"]:
            needs, free = size_text(known["memory"]), size_text(subject.free)
            return Measurement(
                config, "failed", f"it needs {needs} on the device; only {free} are free", **known
            )
    with _TimedPacks(program, traced, subject.on_device(layout), config, subject.seed) as threads:
        timing = time_steps(
            threads.run, most_steps=traced.group.work.steps, patience=patience, clock=clock
        )
    return Measurement(config, "measured", **asdict(timing), **{**known, "fits": True})


def layout_of(config: CellConfig) -> MeshLayout | None:
    """Returns the mesh of a cell; None for the default device alone."""
    if config.devices == 1:
        return None
    devices = tuple(jax.local_devices()[: config.devices])
    return MeshLayout(devices, config.trial_devices, config.data_devices)


def _compile(traced: TracedSteps, config: CellConfig, layout: MeshLayout | None) -> CompiledPlan:
    group = traced.group
    # Validation is left out: the epochs of ``pilot_search`` hold its time.
    parts = ([group.train], group.state, group.work)
    if config.plan == "sequential":
        return SequentialProgram(*parts, effort=CompileEffort.WELL)
    kind = LoopedProgram if config.plan == "looped" else VectorizedProgram
    return kind(*parts, n_slots=config.slots, effort=CompileEffort.WELL, layout=layout)


def flops_of_step(
    closed: Any, executable: Executable, side_by_side: int
) -> tuple[float | None, str]:
    """Counts the floating-point operations of one step of one trial; None if they are unknown.

    Also returns who counted: "xla" or "trace". XLA's cost analysis counts one pass of a loop,
    however many passes the loop makes. That is right for the loop over the steps of an epoch, and
    wrong for a loop inside the step (recurrent layers). For a step with such a loop, the matrix
    products and convolutions of the traced step are counted, each ``scan`` as often as it runs.

    ``closed`` is the traced step. ``executable`` is the compiled step, or a program with the step
    in a loop. One pass trains ``side_by_side`` trials.
    """
    counted, loops = count_flops(closed.jaxpr)
    if loops:
        return counted or None, "trace"
    flops = executable.flops()
    return (None if flops is None else flops / side_by_side), "xla"


def _memory(subject: BenchModel, executables: list[Any], config: CellConfig) -> float | None:
    """Bytes that a cell needs on a device: the data once, and the arrays of each pack."""
    sizes = [size for size in (each.memory for each in executables) if size is not None]
    if not sizes:
        return None
    data = subject.data.nbytes
    return data + config.packs * max(0.0, max(sizes) - data)


class _TimedPacks:
    """A thread for each pack, with a trial in every slot; the packs step at the same time.

    ``data`` is on the device. ``seed`` orders the examples in the first slot, ``seed + i`` in
    slot i.
    """

    def __init__(
        self, program: CompiledPlan, traced: TracedSteps, data: Any, config: CellConfig, seed: int
    ) -> None:
        self._program, self._data = program, traced.group.work.epoch_data(data)
        train = traced.group.train
        values = [train.full.canonical.constants[i].value for i in program.lifted[0]]
        self._constants = program.lay([values] * config.slots)
        n = traced.group.work.n_train
        orders = [epoch_order(seed + i, 0, n, True) for i in range(config.at_once)]
        cut = [orders[i * config.slots : (i + 1) * config.slots] for i in range(config.packs)]
        self._orders = [np.stack(each) for each in cut]
        self._states = [program.place([traced.state] * config.slots) for _ in range(config.packs)]
        jax.block_until_ready(self._states)
        self._pool = ThreadPoolExecutor(config.packs) if config.packs > 1 else None

    def __enter__(self) -> _TimedPacks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._states.clear()

    def run(self, steps: int) -> None:
        """Runs ``steps`` steps of every pack; returns when the device has done them."""
        if self._pool is None:
            self._run_pack(0, steps)
            return
        threads = [self._pool.submit(self._run_pack, i, steps) for i in range(len(self._states))]
        for pack in threads:
            pack.result()

    def _run_pack(self, pack: int, steps: int) -> None:
        *state, metrics = self._states[pack]
        order = self._orders[pack]
        new, logs = self._program.train(
            [*state, metrics], self._constants, self._data, order, steps=steps
        )
        jax.block_until_ready((new, logs))
        self._states[pack] = [*new[:3], metrics]


def describe(error: BaseException) -> str:
    """Returns an error as one line of text."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__
