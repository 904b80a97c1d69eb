"""The beginning of the planned search, really run and timed: what the prediction is made of.

It is the search itself (sampler, storage, packs, compiling for so many trials) in a folder that
is thrown away, stopped once its pace is known. So nothing that costs time there is left out here.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

from paceline.benchmark.subject import Subject
from paceline.program.canonical import Unpackable
from paceline.report.forecast import Costs, Pace, programs_of
from paceline.report.progress import Progress
from paceline.search_space import HyperParameters

#: Waves of trials and seconds of training that tell the pace: where one wave ends and the
#: next begins, trials are finished, stored and built, which takes its time too.
WAVES, SECONDS = 2, 4.0
#: Seconds after which so few rounds suffice.
LONG, FEW = 15.0, 2
#: Configurations that are traced to see how many programs there are; and seconds for them.
TRIED, PATIENCE = 6, 10.0


class _Watch:
    """Measures the pace of a search from its progress; stops it once the pace is known.

    Args:
        left: Seconds of the budget.
        epochs: Rounds of a wave.
    """

    def __init__(self, left: Callable[[], float], epochs: int) -> None:
        self._left, self._epochs = left, epochs
        self._began = time.perf_counter()
        self.ready: float | None = None  # seconds until the first round began
        self.last: Progress | None = None
        self.at = 0.0  # when that was
        self.trial_epochs = 0
        # The end of the first rounds seen: seconds, rounds and trial-epochs until then.
        self.first: tuple[float, int, int] | None = None

    def __call__(self, progress: Progress) -> bool:
        """Whether the search must go on, as ``Tuner`` asks its ``progress``."""
        if progress.pace is None or progress.trial_epochs == 0:
            return self._left() > 0
        now = time.perf_counter() - self._began
        self.trial_epochs = progress.trial_epochs
        if progress.phase == "done" and self.last is not None:
            return True  # the end came between two looks; its time is not that of a round
        pace = Pace(*progress.pace)
        if self.ready is None:
            self.ready = max(0.0, now - progress.rounds * pace.round)
        if self.last is None or progress.rounds > self.last.rounds:
            self.last, self.at = progress, now
        self.first = self.first or (now, progress.rounds, progress.trial_epochs)
        trained = now - self.ready
        enough = trained > SECONDS and progress.rounds >= WAVES * self._epochs
        slow = progress.rounds >= FEW and trained > LONG
        slow = slow or self._left() <= 0
        return not (enough or slow)


def _pace(watch: _Watch) -> Pace | None:
    """Trials at once and seconds of a round, over all that were seen; None without one."""
    last = watch.last
    if last is None or last.pace is None:
        return None
    at_once, seconds = last.pace
    then, rounds, epochs = watch.first or (0.0, last.rounds, 0)
    if last.rounds > rounds:
        at_once = (last.trial_epochs - epochs) / (last.rounds - rounds)
        seconds = (watch.at - then) / (last.rounds - rounds)
    return Pace(at_once, seconds)


def run_pilot(
    build: Any,
    subject: Subject,
    batch_size: int,
    n_trials: int,
    epochs: int,
    left: Callable[[], float],
    executor: str = "auto",
    pruner: str | None = None,
) -> Costs | None:
    """Measures what a search costs; None where no epoch of it ended in time.

    Args:
        build: As the user gave it.
        subject: The model and its data.
        batch_size: B.
        n_trials: Of the search.
        epochs: Of each trial.
        left: Seconds of the budget.
        executor: auto, or fit.
        pruner: Of the search: where trials end early, more of them have to be built meanwhile.

    Raises:
        Exception: What the search raises.
    """
    from paceline.tuner.tuner import Tuner  # loads Optuna

    watch = _Watch(left, epochs)
    validation = subject.validation
    x, y, weight = (*subject.data.inputs, None, None)[:3]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        tuner = Tuner(
            build,
            study="rehearsal",
            sampler="random",
            executor=executor,
            pruner=pruner,
            directory=folder,
            seed=subject.seed,
            progress=watch,
            notes=lambda text: None,
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
        parts = {k: float(v) for k, v in tuner.summary().get("seconds", {}).items()}
    last, ready = watch.last, watch.ready
    pace = _pace(watch)
    if last is None or ready is None or pace is None:
        return None
    finish = max(0.0, seconds - watch.at)  # the best model was saved
    programs, compiling = 1.0, 0.0
    if executor != "fit":
        programs = _programs(build, subject, batch_size, n_trials, left)
    if programs > 1:
        compiling = parts.get("compile", 0.0)
    return Costs(batch_size, ready, pace, finish, programs, compiling, parts, watch.trial_epochs)


def _programs(
    build: Any, subject: Subject, batch_size: int, n_trials: int, left: Callable[[], float]
) -> float:
    """How many programs the search's trials fall into: a few configurations are traced."""
    import numpy as np

    from paceline.executor.model_builder import ModelBuilder

    builder, rng = ModelBuilder(build), np.random.default_rng(subject.seed)
    began, names = time.perf_counter(), set[str]()
    tried = 0
    while tried < min(TRIED, n_trials):
        if time.perf_counter() - began > PATIENCE or left() <= 0:
            break

        def choose(parameter: Any) -> Any:
            values = parameter.values()
            return values[int(rng.integers(len(values)))]

        try:
            model = builder(HyperParameters(chooser=choose), subject.seed)
            names.add(subject.fingerprint(model, batch_size))
        except Unpackable:
            return 1.0
        tried += 1
    return programs_of(len(names), tried, n_trials)
