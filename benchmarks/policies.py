"""Policies: samplers and schedulers replayed over the recorded curves of ``curves.py``, in seconds.

    python benchmarks/policies.py [--works table digits] [--seeds 40]     a minute
    python benchmarks/policies.py --samplers random tpe --seeds 6         ten minutes: TPE thinks

A replay has two cores. A trial that begins costs its compilation, or almost nothing where trials
share a program, and then each epoch costs what an epoch of the work costs. When an epoch is over,
its recorded value is known. Asking costs nothing, and all trials cost the same: only the order in
which epochs are trained differs between policies.

random     the recorded trials in a random order
tpe        Optuna's TPE; of the trials that are left, the one nearest to what it proposes
to the end    every trial trains all its epochs
asha R:F      Paceline's ASHA: the first rung is at R epochs, and one trial in F goes on
leaders       the same, and the best paused trials go on in the last part of the time

Claimed of the rungs that are the default, with leaders, where programs are shared: with the same
sampler, after 10, 20 and 40 s, the median best value is at most 0.005 below that of every other
scheduler replayed, whether programs are shared or not. The exit code is 1 where it is not.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import machine
import numpy as np
import optuna

from paceline.study.pruners.asha import ASHA, RungLadder

FOLDER = Path(__file__).resolve().parent / "curves"
SECONDS = (10, 20, 40)  # later, all recorded trials have been tried
CORES = 2
BEGIN = 4.0  # s until the first epoch may begin: what loading and the first program take
SHARED = 0.1  # s of a core for a trial that shares a program: it is built and traced
CLOSING = 0.05  # of the time, in which leaders go on
#: Values of one work scatter by this between seeds: policies that are closer are level.
LEVEL = 0.005
DEFAULTS = ("asha 1:3, leaders", "shared")


@dataclass(frozen=True)
class Recorded:
    """The recorded trials of a work."""

    hparams: list[dict[str, Any]]
    best: np.ndarray  # f64[trials, epochs]: the best value up to each epoch
    epoch_seconds: float  # of a core
    compile_seconds: float

    @classmethod
    def of(cls, work: str) -> Recorded:
        """Read the curves of a work."""
        found = json.loads((FOLDER / f"{work}.json").read_text(encoding="utf-8"))
        most = max(len(curve) for _, curve in found["trials"])
        whole = [(hparams, curve) for hparams, curve in found["trials"] if len(curve) == most]
        curves = np.array([curve for _, curve in whole]) / 1e4
        return cls(
            [hparams for hparams, _ in whole],
            np.maximum.accumulate(curves, axis=1),
            statistics.median(seconds for _, seconds in found["epoch_seconds"]),
            found["compile_seconds"],
        )

    @property
    def n_epochs(self) -> int:
        """Epochs of a trial."""
        return self.best.shape[1]


class RandomOrder:
    """Proposes the recorded trials in a random order."""

    def __init__(self, recorded: Recorded, seed: int) -> None:
        self._order = iter(np.random.default_rng(seed).permutation(len(recorded.best)).tolist())

    def ask(self) -> int | None:
        """Return the next trial; None when there is none."""
        return next(self._order, None)

    def tell(self, trial: int, epoch: int, value: float, state: str) -> None:
        """Learn nothing."""


class NearestToTpe:
    """Proposes the recorded trial that is nearest to what Optuna's TPE proposes."""

    def __init__(self, recorded: Recorded, seed: int) -> None:
        self._space = space_of(recorded.hparams)
        self._places = np.array([self._place(hparams) for hparams in recorded.hparams])
        self._left = np.ones(len(recorded.best), dtype=bool)
        sampler = optuna.samplers.TPESampler(seed=seed)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._hparams, self._open = recorded.hparams, set[int]()
        self._ended: dict[int, optuna.trial.FrozenTrial] = {}

    def ask(self) -> int | None:
        """Return the next trial; None when there is none."""
        if not self._left.any():
            return None
        asked = self._study.ask(self._space)
        distances = ((self._places - self._place(asked.params)) ** 2).sum(axis=1)
        self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        trial = int(np.where(self._left, distances, np.inf).argmin())
        self._left[trial] = False
        return trial

    def tell(self, trial: int, epoch: int, value: float, state: str) -> None:
        """Learn that a trial has ended an epoch, and waits there or is complete."""
        if state == "running" or trial in self._ended:
            return
        known = {name: value for name, value in self._hparams[trial].items() if name in self._space}
        complete = state == "complete"
        self._ended[trial] = found = optuna.trial.create_trial(
            params=known,
            distributions={name: self._space[name] for name in known},
            value=value if complete else None,
            intermediate_values={epoch: value},
            state=optuna.trial.TrialState.COMPLETE if complete else optuna.trial.TrialState.PRUNED,
        )
        self._study.add_trial(found)

    def _place(self, hparams: dict[str, Any]) -> np.ndarray:
        """Return where a configuration lies, each hyperparameter from 0 to 1."""
        found = []
        for name, distribution in self._space.items():
            value = hparams.get(name)
            if isinstance(distribution, optuna.distributions.CategoricalDistribution):
                found += [float(value == choice) for choice in distribution.choices]
            elif value is None:  # a hyperparameter that this trial does not have
                found.append(0.5)
            else:
                low, high, at = distribution.low, distribution.high, value
                if distribution.log:
                    low, high, at = np.log([low, high, at])
                found.append((at - low) / (high - low))
        return np.array(found)


