"""One call of ``search``: ask, build, train, report, until the study has its trials."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.best import BestModels
from paceline.builder import Builder, check_labels
from paceline.data import ArrayData
from paceline.errors import BuildError, PacelineError, UsageError
from paceline.executor.base import EpochReport, Job
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor, Seconds
from paceline.objective import Objective
from paceline.program.canonical import Unpackable
from paceline.progress import Progress
from paceline.search_space import HyperParameters
from paceline.study import INTERRUPTED, BuildFailed, Draft, Study
from paceline.trial import TrialState

#: A space or a data set that fails this often in a row is not going to work.
FAILURES_IN_A_ROW = 5


@dataclass
class Running:
    """A trial that trains now.

    Attributes:
        epochs: Epochs it is to train.
        epoch: Epochs trained.
        seconds: Its share of the time.
        plan, program: Where it trains.
    """

    epochs: int
    epoch: int = 0
    seconds: float = 0.0
    plan: str | None = None
    program: str | None = None


@dataclass
class Arguments:
    """What ``search`` was called with, checked.

    Attributes:
        data, validation: Arrays; data is None when only ``fit`` can read it.
        epochs, batch_size: A number, or a function of hp.
        n_trials: The study's total; None when only a timeout bounds the search.
        timeout: Seconds, or None.
    """

    data: ArrayData | None
    validation: ArrayData | None
    epochs: int | Callable[[Any], int]
    batch_size: int | None | Callable[[Any], int]
    n_trials: int | None
    timeout: float | None


class Search:
    """The loop between the study, which decides, and the executors, which train."""

    def __init__(
        self,
        *,
        builder: Builder,
        study: Study,
        objective: Objective,
        best: BestModels,
        arguments: Arguments,
        packs: LocalExecutor | None,
        fit: FitExecutor,
        progress: Callable[[Progress], None] | None,
        notes: Callable[[str], None],
        why_fit: str | None,
    ) -> None:
        self._builder, self._study, self._objective = builder, study, objective
        self._best, self._arguments = best, arguments
        self._packs, self._fit = packs, fit
        self._progress, self._note = progress, notes
        self._why_fit = why_fit
        self._running: dict[int, Running] = {}
        # Trials that a dead process left under way do not count: they are tried again.
        counted = [t for t in study.trials if t.error != INTERRUPTED and t.state != "running"]
        self._counts = Counter(trial.state for trial in counted)
        self._failures = 0
        self._cause: BaseException | None = None
        self._over = False
        self._noted: set[str] = set()
        self._began = time.perf_counter()
        self._trial_epochs = 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=64)
        self._shown = 0.0
        self.build_seconds = 0.0

    # -- the loop ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Searches until the study has its trials, the space is exhausted or the time is up.

        Raises:
            BuildError: Trials failed several times in a row; the message holds the cause.
        """
        while True:
            while self._hungry() and self._ask():
                pass
            if self._cause is not None:
                raise BuildError(
                    f"{FAILURES_IN_A_ROW} trials failed in a row; the last one: {self._cause}"
                ) from self._cause
            if self._timed_out():
                self._say_stopped()
                return
            if self._packs is not None and self._packs.busy:
                self._packs.advance(self._report, self._ahead)
            elif self._fit.busy:
                self._advance_fit()
            else:
                return

    @property
    def n_counted(self) -> int:
        """Trials that count for ``n_trials``: ended, failed ones included, or under way."""
        return self._counts.total() + len(self._running)

    def _say_stopped(self) -> None:
        if self._running:
            self._note(
                f"stopped by the timeout with {len(self._running)} trials under way; the next search of this "
                "study tries them again"
            )

    def _timed_out(self) -> bool:
        limit = self._arguments.timeout
        return limit is not None and time.perf_counter() - self._began > limit

    # -- asking -----------------------------------------------------------------------------------------------

    def _hungry(self) -> bool:
        return self._packs is None or self._packs.hungry or not self._packs.busy

    def _ahead(self) -> bool:
        """While the device works: get one more trial ready."""
        packs = self._packs
        assert packs is not None
        self._show("compiling" if packs.compiling else "training")
        return packs.room and self._ask()

    def _may_ask(self) -> bool:
        study, limit = self._study, self._arguments.n_trials
        if self._over or self._cause is not None or study.exhausted or self._timed_out():
            return False
        if limit is not None and self.n_counted >= limit:
            return False
        if self._packs is None and self._fit.busy:
            return False
        return study.max_open is None or len(self._running) < study.max_open

    def _ask(self) -> bool:
        """Asks for one trial, builds it and hands it to an executor; False when there is none to ask."""
        if not self._may_ask():
            return False
        if self._trial_epochs == 0 and not (self._packs and self._packs.compiling):
            self._show("building")
        try:
            proposal = self._study.propose(self._build)
        except BuildFailed as failed:
            self._build_failed(failed)
            return True
        if proposal is None:
            self._over = True
            self._note("every configuration of the space has been tried")
            return False
        draft, hp, (model, epochs, batch_size) = proposal
        number = self._study.accept(draft, hp)
        self._running[number] = Running(epochs)
        job = Job(
            number=number,
            seed=draft.seed,
            epochs=epochs,
            batch_size=batch_size,
            model=model,
            rebuild=self._rebuilder(hp.hparams, draft.seed),
        )
        self._submit(job)
        return True

    def _build(self, hp: HyperParameters, draft: Draft) -> tuple[Any, int, int]:
        began = time.perf_counter()
        try:
            model = self._builder(hp, draft.seed)
            epochs = number_of(self._arguments.epochs, hp, "epochs")
            batch_size = number_of(self._arguments.batch_size or 32, hp, "batch_size")
            data = self._arguments.data
            if data is not None:
                if batch_size > data.n:
                    raise UsageError(
                        f"batch_size: {batch_size} is above the {data.n} training examples."
                    )
                check_labels(model, data, "training data")
        finally:
            self.build_seconds += time.perf_counter() - began
        return model, epochs, batch_size

    def _rebuilder(self, hparams: dict[str, Any], seed: int) -> Callable[[], Any]:
        return lambda: self._builder(HyperParameters(values=hparams), seed)

    def _submit(self, job: Job) -> None:
        if self._packs is None:
            self._say_once(f"trials run in keras' own fit, one at a time: {self._why_fit}")
            self._fit.submit(job)
            return
        packs = self._packs
        limit = self._arguments.n_trials
        if limit is not None:
            packs.expected = packs.waiting + 1 + max(0, limit - self.n_counted)
            if self._study.max_open is not None:
                packs.expected = min(packs.expected, self._study.max_open)
        else:
            packs.expected = self._study.max_open or packs.max_slots
        try:
            packs.submit(job)
        except Unpackable as why:
            self._note(f"trial {job.number} runs in keras' own fit: {why}")
            self._fit.submit(job)
        except Exception as error:  # the user's train_step may raise anything while it is traced
            self._trial_failed(job.number, error)

    def _build_failed(self, failed: BuildFailed) -> None:
        if isinstance(failed.cause, KeyboardInterrupt):
            raise failed.cause
        number = self._study.accept(failed.draft, failed.hp)
        self._running[number] = Running(0)
        self._trial_failed(number, failed.cause)

    # -- what comes back --------------------------------------------------------------------------------------

    def _advance_fit(self) -> None:
        number = self._fit.next_number
        try:
            self._fit.advance(self._report, lambda: False)
        except KeyboardInterrupt:
            raise
        except Exception as error:  # whatever the user's model raises ends this trial only
            self._trial_failed(number, error)
            return
        if number in self._running:
            if self._running[number].epoch:  # a callback of the user's stopped it early
                self._complete(number)
            else:
                self._trial_failed(number, RuntimeError("fit ended without an epoch"))

    def _report(self, report: EpochReport) -> bool:
        running = self._running[report.number]
        value = report.logs.get(self._objective.name)
        if value is None:
            raise PacelineError(
                f"objective: {self._objective.name!r} is not among this epoch's logs: "
                f"{', '.join(report.logs)}."
            )
        self._trial_epochs += 1
        running.seconds += report.seconds
        running.epoch = report.epoch
        running.plan, running.program = report.plan, report.program
        trial = self._study.trial(report.number)
        before = trial.value
        self._study.report(report.number, report.epoch, report.logs, value)
        loss = report.logs.get("loss", 0.0)
        if not (math.isfinite(value) and math.isfinite(loss)):
            name = "loss" if not math.isfinite(loss) else self._objective.name
            self._trial_failed(
                report.number,
                FloatingPointError(
                    f"{name} is {report.logs[name]} at epoch {report.epoch} with {trial.hparams}"
                ),
            )
            return False
        if self._objective.better(value, before):
            self._best.offer(report.number, report.epoch, value, report.weights)
        self._show("training")
        if report.epoch >= running.epochs:
            self._complete(report.number)
        return report.number in self._running

    def _complete(self, number: int) -> None:
        self._failures = 0
        self._finish(number, "complete")

    def _trial_failed(self, number: int, error: BaseException) -> None:
        text = (
            f"{type(error).__name__}: {error}"
            if not isinstance(error, PacelineError)
            else str(error)
        )
        self._note(f"trial {number} failed: {text}")
        self._best.drop(number)
        self._finish(number, "failed", error=text)
        self._failures += 1
        if self._failures >= FAILURES_IN_A_ROW:
            self._cause = error

    def _finish(self, number: int, state: TrialState, **attrs: Any) -> None:
        running = self._running.pop(number)
        self._counts[state] += 1
        self._study.finish(
            number,
            state,
            attrs={
                "seconds": round(running.seconds, 6),
                "program": running.program,
                "plan": running.plan,
                **attrs,
            },
        )

    # -- what people see -----------------------------------------------------------------------------------------

    def _say_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)

    def _show(self, phase: str, *, force: bool = False) -> None:
        if self._progress is None:
            return
        now = time.perf_counter()
        if not force and now - self._shown < 0.1:
            return
        self._shown = now
        self._progress(self.progress(phase))

    def progress(self, phase: str) -> Progress:
        """The search at this moment."""
        now = time.perf_counter()
        self._recent.append((now, self._trial_epochs))
        (then, epochs), rate = self._recent[0], None
        if self._trial_epochs > epochs and now > then:
            rate = (self._trial_epochs - epochs) / (now - then)
        elif self._trial_epochs:
            rate = self._trial_epochs / (now - self._began)
        counts = self._counts
        best = self._study.best
        return Progress(
            study=self._study.name,
            phase=phase,
            n_trials=self._arguments.n_trials,
            n_complete=counts["complete"],
            n_pruned=counts["pruned"],
            n_failed=counts["failed"],
            n_running=len(self._running),
            trial_epochs=self._trial_epochs,
            seconds=now - self._began,
            rate=rate,
            seconds_left=self._seconds_left(rate),
            objective=self._objective.name,
            best_number=best.number if best else None,
            best_value=best.value if best else None,
            best_hparams=best.hparams if best else {},
        )

    def _seconds_left(self, rate: float | None) -> float | None:
        limit = self._arguments.n_trials
        if rate is None or limit is None:
            return None
        usual = max((r.epochs for r in self._running.values()), default=0)
        left = sum(r.epochs - r.epoch for r in self._running.values())
        left += usual * max(0, limit - self.n_counted)
        return left / rate

    def summary(self, seconds: float) -> dict[str, Any]:
        """What ``--json`` prints.

        Args:
            seconds: The whole call, data and probe included.
        """
        packs, study, best = self._packs, self._study, self._study.best
        times = packs.seconds if packs else Seconds()
        plans = set(packs.plans) if packs else set()
        if self._fit.used:
            plans.add("fit")
        return {
            "study": study.name,
            "n_trials": {
                **{state: self._counts[state] for state in ("complete", "pruned", "failed")},
                "running": len(self._running),
            },
            "best": None
            if best is None
            else {
                "number": best.number,
                "value": best.value,
                "hparams": best.hparams,
                "epochs": best.epochs,
            },
            "seconds": {
                "total": seconds,
                "build": self.build_seconds,
                "trace": times.trace,
                "compile": packs.compile_seconds() if packs else 0.0,
                "train": times.train + self._fit.seconds,
                "validate": times.validate,
                **study.seconds,
            },
            "programs": packs.program_counts()
            if packs
            else {"distinct": 0, "compiled": 0, "from_cache": 0},
            "plans": sorted(plans),
        }


def number_of(value: Any, hp: HyperParameters, name: str) -> int:
    """A number given to ``search``, or the function of hp that was given instead.

    Raises:
        UsageError: It is not a positive whole number.
    """
    number = value(hp) if callable(value) else value
    if isinstance(number, bool) or not float(number).is_integer() or number < 1:
        raise UsageError(f"{name}: {number!r} is not a positive whole number.")
    return int(number)
