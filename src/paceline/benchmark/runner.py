"""All cells of one run, the most telling first, within a budget; what is there is always kept."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import keras

from paceline.benchmark import environment, grid, roofline
from paceline.benchmark.accuracy import SCALES, CurveInterrupted, train_curve
from paceline.benchmark.measure import PATIENCE, describe, measure
from paceline.benchmark.measure_fit import measure_fit
from paceline.benchmark.pilot_search import run_pilot
from paceline.benchmark.records import Config, Curve, FirstEpoch, Measurement, Run
from paceline.benchmark.subject import Subject
from paceline.benchmark.timing import Clock
from paceline.executor.planner import Planner
from paceline.program.canonical import Unpackable
from paceline.report.forecast import Costs, Pace

#: Epochs of a search that is long enough for everything to pay.
_MANY = 10_000
#: Compiling a plan that was not compiled yet: so many times what others took.
_OTHER_PLAN = 1.5


@dataclass(frozen=True)
class BenchPlan:
    """What to measure.

    Attributes:
        batch_sizes: Of each trial.
        slots: Trials at once; 0 stands for what a search would do.
        budget: Seconds for everything; None: no limit.
        packs: Whether cells of packs are measured.
        fit: "middle": Keras' own ``fit`` at one batch size; "all"; "no".
        meshes: (trial, data) of several devices.
        patience: Seconds of timed runs for each cell.
        epochs: Of the trial that is trained at each batch size; 0: none is.
        objective: What its validation gives; as for a search.
        scale_lr: none, linear or sqrt: how its learning rate follows the batch size.
        plan_trials, plan_epochs: Of a search to predict; 0: of none.
        plan_batch_size: Its batch size; None: the one measured first.
        plan_pruner: Its pruner, as text; None: without one.
    """

    batch_sizes: Sequence[int]
    slots: Sequence[int] = (1, 4, 16, 0)
    budget: float | None = None
    packs: bool = True
    fit: str = "middle"
    meshes: Sequence[tuple[int, int]] = ()
    patience: float = PATIENCE
    epochs: int = 0
    objective: str | None = None
    scale_lr: str = "none"
    plan_trials: int = 0
    plan_epochs: int = 0
    plan_batch_size: int | None = None
    plan_pruner: str | None = None


Told = Callable[[Measurement, int, int], None]


class Runner:
    """Measures a run.

    Args:
        build: As the user gave it.
        subject: The model and its data.
        ask: What to measure.
        model: name, digest of the model, for people.
        told: Called after each cell with it, its position from 1 and how many there are.
        note: Called with a line on anything else.
        first_build: Seconds that the process' first build of the model took.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        build: Any,
        subject: Subject,
        ask: BenchPlan,
        model: Mapping[str, Any],
        told: Told = lambda cell, at, of: None,
        note: Callable[[str], None] = lambda text: None,
        first_build: float = 0.0,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._build, self._subject, self._ask, self._clock = build, subject, ask, clock
        self._told, self._note, self._first_build = told, note, first_build
        self._end = float("inf") if ask.budget is None else clock() + ask.budget
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
        """Measures until all is done, the budget is used up, or Ctrl-C."""
        try:
            self._measure()
        except KeyboardInterrupt:
            self.run = replace(self.run, interrupted=True)
        return replace(self.run, first_epoch=self.first_epoch)

    def _measure(self) -> None:
        if self._ask.plan_trials:
            # First of all: a search begins in a process that has not traced or compiled anything.
            self._rehearse(grid.outside_in(sorted(self._ask.batch_sizes))[0])
        spots = self._spots()
        telling = [spot for spot in spots if spot.usual or spot.at_once == 1]
        rest = [spot for spot in spots if spot not in telling]
        # Where accuracy is asked for, half of the time is for that.
        reserved = self._left() / 2 if self._ask.epochs and self._ask.budget is not None else 0.0
        self._cells(telling, 0, len(spots), reserved)
        self._curves()
        self._cells(rest, len(telling), len(spots))
        self._probe_again()
        if self._ask.plan_trials and self.run.costs is None:
            self._plan_of_steps()

    def _plan_of_steps(self) -> None:
        """What a search costs, from steps alone: where its epochs are too long to be waited for."""
        size = self._ask.plan_batch_size
        cells = [c for c in self.run.measured if c.spot.usual and size in (None, c.spot.batch_size)]
        if not cells:
            self.run.notes.append(
                "the planned search cannot be predicted: no epoch of it ended within the budget"
            )
            return
        cell = cells[0]
        ready = (cell.build or 0.0) + (cell.trace or 0.0) + (cell.compile or 0.0)
        epoch = (cell.epoch(self._subject.data.n) or 0.0) * cell.spot.at_once
        costs = Costs(cell.spot.batch_size, ready, Pace(cell.spot.at_once, epoch))
        self.run = replace(self.run, costs=asdict(costs))
        self.run.notes.append(
            "no epoch of the planned search ended within the budget: it is predicted from single "
            "steps, and validation is not counted"
        )

    def _probe_again(self) -> None:
        """Where a step was faster than the device's peak, that was probed at a bad moment."""
        device, shares = self.run.device, [c.peak_share or 0.0 for c in self.cells]
        if not device.peak_flops or max(shares, default=0.0) <= 1.0 or self._left() <= 0:
            return
        peak = max(device.peak_flops, roofline.matmul_flops(self.run.precision))
        self.run = replace(self.run, device=replace(device, peak_flops=peak))
        self.cells[:] = [self._with_share(cell) for cell in self.cells]
        if max(cell.peak_share or 0.0 for cell in self.cells) > 1.0:
            self.run.notes.append(
                "a step was faster than the measured peak: other programs slowed that down, and "
                "shares of it are too high"
            )

    def _cells(self, spots: Sequence[Config], before: int, of: int, reserved: float = 0.0) -> None:
        for at, planned in enumerate(spots, before + 1):
            spot = self._as_usual(planned)
            if spot is None:
                continue
            why = grid.pointless(spot, self.cells)
            if why is None and self._left() - reserved < self._price(spot):
                why = "the budget is used up"
            cell = Measurement(spot, "skipped", why) if why else self._with_share(self._cell(spot))
            self.cells.append(cell)
            self._told(cell, at, of)

    def _rehearse(self, batch_size: int) -> None:
        """Runs the beginning of the planned search."""
        ask = self._ask
        self._note(f"beginning a search of {ask.plan_trials} trials, to see how fast it goes")
        try:
            costs = run_pilot(
                self._build,
                self._subject,
                ask.plan_batch_size or batch_size,
                ask.plan_trials,
                ask.plan_epochs,
                self._left,
                "auto" if ask.packs else "fit",
                ask.plan_pruner,
            )
        except Exception as error:  # the user's code; what was measured is there all the same
            self.run.notes.append(f"the planned search could not be begun: {describe(error)}")
            return
        if costs is None:
            return
        # The model had been built once before, for the first time in this process.
        costs = replace(costs, ready=costs.ready + self._first_build)
        self.run = replace(self.run, costs=asdict(costs))

    def _curves(self) -> None:
        """Trains one trial at each batch size, in the fastest way for one trial."""
        ask = self._ask
        sizes = sorted(set(ask.batch_sizes)) if ask.epochs else []
        smallest = min(ask.batch_sizes)
        for i, size in enumerate(sizes):
            # Each has its share of the time, and what those before it did not need.
            end = self._clock() + self._left() / (len(sizes) - i)
            scale = SCALES[ask.scale_lr](size / smallest)
            alone = [c for c in self.run.measured if c.spot.at_once == 1 and c.spot.devices == 1]
            same = [c for c in alone if c.spot.batch_size == size]
            best = max(same or alone, key=lambda cell: cell.rate, default=None)
            if best is None:
                why = "no way to train one trial could be measured"
                self.run.curves.append(Curve(size, ask.objective or "", "maximize", reason=why))
                continue
            epoch = self._subject.data.n / best.rate
            if end - self._clock() < (best.compile or 0.0) + epoch:
                self.run.curves.append(
                    Curve(size, ask.objective or "", "maximize", reason="the budget is used up")
                )
                continue
            try:
                curve = train_curve(
                    self._subject,
                    size,
                    ask.epochs,
                    objective=ask.objective,
                    scale=scale,
                    plan=best.spot.plan,
                    left=lambda end=end: end - self._clock(),
                    told=self._note,
                )
            except CurveInterrupted as stop:
                self.run.curves.append(stop.curve)
                raise
            self.run.curves.append(curve)

    def _spots(self) -> list[Config]:
        ask, packs, usual = self._ask, self._ask.packs, None
        for size in grid.outside_in(sorted(set(ask.batch_sizes))) if packs else ():
            try:
                usual = self._usual(size)
                break
            except Unpackable as why:
                packs = False
                self.run.notes.append(f"trials of this model train in Keras' own fit: {why}")
                break
            except Exception:  # its cells will say why; another batch size may do
                continue
        fit = ask.fit if packs else "all"
        found = grid.spots(
            ask.batch_sizes,
            [n for n in ask.slots if n > 0],
            usual or Config(0, 1, "sequential"),
            packs=packs,
            fit=fit != "no",
            meshes=ask.meshes,
        )
        middle = found[0].batch_size
        return [
            spot
            for spot in found
            if fit == "all" or spot.plan != "fit" or spot.batch_size == middle
        ]

    def _as_usual(self, spot: Config) -> Config | None:
        """The spot, or what a search does at this batch size; None where that is measured already.

        Spots are laid out with what it does at the first batch size; it may be another at others.
        """
        if not spot.usual or spot.plan == "fit" or self._left() <= 0:
            return spot
        try:
            usual = self._usual(spot.batch_size)
        except Exception:  # the cell itself will say what is wrong
            return spot
        usual = replace(usual, batch_size=spot.batch_size, usual=True)
        for i, cell in enumerate(self.cells):
            if cell.spot.batch_size == spot.batch_size and cell.spot.way == usual.way:
                self.cells[i] = replace(cell, spot=replace(cell.spot, usual=True))
                return None
        return usual

    def _usual(self, batch_size: int) -> Config:
        """What a search with many trials does here."""
        planner = Planner()
        group = self._subject.traced(batch_size).group
        candidate = planner.usual(group, _MANY)
        devices = len(planner.devices) if candidate.plan != "sequential" else 1
        return Config(0, candidate.slots, candidate.plan, planner.lanes, devices)

    def _cell(self, spot: Config) -> Measurement:
        if spot.plan != "fit":
            return measure(
                self._subject,
                spot,
                patience=self._ask.patience,
                clock=self._clock,
            )
        alone = [c for c in self.cells if c.spot.at_once == 1 and c.rate]
        known = min((spot.batch_size / c.rate for c in alone), default=None)
        cell, first = measure_fit(
            self._subject.model,
            self._subject.data,
            spot,
            seconds_per_step=known,
            patience=2 * self._ask.patience,
        )
        self.first_epoch = self.first_epoch or first
        return cell

    def _with_share(self, cell: Measurement) -> Measurement:
        peak = self.run.device.peak_flops
        flops = cell.flops
        if flops is None:  # fit runs the same step
            same = [c.flops for c in self.cells if c.spot.batch_size == cell.spot.batch_size]
            flops = next((each for each in same if each), None)
        if not peak or not flops or not cell.step:
            return cell
        speed = flops * cell.spot.at_once / cell.step
        return replace(cell, peak_share=speed / (peak * cell.spot.devices))

    def _left(self) -> float:
        return self._end - self._clock()

    def _price(self, spot: Config) -> float:
        """Seconds that a cell will take, from those of its like; 0 for the first."""
        done = [cell for cell in self.cells if cell.state == "measured" and cell.compile]
        if not done:
            return 0.0
        same = [cell for cell in done if cell.spot.plan == spot.plan]
        compiling = statistics.median(cell.compile or 0.0 for cell in same or done)
        tracing = max((cell.build or 0.0) + (cell.trace or 0.0) for cell in done)
        rate = statistics.median(cell.rate for cell in same or done)
        steps = 6 * spot.batch_size * spot.at_once / rate if rate else 0.0
        factor = 1.0 if same else _OTHER_PLAN
        return tracing + factor * compiling + max(self._ask.patience, steps)
