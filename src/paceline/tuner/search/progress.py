"""What people see of a search: its progress while it runs, and a summary at the end."""

from __future__ import annotations

import heapq
import math
import sys
import time
from collections import Counter, deque
from typing import Any

import keras

from paceline.executor.training.reporting import ExecutorTimings, SecondsSpent
from paceline.program.keras_backend import reason
from paceline.report import formats
from paceline.report.forecast import Pace, pace_of, rounds_left
from paceline.report.formats import grouped
from paceline.report.progress import Progress, TrialRow, WorkerRow
from paceline.search_space import html
from paceline.study.trials.table import best_record, front_record
from paceline.study.trials.trial import Trial
from paceline.tuner.search.context import SearchContext
from paceline.tuner.search.stopping import SearchEnd

#: Seconds between two calls of the user's ``progress``.
BETWEEN_LOOKS = 0.1
#: Seconds between two looks for the trials of the live table.
BETWEEN_TABLES = 1.0
#: Trials of that table at most: complete ones, running ones.
LEADING, RUNNING = 5, 8


class SearchStopped(BaseException):
    """The user's ``progress`` has returned False.

    No ``except Exception`` of the user's code, which may be running ``fit``, catches it.
    """


class ProgressReporter:
    """Measures how fast a search goes, and shows it."""

    def __init__(self, context: SearchContext) -> None:
        self._study, self._trials, self._fit = context.study, context.trials, context.fit
        self._packs, self._n_trials = context.packs, context.arguments.n_trials
        self._objective = context.objective.name
        several = context.objectives
        self._objectives = () if several is None else tuple(several.names)
        self._show, self._shown = context.progress, 0.0
        self._began = time.perf_counter()
        self._before = 0  # trial-epochs that the process before has trained
        self._rested = 0.0  # seconds for which the search was paused
        self._recent: deque[tuple[float, int]] = deque(maxlen=64)
        self._round_ends: deque[tuple[float, int]] = deque(maxlen=64)  # when, how many rounds
        self._n_rounds = 0
        self._rows: tuple[TrialRow, ...] = ()
        self._looked = -math.inf
        # after this many finished trials, and how many were on the Pareto front
        self._front_of = (0, 0)
        self.devices = _devices()  # of JAX in words; None if Keras runs on something else

    def show(self, phase: str) -> None:
        """Calls the user's ``progress``, unless just done; SearchStopped where it returns False."""
        now = time.perf_counter()
        if self._show is not None and now - self._shown >= BETWEEN_LOOKS:
            self._shown = now
            if self._show(self.progress(phase)) is False:
                raise SearchStopped

    def progress(self, phase: str) -> Progress:
        """The search at this moment."""
        now, trials = time.perf_counter(), self._trials
        best, packs = self._study.trials.best, self._packs
        workers = () if packs is None else packs.workers
        timed = self._timed_rounds
        self._recent.append((now, trials.trial_epochs))
        rate, pace = self._rate(now), self._pace(now)
        left = None
        if pace is not None and self._n_trials is not None:
            # The rounds that are left, each as long as the last ones were. ``paceline bench``
            # predicts by the same count; here each round corrects it.
            rounds = rounds_left(
                trials.epochs_left(), *trials.to_come(self._n_trials), pace.at_once
            )
            left = rounds * pace.round
        return Progress(
            study=self._study.name,
            phase=phase,
            # Copies, and trials that continue with more epochs, are trained beside those asked for.
            n_trials=None if self._n_trials is None else self._n_trials + trials.n_extra,
            n_complete=trials.ended["complete"],
            n_pruned=trials.ended["pruned"],
            n_failed=trials.ended["failed"],
            n_rejected=trials.ended["rejected"],
            n_running=len(trials.running),
            trial_epochs=trials.trial_epochs,
            seconds=now - self._began,
            rate=rate,
            seconds_left=left,
            objective=self._objective,
            best_number=best.number if best else None,
            best_value=best.value if best else None,
            best_hparams=best.hparams if best else {},
            rounds=trials.trial_epochs if timed is None else timed.n_rounds,
            pace=None if pace is None else (pace.at_once, pace.round),
            rows=self._table(now, phase, best),
            busy=packs.timings.busy_share if packs is not None else None,
            devices=self.devices,
            compiles=(0, 0) if packs is None else packs.compiles,
            others=self._objectives[1:],
            n_front=self._front(),
            workers=tuple(WorkerRow(w.host, w.device, w.jobs, w.slots, w.rate) for w in workers),
            round_epochs=trials.trial_epochs if timed is None else timed.slot_epochs[1],
            trial_seconds=trials.trial_seconds,
        )

    def _front(self) -> int:
        """The number of trials on the Pareto front, worked out as trials end."""
        ended = self._trials.ended.total()
        if self._objectives and self._front_of[0] != ended:
            self._front_of = (ended, len(self._study.trials.front))
        return self._front_of[1]

    def _table(self, now: float, phase: str, best: Trial | None) -> tuple[TrialRow, ...]:
        """The best trial, more that do not run, and some that run, in this order.

        It is looked up once a second, as studies may be long, and whenever another trial is best.
        """
        known = best is None or any(row.number == best.number for row in self._rows[:1])
        if phase != "done" and known and now - self._looked < BETWEEN_TABLES:
            return self._rows
        self._looked, sign = now, self._study.trials.sign

        def place(trial: Trial) -> tuple[bool, bool, tuple[float, int]]:
            return trial is not best, trial.state == "running", worth(trial)

        def worth(trial: Trial) -> tuple[float, int]:
            known = trial.value is not None and not math.isnan(trial.value)
            return (sign * trial.value if known and trial.value is not None else math.inf), (
                trial.number
            )

        trials = self._study.trials
        running = [t for n in self._trials.running if (t := trials.get(n)) is not None]
        ended = [t for t in trials.ranked if t.state != "running"][:LEADING]
        shown = ended + heapq.nsmallest(RUNNING, running, worth)
        rows = {trial.number: trial for trial in [*([] if best is None else [best]), *shown]}
        self._rows = tuple(self._row(trial) for trial in sorted(rows.values(), key=place))
        return self._rows

    def _row(self, trial: Trial) -> TrialRow:
        here = self._trials.running.get(trial.number)
        return TrialRow(
            trial.number,
            trial.state,
            trial.value,
            trial.epochs,
            0 if here is None else here.epochs,
            dict(trial.hparams),
            html.thin(trial.history.get(self._objective, ())),
            tuple(trial.values),
        )

    @property
    def _timed_rounds(self) -> ExecutorTimings | None:
        """What packs have spent; None if all that has trained until now has trained in ``fit``."""
        if self._packs is None or (self._fit.used and not self._packs.timings.rounds):
            return None
        return self._packs.timings

    def _pace(self, now: float) -> Pace | None:
        """The trials at once and the seconds of the last rounds; None before the first round."""
        spent = self._timed_rounds
        if spent is None:
            rate = self._rate(now)  # in fit one trial trains after another
            return None if rate is None else Pace(1.0, 1.0 / rate)
        pace = pace_of(spent.rounds)
        if pace is None:
            return None
        if spent.n_rounds != self._n_rounds:
            self._round_ends.append((now, spent.n_rounds))
            self._n_rounds = spent.n_rounds
        (then, first), (last, count) = self._round_ends[0], self._round_ends[-1]
        if count == first:
            return pace
        # From end to end, so that the time between rounds counts too: asking, reporting, waiting
        # for another program.
        return Pace(pace.at_once, (last - then) / (count - first))

    def _rate(self, now: float) -> float | None:
        """Trial-epochs per second of the last rounds; None before the first epoch."""
        (then, epochs), trained = self._recent[0], self._trials.trial_epochs
        if trained > epochs and now > then:
            return (trained - epochs) / (now - then)
        trained -= self._before
        return trained / (now - self._began - self._rested) if trained else None

    def rested(self, seconds: float) -> None:
        """Does not count a pause: it says nothing of how long the rest takes."""
        self._rested += seconds
        self._recent.clear()
        self._round_ends.clear()
        self._n_rounds = -1  # the next look begins with the rounds that there are

    def resumed(self) -> None:
        """Does not count what was trained until now: it took the time of another process."""
        self._before = self._trials.trial_epochs
        self.rested(0.0)

    def summary(
        self,
        seconds: float,
        build_seconds: float,
        checkpoint_seconds: float,
        ended: SearchEnd | None,
    ) -> dict[str, Any]:
        """What ``paceline search --json`` prints, as JSON values.

        ``seconds`` are those of the whole call, reading the data and the first build included.
        ``ended`` is None while it runs, and where it failed.
        """
        study, trials, best = self._study, self._trials, self._study.trials.best
        names = self._objectives
        front = [front_record(trial, names) for trial in study.trials.front] if names else []
        rejected = [trial.rejected for trial in study.trials if trial.rejected is not None]
        meta = study.metadata.meta
        why = meta.get("sampler_reason")
        packs, fit = self._packs, self._fit
        times = packs.timings.seconds if packs else SecondsSpent()
        plans = set(packs.plans) if packs else set()
        if fit.used:
            plans.add("fit")
        return {
            "study": study.name,
            "n_trials": {
                **{state: trials.ended[state] for state in ("complete", "pruned", "failed")},
                "running": len(trials.running) + len(trials.paused),
            },
            "ended": None if ended is None else {"by": ended.rule, "text": ended.text},
            **({"rejected": grouped(rejected)} if rejected else {}),
            **({"sampler": {"name": meta.get("sampler"), "reason": why}} if why else {}),
            "best": None if best is None or names else best_record(best, study.trials.ties),
            **({"objectives": list(names), "pareto_front": front} if names else {}),
            "seconds": {
                "total": seconds,
                "build": build_seconds,
                "trace": times.trace,
                "compile": packs.compile_seconds() if packs else 0.0,
                "train": times.train + fit.seconds,
                "validate": times.validate,
                **study.seconds,
            },
            "programs": packs.program_counts()
            if packs
            else {"distinct": 0, "structures": 0, "compiled": 0, "from_cache": 0},
            "plans": sorted(plans),
            "slots_busy": packs.timings.busy_share if packs else None,
            "checkpoint_seconds": checkpoint_seconds,
            "writer_seconds": study.writer.cpu_seconds,
        }


