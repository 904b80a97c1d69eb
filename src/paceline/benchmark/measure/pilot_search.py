"""Runs and times the beginning of a search, to predict how long the whole search takes.

The pilot is the search itself (sampler, storage, packs, compiling for the same number of trials) in
a temporary folder. It is stopped once its pace is known. So everything that costs time in the
search costs time in the pilot too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from paceline.benchmark.measure.subject import BenchModel
from paceline.report.forecast import Costs, Pace, programs_of
from paceline.report.progress import Progress

#: Waves of trials and seconds of training that tell the pace. There are two waves because trials
#: are finished, stored and built between waves, and that takes time too.
WAVES, SECONDS = 2, 4.0
#: After LONG seconds of training, FEW rounds suffice.
LONG, FEW = 15.0, 2
#: What a worker of a cluster loads before it can train, and seconds for which that is waited for.
_LOADS, _PATIENCE = "import paceline.executor.remote.host", 120.0


class _PilotProgress:
    """Measures the pace of the pilot from its progress, and stops it once the pace is known.

    ``left`` returns the seconds that are left of the budget; ``epochs`` are the rounds of a wave.
    """

    def __init__(self, left: Callable[[], float], epochs: int) -> None:
        self._left, self._epochs = left, epochs
        self._began = time.perf_counter()
        self._longest = 0.0  # seconds between two looks
        self.looked: float | None = None  # the last look, in seconds since the pilot began
        self.ready: float | None = None  # seconds until the first round began
        self.trial_epochs = 0
        # The first report with a round, and the first one with the last round: seconds, and report.
        self.first: tuple[float, Progress] | None = None
        self.last: tuple[float, Progress] | None = None

    def __call__(self, progress: Progress) -> bool:
        """Whether the search must continue, as ``Tuner`` asks its ``progress``."""
        self.trial_epochs = progress.trial_epochs
        if progress.phase == "done" and self.last is not None:
            return True  # the search ended between two reports: this interval is not a round
        now = time.perf_counter() - self._began
        if self.looked is not None:
            self._longest = max(self._longest, now - self.looked)
        self.looked = now
        # Nothing interrupts a build, or the tracing of a family: there must be time for one more.
        late = self._left() <= self._longest
        if progress.pace is None or progress.trial_epochs == 0:
            return not late
        if self.ready is None:
            self.ready = max(0.0, now - progress.rounds * progress.pace[1])
        self.first = self.first or (now, progress)
        if self.last is None or progress.rounds > self.last[1].rounds:
            self.last = now, progress
        trained = now - self.ready
        enough = trained > SECONDS and progress.rounds >= WAVES * self._epochs
        slow = progress.rounds >= FEW and trained > LONG
        return not (enough or slow or late)


def _pace(pilot: _PilotProgress) -> Pace | None:
    """The pace over all rounds that were reported; None if there was none."""
    if pilot.first is None or pilot.last is None:
        return None
    (then, first), (now, last) = pilot.first, pilot.last
    rounds = last.rounds - first.rounds
    if rounds:
        return Pace((last.round_epochs - first.round_epochs) / rounds, (now - then) / rounds)
    return None if last.pace is None else Pace(*last.pace)


def _program_apart(pilot: _PilotProgress, pace: Pace) -> tuple[Pace, float]:
    """The pace without the time in which programs were compiled, and the seconds of a program.

    Building and tracing its first trial are part of these seconds.
    """
    assert pilot.first is not None and pilot.last is not None
    (_, first), (now, last) = pilot.first, pilot.last
    if last.rounds == first.rounds or last.compiles[0] > first.compiles[0]:
        alone = pace.at_once * last.trial_seconds / last.trial_epochs
        pace = Pace(pace.at_once, min(pace.round, alone))
    return pace, max(0.0, now - last.rounds * pace.round) / max(1, last.compiles[0])


def run_pilot(
    subject: BenchModel,
    batch_size: int,
    n_trials: int,
    epochs: int,
    left: Callable[[], float],
    executor: str = "auto",
    pruner: str | None = None,
    **training: Any,
) -> Costs | None:
    """Measures what a search costs; None if no epoch ended within the budget.

    ``n_trials`` are those of the whole search, ``left`` returns the seconds that are left of the
    budget. The pruner matters because trials that end early make room for others, which have to be
    built. ``training`` has what else the pace depends on, as ``Tuner`` takes it (slots, plan,
    widths, mesh).
    """
    from paceline.tuner.tuner import Tuner  # loads Optuna

    pilot = _PilotProgress(left, epochs)
    validation = subject.validation
    x, y, weight = (*subject.data.inputs, None, None)[:3]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        tuner = Tuner(
            subject.build,
            study="rehearsal",
            sampler="random",
            executor=executor,
            pruner=pruner or "none",
            directory=folder,
            seed=subject.seed,
            on_progress=pilot,
            on_note=lambda text: None,
            **training,
        )
        tuner.search(
            x,
            y,
            sample_weight=weight,
            validation_data=None if validation is None else validation.inputs,
            batch_size=batch_size,
            epochs=epochs,
            n_trials=n_trials,
        )
        seconds = time.perf_counter() - began
        found = tuner.summary()
    pace = _pace(pilot)
    if pace is None or pilot.ready is None or pilot.looked is None:
        return None
    finish = max(0.0, seconds - pilot.looked)  # after the last epoch the best model was saved
    n_begun = sum(found["n_trials"].values())
    programs, compiling = programs_of(found["programs"]["distinct"], n_begun, n_trials), 0.0
    if programs > 1:
        pace, compiling = _program_apart(pilot, pace)
    parts, trained = {k: float(v) for k, v in found["seconds"].items()}, pilot.trial_epochs
    return Costs(batch_size, pilot.ready, pace, finish, programs, compiling, parts, trained)


def startup_seconds(
    run: Callable[..., Any] = subprocess.run, clock: Callable[[], float] = time.perf_counter
) -> float | None:
    """Measures how long a new process takes to load what a worker needs; None if it failed.

    ``run`` is as ``subprocess.run``, and ``clock`` returns seconds, from anywhere.
    """
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    began = clock()
    try:
        done = run(
            [sys.executable, "-c", _LOADS],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return clock() - began if done.returncode == 0 else None