def space_of(configurations: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what recorded values span; numbers over two decades are logarithmic."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in configurations for name in each):
        values = [each[name] for each in configurations if name in each]
        low, high = min(values), max(values)
        if isinstance(low, str) or len(set(values)) <= 4:
            found[name] = optuna.distributions.CategoricalDistribution(sorted(set(values)))
        elif isinstance(low, int):
            found[name] = optuna.distributions.IntDistribution(low, high, log=high > 9 * low > 0)
        else:
            wide = high > 100 * low > 0
            found[name] = optuna.distributions.FloatDistribution(low, high, log=wide)
    return found


@dataclass
class Replay:
    """A search over recorded trials."""

    recorded: Recorded
    sampler: RandomOrder | NearestToTpe
    ladder: RungLadder | None  # None: every trial trains to its end
    leaders: bool
    begin_seconds: float  # of a core, that a new trial takes before its first epoch
    seconds: float
    epochs: dict[int, int] = field(default_factory=dict)  # trial -> epochs trained
    waiting: list[int] = field(default_factory=list)  # trials that go on, the next one first
    best: float = 0.0

    def run(self) -> float:
        """Return the best value that is known when the time is over."""
        # What each core does: when it is done, and the trial that has then ended an epoch.
        cores: list[tuple[float, int, int | None]] = [(BEGIN, core, None) for core in range(CORES)]
        while cores:
            now, core, trial = heapq.heappop(cores)
            if now > self.seconds:
                continue
            goes_on = trial is not None and self._goes_on(trial)
            if not goes_on:
                trial, took = self._next(now)
                if trial is None:
                    continue
                now += took
            heapq.heappush(cores, (now + self.recorded.epoch_seconds, core, trial))
        return self.best

    def _goes_on(self, trial: int) -> bool:
        """Take in an epoch of a trial; return whether it trains on."""
        self.epochs[trial] = epoch = self.epochs[trial] + 1
        value, most = float(self.recorded.best[trial, epoch - 1]), self.recorded.n_epochs
        self.best = max(self.best, value)
        state = "complete" if epoch == most else "running"
        if self.ladder is not None:
            if state == "complete":
                self.ladder.leave(trial)
            elif self.ladder.reach(trial, epoch, most, -value) == "pause":
                state = "paused"
            self.waiting += self.ladder.promoted()
        self.sampler.tell(trial, epoch, value, state)
        return state == "running"

    def _next(self, now: float) -> tuple[int | None, float]:
        """Return the trial that trains next, and the seconds before its epoch begins."""
        if self.leaders and self.ladder is not None and now > (1 - CLOSING) * self.seconds:
            leader = self.ladder.leader()
            self.waiting += [] if leader is None else [leader]
        if self.waiting:
            return self.waiting.pop(0), 0.0
        trial = self.sampler.ask()
        if trial is not None:
            self.epochs[trial] = 0
        return trial, self.begin_seconds


SAMPLERS: dict[str, Callable[[Recorded, int], Any]] = {"random": RandomOrder, "tpe": NearestToTpe}
SCHEDULERS: dict[str, tuple[ASHA | None, bool]] = {
    "to the end": (None, False),
    "asha 1:3": (ASHA(), False),
    "asha 1:3, leaders": (ASHA(), True),
    "asha 1:2, leaders": (ASHA(1, 2), True),
    "asha 1:4, leaders": (ASHA(1, 4), True),
    "asha 3:3, leaders": (ASHA(3, 3), True),
}


def replayed(
    recorded: Recorded, sampler: str, scheduler: str, programs: str, seconds: float, seed: int
) -> float:
    """Return the best value of one search."""
    settings, leaders = SCHEDULERS[scheduler]
    ladder = None if settings is None else RungLadder(settings, None, by_time=True)
    begins = SHARED if programs == "shared" else recorded.compile_seconds
    made = SAMPLERS[sampler](recorded, seed)
    return Replay(recorded, made, ladder, leaders, begins, seconds).run()


def main() -> int:
    """Replay; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    there = sorted(path.stem for path in FOLDER.glob("*.json"))
    parser.add_argument("--works", nargs="+", choices=there, default=there, metavar="WORK")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=["random"])
    parser.add_argument("--seeds", type=int, default=40)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    facts = machine.facts()
    print(machine.describe(facts), flush=True)
    rows: list[dict[str, Any]] = []
    for work in arguments.works:
        recorded = Recorded.of(work)
        print(f"\n{work}: {len(recorded.best)} trials, the best {recorded.best[:, -1].max():.4f}")
        for programs in ("shared", "own"):
            for sampler in arguments.samplers:
                for scheduler in SCHEDULERS:
                    policy = sampler, scheduler, programs
                    medians = [
                        statistics.median(
                            replayed(recorded, *policy, seconds, seed)
                            for seed in range(arguments.seeds)
                        )
                        for seconds in SECONDS
                    ]
                    rows.append({"work": work, "policy": list(policy), "medians": medians})
                    values = "  ".join(f"{value:.4f}" for value in medians)
                    print(f"  {programs:7} {sampler:7} {scheduler:20} {values}", flush=True)
    machine.keep("policies", {"machine": facts, "seconds": SECONDS, "rows": rows})
    missed = missed_claims(rows)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def missed_claims(rows: list[dict[str, Any]]) -> list[str]:
    """Return where another policy is better than the defaults by more than values scatter."""
    missed = []
    for work, sampler in dict.fromkeys((row["work"], row["policy"][0]) for row in rows):
        alike = [r for r in rows if (r["work"], r["policy"][0]) == (work, sampler)]
        ours = next(row for row in alike if tuple(row["policy"][1:]) == DEFAULTS)
        for at, seconds in enumerate(SECONDS):
            best = max(alike, key=lambda row: row["medians"][at])
            behind = best["medians"][at] - ours["medians"][at]
            if behind > LEVEL:
                name = ", ".join(best["policy"])
                missed.append(f"{work}, {seconds} s: {name} is {behind:.4f} ahead")
    return missed


if __name__ == "__main__":
    sys.exit(main())