def _devices() -> str | None:
    """The devices of JAX in words; None if Keras runs on something else."""
    if keras.backend.backend() != "jax":
        return None
    import jax

    kinds = Counter(device.device_kind for device in jax.local_devices())
    return ", ".join(kind if n == 1 else f"{n} x {kind}" for kind, n in kinds.items())


def to_stderr(text: str) -> None:
    """Writes a line for the user, where nobody takes notes."""
    sys.stderr.write(f"paceline: {text}\n")


def unpacked_backend(why: str | None = None) -> str | None:
    """What a user is told whose Keras runs on something else than JAX, in a box; None on JAX.

    ``why`` says why trials do not train in a process of their own, where that was tried.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        return None
    if why is not None:
        return (
            f"trials train in this process, one after another in Keras' fit on {backend}, because "
            f"they cannot train in packs on JAX: {why}"
        )
    text = (
        f"Keras runs on {backend}, because {reason(backend)}. Trials train one after another in "
        "Keras' fit. On JAX, many trials train at once in one compiled program. To change this, "
        "restart Python (in a notebook: the kernel), and put these lines above all other imports:"
    )
    code = ('import os; os.environ["KERAS_BACKEND"] = "jax"', "import paceline  # before keras")
    return formats.boxed("This search will be many times slower than it could be", text, code)
