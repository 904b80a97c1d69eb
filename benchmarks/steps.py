"""Compiles a model's training step under a plan, and times it as in a search: a thread per core.

S: slots of a pack. L: logs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np

from paceline.data.arrays import prepare
from paceline.data.chunks import EpochData
from paceline.executor import process
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.training.planner import Planner
from paceline.pack.plan import LoopedProgram, SequentialProgram, VectorizedProgram, Workload
from paceline.pack.plan import sequential as sequential_plan
from paceline.pack.plan import vectorized as vectorized_plan
from paceline.program import trace
from paceline.program.step_template import StepTemplate
from paceline.search_space import HyperParameters


def on_cpu() -> bool:
    """Return whether JAX runs on the CPU."""
    return jax.default_backend() == "cpu"


def packs_at_once() -> int:
    """Return how many packs a search trains at once: one per core, or one on an accelerator."""
    return Planner().packs_at_once


def always_compile() -> None:
    """Turn the caches of compiled programs off, so that compiling can be timed."""
    plans: tuple[Any, ...] = (vectorized_plan, sequential_plan)
    for module in plans:
        module.program_key = lambda *parts: None
    jax.config.update("jax_enable_compilation_cache", False)


class TracedStep:
    """The traced training step of one model.

    Args:
        build: ``build(hp)``, as ``Tuner`` takes it.
        x, y: Training data [N, ...]; N is a multiple of ``batch_size``.
        batch_size: Examples per trial and step.
        trials: Hyperparameters of trials that share the step; the seed of trial i is i. Values that
            differ between trials become inputs of the step.
    """

    def __init__(
        self,
        build: Callable[[Any], Any],
        x: np.ndarray,
        y: np.ndarray,
        batch_size: int,
        trials: Sequence[Mapping[str, Any]] = ({},),
    ) -> None:
        self.data = prepare(x, y)
        self.work = Workload(self.data, None, batch_size, batch_size)
        self.steps = self.data.n // batch_size
        shapes = self.data.batch_shapes(batch_size)
        self.states, self.constants = [], []
        for seed, values in enumerate(trials):
            model = ModelBuilder(build)(HyperParameters(values=values), seed)
            self.states.append(trace.build_state(model, shapes))
            step = trace.trace_train(model, self.states[-1], shapes)
            self.constants.append(step.canonical.constants)
            if seed == 0:
                self.role = StepTemplate(step, None)
            self.role.admit(step.canonical.constants)
        if len(trials) > 1:
            self.role.settle(len(trials))

    def compile(self, plan: str, n_slots: int) -> tuple[Any, float]:
        """Compile the step under a plan; return the program and the seconds that this took."""
        parts: Any = ([self.role], trace.shapes_only(self.states[0]), self.work)
        began = time.perf_counter()
        if plan == "sequential":
            program: Any = SequentialProgram(*parts)
        else:
            kind = LoopedProgram if plan == "looped" else VectorizedProgram
            program = kind(*parts, n_slots)
        program.roles()
        return program, time.perf_counter() - began

    def _on_device(self) -> EpochData:
        return self.work.epoch_data(self.data.on_device())

    def history(self, program: Any) -> list[dict[str, float]]:
        """Return the logs of each trial after one epoch in the order of the data."""
        data, n_slots, found = self._on_device(), program.n_slots, []
        while len(found) < len(self.states):
            state, lifted = self._laid(program, len(found))
            logs = program.train(state, lifted, data, self._order(n_slots))[1]
            found += [
                dict(zip(self.role.full.log_names, row, strict=True))
                for row in np.asarray(logs).tolist()
            ]
        return found[: len(self.states)]

    @process.freed_memory_kept()
    def milliseconds(self, program: Any, n_packs: int, epochs: int, patience: float) -> float:
        """Return the milliseconds of one trial's step, with all cores at work.

        The figure is the least of three runs, after one run to warm up.

        Args:
            program: The program from ``compile``.
            n_packs: Number of packs that train at the same time, from a thread each.
            epochs: Epochs of a run.
            patience: Seconds after which no run begins. If an epoch takes a tenth of them, a run
                has one epoch; if an epoch takes all of them, there is only one run.
        """
        data, order = self._on_device(), self._order(program.n_slots)

        def train(laid: Any, epochs: int) -> None:
            (*state, metrics), lifted = laid
            for _ in range(epochs):
                (*state, _), logs = program.train([*state, metrics], lifted, data, order)
                jax.block_until_ready((state, logs))

        def together(epochs: int) -> float:
            packs = [self._laid(program, 0) for _ in range(n_packs)]
            threads = [threading.Thread(target=train, args=(laid, epochs)) for laid in packs]
            jax.block_until_ready(packs)
            began = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return time.perf_counter() - began

        first, over = together(1), time.perf_counter() + patience
        epochs = 1 if first > patience / 10 else epochs
        runs = [first if first > patience else together(epochs)]
        while first <= patience and len(runs) < 3 and time.perf_counter() < over:
            runs.append(together(epochs))
        return 1e3 * min(runs) / (epochs * self.steps * program.n_slots * n_packs)

    def _laid(self, program: Any, first: int) -> tuple[Any, Any]:
        """The variables and lifted constants of a pack whose slots hold the trials in turn."""
        chosen = [(first + slot) % len(self.states) for slot in range(program.n_slots)]
        rows = [[self.constants[i][j].value for j in self.role.lifted] for i in chosen]
        return program.place([self.states[i] for i in chosen]), program.lay(rows)

    def _order(self, n_slots: int) -> np.ndarray:
        return np.tile(np.arange(self.data.n, dtype=np.int32), (n_slots, 1))
