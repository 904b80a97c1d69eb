"""What people see of a search: how it goes while it runs, what came of it at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.executor.reporting import Seconds
from paceline.report.forecast import Pace, pace_of, rounds_left
from paceline.report.progress import Progress
from paceline.report.tables import best_record
from paceline.study.study import Study
from paceline.tuner.running_trials import RunningTrials

#: Seconds.
BETWEEN_LOOKS = 0.1


class ProgressReporter:
    """A search as seen from outside.

    Args:
        study: Its study.
        roster: Who is under way.
        objective: The objective's name.
        n_trials: The study's total; None when only a timeout bounds the search.
        packs: Where trials run; None when none can be packed.
        tell: Is given the search at this moment, a few times a second; None where nobody looks.
    """

    def __init__(
        self,
        study: Study,
        roster: RunningTrials,
        objective: str,
        n_trials: int | None,
        packs: LocalExecutor | None,
        tell: Callable[[Progress], None] | None,
    ) -> None:
        self._study, self._roster, self._packs = study, roster, packs
        self._objective, self._n_trials = objective, n_trials
        self._tell, self._told = tell, 0.0
        self._began = time.perf_counter()
        self._before = 0  # trial-epochs of the search that goes on
        self._recent: deque[tuple[float, int]] = deque(maxlen=64)
        self._ends: deque[tuple[float, int]] = deque(maxlen=64)  # of rounds: when, how many
        self._n_rounds = 0

    def show(self, phase: str) -> None:
        """Tell whoever looks, unless that was just done."""
        now = time.perf_counter()
        if self._tell is not None and now - self._told >= BETWEEN_LOOKS:
            self._told = now
            self._tell(self.progress(phase))

    def progress(self, phase: str) -> Progress:
        """The search at this moment."""
        now, roster = time.perf_counter(), self._roster
        best, packs = self._study.trials.best or self._study.trials.leading, self._packs
        self._recent.append((now, roster.trial_epochs))
        rate, pace = self._rate(now), self._pace(now)
        left = None
        if pace is not None and self._n_trials is not None:
            # The rounds that are left, each as long as the last ones were: the same count as in a
            # prediction, and it corrects itself.
            rounds = rounds_left(
                roster.epochs_left(), *roster.to_come(self._n_trials), pace.at_once
            )
            left = rounds * pace.round
        return Progress(
            study=self._study.name,
            phase=phase,
            n_trials=self._n_trials,
            n_complete=roster.ended["complete"],
            n_pruned=roster.ended["pruned"],
            n_failed=roster.ended["failed"],
            n_running=len(roster.running),
            trial_epochs=roster.trial_epochs,
            seconds=now - self._began,
            rate=rate,
            seconds_left=left,
            objective=self._objective,
            best_number=best.number if best else None,
            best_value=best.value if best else None,
            best_hparams=best.hparams if best else {},
            rounds=roster.trial_epochs if packs is None else packs.timings.n_rounds,
            pace=None if pace is None else (pace.at_once, pace.round),
        )

    def _pace(self, now: float) -> Pace | None:
        """How fast rounds follow each other, lately; None before the first."""
        spent = None if self._packs is None else self._packs.timings
        if spent is None or not spent.rounds:
            rate = self._rate(now)  # one trial after another, in fit
            return None if rate is None else Pace(1.0, 1.0 / rate)
        if spent.n_rounds != self._n_rounds:
            self._ends.append((now, spent.n_rounds))
            self._n_rounds = spent.n_rounds
        pace = pace_of(spent.rounds)
        (then, first), (last, count) = self._ends[0], self._ends[-1]
        if pace is None or count == first:
            return pace
        # With what lies between rounds: asking, reporting, waiting for another program.
        return Pace(pace.at_once, (last - then) / (count - first))

    def _rate(self, now: float) -> float | None:
        """Trial-epochs per second, lately; None before the first."""
        (then, epochs), trained = self._recent[0], self._roster.trial_epochs
        if trained > epochs and now > then:
            return (trained - epochs) / (now - then)
        trained -= self._before
        return trained / (now - self._began) if trained else None

    def goes_on(self) -> None:
        """What was trained until now took the time of another process."""
        self._before = self._roster.trial_epochs
        self._recent.clear()
        self._ends.clear()

    def summary(
        self,
        seconds: float,
        build_seconds: float,
        checkpoint_seconds: float,
        packs: LocalExecutor | None,
        fit: FitExecutor,
    ) -> dict[str, Any]:
        """What ``--json`` prints.

        Args:
            seconds: The whole call, data and probe included.
            build_seconds: In the user's build.
            checkpoint_seconds: What the search waited for checkpoints.
            packs: Where trials ran; None when none could.
            fit: Where the others ran.
        """
        study, roster, best = self._study, self._roster, self._study.trials.best
        times = packs.timings.seconds if packs else Seconds()
        plans = set(packs.plans) if packs else set()
        if fit.used:
            plans.add("fit")
        return {
            "study": study.name,
            "n_trials": {
                **{state: roster.ended[state] for state in ("complete", "pruned", "failed")},
                "running": len(roster.running) + len(roster.paused),
            },
            "best": None if best is None else best_record(best),
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
            else {"distinct": 0, "compiled": 0, "from_cache": 0},
            "plans": sorted(plans),
            "slots_busy": packs.timings.busy_share if packs else None,
            "checkpoint_seconds": checkpoint_seconds,
            "writer_seconds": study.writer.cpu_seconds,
        }
