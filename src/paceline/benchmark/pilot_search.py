"""Runs and times the beginning of a search, to predict how long the whole search takes.

The pilot is the search itself (sampler, storage, packs, compiling for the same number of trials) in
a temporary folder. It is stopped once its pace is known. So everything that costs time in the
search costs time in the pilot too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

from paceline.benchmark.subject import Subject
from paceline.program import keras_private
from paceline.program.canonical import Unpackable
from paceline.report.forecast import Costs, Pace, programs_of
from paceline.report.progress import Progress
from paceline.search_space import HyperParameters

#: Waves of trials and seconds of training that tell the pace. There are two waves because trials
#: are finished, stored and built between waves, and that takes time too.
WAVES, SECONDS = 2, 4.0
#: After LONG seconds of training, FEW rounds suffice.
LONG, FEW = 15.0, 2
#: Configurations that are traced to estimate the number of programs, and seconds for tracing them.
TRIED, PATIENCE = 6, 10.0
#: Configurations that are drawn for that at most: some are rejected, or cannot be built.
DRAWN = 100


class _PilotProgress:
    """Measures the pace of the pilot from its progress, and stops it once the pace is known.

    Args:
        left: Returns the seconds that are left of the budget.
        epochs: Rounds of a wave.
    """

    def __init__(self, left: Callable[[], float], epochs: int) -> None:
        self._left, self._epochs = left, epochs
        self._began = time.perf_counter()
        self.ready: float | None = None  # seconds until the first round began
        self.last: Progress | None = None
        self.at = 0.0  # when ``last`` was reported, in seconds since the pilot began
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
            return True  # the search ended between two reports: this interval is no round
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


def _pace(pilot: _PilotProgress) -> Pace | None:
    """The pace over all rounds that were reported; None if there was none."""
    last = pilot.last
    if last is None or last.pace is None:
        return None
    at_once, seconds = last.pace
    then, rounds, epochs = pilot.first or (0.0, last.rounds, 0)
    if last.rounds > rounds:
        at_once = (last.trial_epochs - epochs) / (last.rounds - rounds)
        seconds = (pilot.at - then) / (last.rounds - rounds)
    return Pace(at_once, seconds)


def run_pilot(
    subject: Subject,
    batch_size: int,
    n_trials: int,
    epochs: int,
    left: Callable[[], float],
    executor: str = "auto",
    pruner: str | None = None,
    objective: Any = None,
    constraints: Any = None,
    **training: Any,
) -> Costs | None:
    """Measures what a search costs.

    Args:
        subject: The model and its data.
        batch_size: Examples per step.
        n_trials: Trials of the whole search.
        epochs: Epochs of each trial.
        left: Returns the seconds that are left of the budget.
        executor: "auto", "local" or "fit".
        pruner: Pruner of the search. It matters because trials that end early make room for others,
            which have to be built.
        objective: What the search optimizes, as ``Tuner`` takes it.
        constraints: What its models must satisfy, as ``Tuner`` takes it.
        **training: Further arguments of ``Tuner`` that the pace depends on: slots, plan, widths,
            mesh.

    Returns:
        The costs; None if no epoch ended within the budget.

    Raises:
        Exception: Whatever the search raises.
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
            pruner=pruner,
            objective=objective,
            constraints=constraints,
            directory=folder,
            seed=subject.seed,
            progress=pilot,
            notes=lambda text: None,
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
        parts = {k: float(v) for k, v in tuner.summary().get("seconds", {}).items()}
    last, ready = pilot.last, pilot.ready
    pace = _pace(pilot)
    if last is None or ready is None or pace is None:
        return None
    finish = max(0.0, seconds - pilot.at)  # after the last epoch the best model was saved
    programs, compiling = 1.0, 0.0
    if executor != "fit":
        programs = _programs(subject, batch_size, n_trials, left, constraints)
    if programs > 1:
        compiling = parts.get("compile", 0.0)
    return Costs(batch_size, ready, pace, finish, programs, compiling, parts, pilot.trial_epochs)


def _programs(
    subject: Subject,
    batch_size: int,
    n_trials: int,
    left: Callable[[], float],
    constraints: Any = None,
) -> float:
    """Estimates how many programs the search needs, from a few configurations that are traced."""
    import numpy as np

    from paceline.executor.model_builder import ModelBuilder
    from paceline.tuner.constraints import Constraints

    allowed = Constraints(constraints)
    shapes = subject.data.batch_shapes(batch_size)
    builder, rng = ModelBuilder(subject.build), np.random.default_rng(subject.seed)
    began, names = time.perf_counter(), set[str]()
    tried = 0
    for _ in range(DRAWN):
        if tried == min(TRIED, n_trials) or time.perf_counter() - began > PATIENCE or left() <= 0:
            break

        def choose(parameter: Any) -> Any:
            values = parameter.values()
            return values[int(rng.integers(len(values)))]

        try:
            hp = HyperParameters(chooser=choose)
            model = builder(hp, subject.seed)
            if allowed:
                if not model.built:
                    keras_private.symbolic_build(model, shapes)
                allowed.check(model, hp.hparams)
            names.add(subject.fingerprint(model, batch_size))
        except Unpackable:
            return 1.0
        except Exception:  # rejected, or failed in the user's code: the search does not train it
            continue
        tried += 1
    return programs_of(len(names), tried, n_trials)
