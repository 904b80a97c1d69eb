"""Measures all cells of one run within a budget, the most telling ones first.

Cells that are measured are kept, whatever happens to later ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import keras
from msgspec.structs import replace

from paceline.benchmark.measure import environment, grid
from paceline.benchmark.measure.accuracy import SCALES, CurveInterrupted, train_curve
from paceline.benchmark.measure.cell import PATIENCE, describe, measure
from paceline.benchmark.measure.keras_fit import measure_fit
from paceline.benchmark.measure.pilot_search import run_pilot, startup_seconds
from paceline.benchmark.measure.subject import BenchModel
from paceline.benchmark.measure.timing import Clock
from paceline.benchmark.presentation.advice import way
from paceline.benchmark.records import (
    CellConfig,
    Curve,
    FirstEpoch,
    Measurement,
    PlannedSearch,
    Run,
)
from paceline.executor.process import StopSignal
from paceline.executor.training.planner import Planner
from paceline.program.canonical import Unpackable
from paceline.report import formats
from paceline.report.forecast import Costs, Pace

_USED_UP = "the measuring time is used up"
#: Epochs of a search so long that even a slow compilation is worth it.
_MANY = 10_000
#: The time to compile a plan that was not compiled yet is guessed as this many times that of
#: others.
_OTHER_PLAN = 1.5


@dataclass(frozen=True)
class BenchPlan:
    """What a run is to measure."""

    batch_sizes: Sequence[int]
    slots: Sequence[int] = (1, 4, 16, 0)  # 0 stands for the number that a search would choose
    budget: float | None = None  # seconds for everything; None: no limit
    packs: bool = True  # whether cells of packs are measured
    fit: str = "middle"  # where Keras' own fit is measured: "middle" (one batch size), "all", "no"
    meshes: Sequence[tuple[int, int]] = ()  # (trial, data), devices on each axis
    patience: float = PATIENCE  # seconds of timed runs for each cell
    epochs: int = 0  # of the trial that is trained at each batch size; 0: no trial is trained
    objective: str | None = None  # of these trials, as ``Tuner`` takes it
    scale_lr: str = "none"  # how their learning rates follow the batch size, as SCALES has it
    search: PlannedSearch | None = None  # one whose time is predicted
    search_batch_size: int | None = None  # None: the one that is measured first


class Runner:
    """Measures the cells and curves of one run.

    ``model`` has name, hparams and number of variables of the model, for people. ``note`` gets a
    line of text after each cell, and on anything else.
    """

    def __init__(
        self,
        subject: BenchModel,
        plan: BenchPlan,
        model: Mapping[str, Any],
        note: Callable[[str], None] = lambda text: None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._subject, self._plan, self._clock = subject, plan, clock
        self._note, self._skipped = note, ""  # the reason why the last cell was skipped
        self._end = float("inf") if plan.budget is None else clock() + plan.budget
        self.cells: list[Measurement] = []
        self.first_epoch: FirstEpoch | None = None
        self.run = Run(
            device=environment.device(subject.precision, probe=self._left() > 10.0),
            backend=keras.backend.backend(),
            precision=subject.precision,
            date=datetime.now().astimezone().isoformat(timespec="seconds"),
            versions=environment.versions(),
            model=dict(model),
            n_examples=subject.data.n,
            n_validation=subject.validation.n if subject.validation else 0,
            cells=self.cells,
        )
        busy = environment.busy_note()
        if busy is not None:
            self.run.notes.append(busy)
            note(busy)

    def __call__(self) -> Run:
        """Measures until all cells are done, time is used up, or the user presses Ctrl-C.

        Returns the run, with what was measured until then.
        """
        try:
            self._measure()
        except KeyboardInterrupt:
            self.run = replace(self.run, interrupted=True)
        return replace(self.run, first_epoch=self.first_epoch)

    def _measure(self) -> None:
        search = self._plan.search
        if search is not None:
            # The pilot comes first: a real search begins in a process that has compiled nothing
            # yet.
            self._run_pilot(search)
        configs = self._configs()
        telling = [config for config in configs if config.usual or config.at_once == 1]
        rest = [config for config in configs if config not in telling]
        # If accuracy curves are asked for, half of the budget is kept for them.
        reserved = self._left() / 2 if self._plan.epochs and self._plan.budget is not None else 0.0
        self._measure_configs(telling, 0, len(configs), reserved)
        self._curves()
        self._measure_configs(rest, len(telling), len(configs))
        self._probe_again()
        if search is not None and self.run.costs is None:
            self._costs_from_steps()
        if search is not None and search.workers is not None and self.run.costs is not None:
            self._note("measuring how long a worker of a cluster takes to start")
            costs = {**self.run.costs, "startup": startup_seconds()}
            self.run = replace(self.run, costs=costs)

    def _costs_from_steps(self) -> None:
        """Works out the costs of the planned search from steps, since no epoch of it has ended."""
        size = self._plan.search_batch_size
        measurements = [
            c for c in self.run.measured if c.config.usual and size in (None, c.config.batch_size)
        ]
        if not measurements:
            self.run.notes.append(
                "could not predict the planned search: none of its epochs finished in time"
            )
            return
        measurement = measurements[0]
        ready = (
            (measurement.build or 0.0) + (measurement.trace or 0.0) + (measurement.compile or 0.0)
        )
        epoch = (measurement.epoch(self._subject.data.n) or 0.0) * measurement.config.at_once
        costs = Costs(measurement.config.batch_size, ready, Pace(measurement.config.at_once, epoch))
        self.run = replace(self.run, costs=asdict(costs))
        self.run.notes.append(
            "no epoch of the planned search finished within the measuring time, so it is "
            "predicted from single steps, without validation"
        )

    def _probe_again(self) -> None:
        """Probes the peak of the device again if a step was faster than it.

        Other programs must then have slowed down the first probe.
        """
        device, shares = self.run.device, [c.peak_share or 0.0 for c in self.cells]
        if not device.peak_flops or max(shares, default=0.0) <= 1.0 or self._left() <= 0:
            return
        peak = max(device.peak_flops, environment.matmul_flops(self.run.precision))
        self.run = replace(self.run, device=replace(device, peak_flops=peak))
        self.cells[:] = [self._with_share(measurement) for measurement in self.cells]
        if max(measurement.peak_share or 0.0 for measurement in self.cells) > 1.0:
            self.run.notes.append(
                "a step was faster than the measured peak, because other programs slowed down "
                "that measurement. Shares of the peak are too high"
            )

    def _measure_configs(
        self, configs: Sequence[CellConfig], before: int, of: int, reserved: float = 0.0
    ) -> None:
        for at, planned in enumerate(configs, before + 1):
            StopSignal.of_process().check()  # one that Python has dropped
            config = self._as_usual(planned)
            if config is None:
                continue
            why = grid.pointless(config, self.cells)
            if why is None and self._left() - reserved < self._price(config):
                why = _USED_UP
            measurement = (
                Measurement(config, "skipped", why)
                if why
                else self._with_share(self._measure_config(config))
            )
            self.cells.append(measurement)
            self._note_cell(measurement, at, of)

    def _note_cell(self, measurement: Measurement, at: int, of: int) -> None:
        """Notes a cell, ``at`` from 1; of cells skipped in a row for one reason only the first."""
        reason = measurement.reason or ""
        again = measurement.state == "skipped" and reason == self._skipped
        self._skipped = reason
        if not again:
            self._note(progress_line(measurement, at, of))

    def _run_pilot(self, search: PlannedSearch) -> None:
        """Runs the beginning of the planned search and records its costs."""
        plan = self._plan
        self._note(f"starting a search of {search.n_trials} trials, to see how fast it runs")
        try:
            costs = run_pilot(
                self._subject,
                plan.search_batch_size or grid.outside_in(sorted(plan.batch_sizes))[0],
                search.n_trials,
                search.epochs,
                self._left,
                "auto" if plan.packs else "fit",
                search.pruner,
            )
        except Exception as error:  # one of the user's code must not end the other measurements
            self.run.notes.append(f"the planned search could not be started: {describe(error)}")
            return
        if costs is None:
            return
        # The first build of a process is slow. It was done before the pilot; a search has to do it.
        ready = costs.ready + self._subject.first_build
        self.run = replace(self.run, costs={**asdict(costs), "ready": ready})

    def _curves(self) -> None:
        """Trains one trial at each batch size, in the fastest way for one trial."""
        plan = self._plan
        sizes = sorted(set(plan.batch_sizes)) if plan.epochs else []
        smallest = min(plan.batch_sizes)
        for i, size in enumerate(sizes):
            # Each curve gets an equal share of the time left, unused time of earlier ones included.
            end = self._clock() + self._left() / (len(sizes) - i)
            scale = SCALES[plan.scale_lr](size / smallest)
            alone = [
                c for c in self.run.measured if c.config.at_once == 1 and c.config.devices == 1
            ]
            same = [c for c in alone if c.config.batch_size == size]
            best = max(same or alone, key=lambda measurement: measurement.rate, default=None)
            if best is None:
                why = "no way to train one trial could be measured"
                self.run.curves.append(Curve(size, plan.objective or "", "maximize", reason=why))
                continue
            epoch = self._subject.data.n / best.rate
            if end - self._clock() < (best.compile or 0.0) + epoch:
                self.run.curves.append(
                    Curve(size, plan.objective or "", "maximize", reason=_USED_UP)
                )
                continue
            try:
                curve = train_curve(
                    self._subject,
                    size,
                    plan.epochs,
                    objective=plan.objective,
                    scale=scale,
                    plan=best.config.plan,
                    left=lambda end=end: end - self._clock(),
                    note=self._note,
                )
            except CurveInterrupted as stop:
                self.run.curves.append(stop.curve)
                raise
            self.run.curves.append(curve)

    def _configs(self) -> list[CellConfig]:
        plan, packs, usual = self._plan, self._plan.packs, None
        for size in grid.outside_in(sorted(set(plan.batch_sizes))) if packs else ():
            try:
                usual = self._usual(size)
                break
            except Unpackable as why:
                packs = False
                self.run.notes.append(f"trials of this model train in Keras' own fit: {why}")
                break
            except Exception:  # the cells of this batch size will give the reason; try another one
                continue
        fit = plan.fit if packs else "all"
        found = grid.configs(
            plan.batch_sizes,
            [n for n in plan.slots if n > 0],
            usual or CellConfig(0, 1, "sequential"),
            packs=packs,
            fit=fit != "no",
            meshes=plan.meshes,
        )
        middle = found[0].batch_size
        return [
            config
            for config in found
            if fit == "all" or config.plan != "fit" or config.batch_size == middle
        ]

    def _as_usual(self, config: CellConfig) -> CellConfig | None:
        """The cell to measure in place of a planned one; None if that is measured already.

        The grid is made with the way that a search chooses at one batch size. At another batch size
        it may choose another way: then that one is measured.
        """
        if not config.usual or config.plan == "fit" or self._left() <= 0:
            return config
        try:
            usual = self._usual(config.batch_size)
        except Exception:  # measuring the cell will give the reason
            return config
        usual = replace(usual, batch_size=config.batch_size, usual=True)
        for i, measurement in enumerate(self.cells):
            if (
                measurement.config.batch_size == config.batch_size
                and measurement.config.way == usual.way
            ):
                self.cells[i] = replace(measurement, config=replace(measurement.config, usual=True))
                return None
        return usual

    def _usual(self, batch_size: int) -> CellConfig:
        """The way that a search with many trials chooses at a batch size."""
        planner = Planner()
        group = self._subject.traced(batch_size).group
        candidate = planner.usual(group, _MANY)
        devices = len(planner.devices) if candidate.plan != "sequential" else 1
        return CellConfig(0, candidate.slots, candidate.plan, planner.packs_at_once, devices)

    def _measure_config(self, config: CellConfig) -> Measurement:
        if config.plan != "fit":
            return measure(
                self._subject,
                config,
                patience=self._plan.patience,
                clock=self._clock,
            )
        alone = [c for c in self.cells if c.config.at_once == 1 and c.rate]
        known = min((config.batch_size / c.rate for c in alone), default=None)
        measurement, first = measure_fit(
            self._subject.model,
            self._subject.data,
            config,
            seconds_per_step=known,
            patience=2 * self._plan.patience,
        )
        self.first_epoch = self.first_epoch or first
        return measurement

    def _with_share(self, measurement: Measurement) -> Measurement:
        peak = self.run.device.peak_flops
        flops = measurement.flops
        if flops is None:  # nobody counts those of fit, but it runs the same step
            same = [
                c.flops for c in self.cells if c.config.batch_size == measurement.config.batch_size
            ]
            flops = next((each for each in same if each), None)
        if not peak or not flops or not measurement.step:
            return measurement
        speed = flops * measurement.config.at_once / measurement.step
        return replace(measurement, peak_share=speed / (peak * measurement.config.devices))

    def _left(self) -> float:
        return self._end - self._clock()

    def _price(self, config: CellConfig) -> float:
        """Seconds that a cell will take, guessed from similar cells; 0 if none was measured yet."""
        done = [
            measurement
            for measurement in self.cells
            if measurement.state == "measured" and measurement.compile
        ]
        if not done:
            return 0.0
        same = [measurement for measurement in done if measurement.config.plan == config.plan]
        compiling = statistics.median(measurement.compile or 0.0 for measurement in same or done)
        tracing = max(
            (measurement.build or 0.0) + (measurement.trace or 0.0) for measurement in done
        )
        rate = statistics.median(measurement.rate for measurement in same or done)
        steps = 6 * config.batch_size * config.at_once / rate if rate else 0.0
        factor = 1.0 if same else _OTHER_PLAN
        return tracing + factor * compiling + max(self._plan.patience, steps)


def progress_line(measurement: Measurement, at: int, of: int) -> str:
    """Returns a line about a cell, number ``at`` (from 1) of ``of``, that is done."""
    where = f"{at} of {of}: batch {measurement.config.batch_size}, {way(measurement.config)}"
    if measurement.state == "measured":
        return (
            f"{where}: {formats.fine(measurement.step)} a step, {measurement.rate:,.0f} examples/s"
        )
    return f"{where}: {measurement.state}: {measurement.reason}"
