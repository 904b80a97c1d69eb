"""What many trials in flight cost a sampler: the best value after equal numbers of trials.

    python benchmarks/in_flight.py --trials 64 --seeds 20
    python benchmarks/in_flight.py --samplers gp --policies 1 8 --seeds 5  # needs PyTorch; slow

Nothing is trained: formulas stand for networks, trials take about equal times, and a new one is
asked for whenever one has ended. ``waves`` is the time, in trials, if all that are in flight train
in the time of one. The choice of ``paceline.optimize`` rests on this (docs/decisions/0057).
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import warnings
from collections.abc import Callable

import asking
import numpy as np
import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler
from sides import Suggest

Policy = Callable[[int], int]  # trials that have ended -> trials that may be in flight


def network(trial: optuna.Trial, noise: np.random.Generator) -> float:
    """The error of a small network with a best rate that depends on its depth and its batches."""
    rate = math.log10(trial.suggest_float("lr", 1e-5, 1e-1, log=True))
    layers = trial.suggest_int("layers", 1, 3)
    units = [trial.suggest_int(f"units{i}", 16, 256, step=16) for i in range(layers)]
    dropout = trial.suggest_float("dropout", 0.0, 0.6)
    batch = trial.suggest_categorical("batch", [16, 32, 64, 128])
    activation = trial.suggest_categorical("activation", ["relu", "tanh", "sigmoid"])
    off = rate - (math.log10(2e-3) + 0.15 * math.log2(batch / 32) - 0.2 * (layers - 1))
    error = 0.03 + 0.06 * off**2 * (1 if off < 0 else 2.5) / (1 + 0.3 * off**2)
    error += 0.02 * abs(layers - 2) + 0.2 * (dropout - 0.2) ** 2
    error += 0.015 * sum(math.log2(each / 128) ** 2 for each in units) / layers
    error += {"relu": 0.0, "tanh": 0.01, "sigmoid": 0.05}[activation]
    return error + noise.normal(0, 0.004)


def hartmann(trial: optuna.Trial, noise: np.random.Generator) -> float:
    """Hartmann's function of six variables; its minimum is -3.32."""
    return asking.hartmann(Suggest(trial)) - 3.32237


def branin(trial: optuna.Trial, noise: np.random.Generator) -> float:
    """Branin's function of two variables; its minimum is 0.398."""
    x, y = trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)
    bowl = (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


WORKS = {"network": network, "hartmann6": hartmann, "branin": branin}
SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "tpe, liar": lambda seed: TPESampler(seed=seed, constant_liar=True),
    "tpe": lambda seed: TPESampler(seed=seed, constant_liar=False),
    "cmaes": lambda seed: CmaEsSampler(seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
    "gp": lambda seed: GPSampler(seed=seed),
}


def policies(n_trials: int) -> dict[str, Policy]:
    """Name -> policy."""
    fixed = {str(k): (lambda ended, k=k: k) for k in (1, 4, 8, 16, 32, 64)}
    return {
        **fixed,
        "n/8": lambda ended: max(8, n_trials // 8),
        "8 + ended/8": lambda ended: 8 + ended // 8,
        "8 + ended/4": lambda ended: 8 + ended // 4,
    }


def searched(
    work: str, sampler: str, policy: Policy, n_trials: int, seed: int
) -> tuple[float, float]:
    """The best value, and the waves that it took."""
    study = optuna.create_study(sampler=SAMPLERS[sampler](seed))
    noise, length = np.random.default_rng([1, seed]), np.random.default_rng([2, seed])
    running: list[tuple[float, int, optuna.Trial, float]] = []
    now, asked, ended = 0.0, 0, 0
    while ended < n_trials:
        while asked < n_trials and len(running) < policy(ended):
            trial = study.ask()
            value = WORKS[work](trial, noise)
            heapq.heappush(running, (now + length.uniform(0.9, 1.1), asked, trial, value))
            asked += 1
        now, _, trial, value = heapq.heappop(running)
        study.tell(trial, value)
        ended += 1
    return study.best_value, now


def main() -> None:
    """Prints a line of JSON for each sampler, function and policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=20)
    most = [name for name in SAMPLERS if name != "gp"]
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=most)
    parser.add_argument("--policies", nargs="+", help="by name; without this option: all")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    for sampler in options.samplers:
        for work in WORKS:
            for name, policy in policies(options.trials).items():
                if name not in (options.policies or [name]):
                    continue
                found = [
                    searched(work, sampler, policy, options.trials, seed)
                    for seed in range(options.seeds)
                ]
                best, waves = np.mean(found, axis=0)
                row = {"sampler": sampler, "work": work, "in flight": name}
                print(json.dumps({**row, "best": round(best, 4), "waves": round(waves, 1)}))


if __name__ == "__main__":
    main()
