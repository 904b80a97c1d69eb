"""What the sampler finds that ``"auto"`` chooses, beside others, on functions that train nothing.

    python benchmarks/auto.py [--seeds 10]     # --quick tries it and keeps nothing

The figures are kept in results/auto.json. They are deterministic and depend on no machine. The
other functions are those of asking.py.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
import optuna
from asking import ellipsoid, hartmann, rosenbrock, searched, summary

from paceline.search_space import HyperParameters
from paceline.study.samplers.auto import CMAES_TRIALS, SearchOutline, choose_sampler
from paceline.study.study import Study

HERE = Path(__file__).resolve().parent
#: Trials from which "auto" chooses CMA-ES where it fits.
MANY = CMAES_TRIALS


def grid24(hp: Any) -> float:
    """A table of 24 configurations, whose best one is no corner."""
    kind, layers = hp.Choice("kind", ["a", "b"]), hp.Int("layers", 1, 3)
    rate = hp.Choice("rate", [1e-4, 1e-3, 1e-2, 1e-1])
    apart = math.log10(rate) + 3 - 0.4 * (layers - 2)
    return 0.1 * (kind == "a") + 0.05 * (layers - 2) ** 2 + 0.2 * apart**2


def layered(hp: Any) -> float:
    """As many widths as there are layers: most hyperparameters depend on another."""
    n = hp.Int("layers", 1, 4)
    widths = [math.log2(hp.Int(f"units_{i}", 8, 512, sampling="log")) for i in range(n)]
    rate = math.log10(hp.Float("lr", 1e-5, 1.0, sampling="log"))
    apart = sum((width - 7 + i) ** 2 for i, width in enumerate(widths)) / n
    return 0.1 * (n - 3) ** 2 + 0.05 * apart + 0.3 * (rate + 2 + 0.3 * n) ** 2


def costly(hp: Any) -> tuple[float, float]:
    """Loss against size: both fall nowhere together."""
    width = math.log2(hp.Int("units", 4, 512, sampling="log"))
    size = width + math.log2(hp.Int("layers", 1, 4)) / 2
    rate, dropout = hp.Float("lr", 1e-5, 1.0, sampling="log"), hp.Float("dropout", 0.0, 0.8)
    kind = 0.05 * "bac".index(hp.Choice("kind", ["a", "b", "c"]))
    apart = math.log10(rate) + 2 + 0.15 * size
    return 3 / (1 + size / 2) + 0.4 * apart**2 + (dropout - 0.05 * size) ** 2 + kind, size / 10


#: Functions, the trials of a search, and the samplers beside the one that is chosen.
SPACES: tuple[tuple[Callable[[Any], Any], int, tuple[str, ...]], ...] = (
    (hartmann, 64, ("cmaes",)),
    (hartmann, MANY, ("cmaes",)),
    (rosenbrock, MANY, ("cmaes",)),
    (ellipsoid, MANY, ("cmaes",)),
    (grid24, 24, ("grid",)),
    (layered, 64, ("cmaes",)),
    (costly, 64, ("nsga2", "nsga2:12")),
    (costly, 256, ("nsga2",)),
)
#: The point that both values of ``costly`` are better than: areas are measured up to it.
_WORST = (4.0, 1.2)


def outline_of(function: Callable[[Any], Any], n: int) -> SearchOutline:
    """Return what "auto" is told of a function: the parameters that some of its points have."""
    shown: dict[str, Any] = {}
    rng, met = np.random.default_rng(0), set()
    for _ in range(200):
        hp = HyperParameters(chooser=lambda p: p.values()[int(rng.integers(len(p.values())))])
        found = function(hp)
        shown |= hp.parameters
        met.add(frozenset(hp.parameters))
    n_objectives = len(found) if isinstance(found, tuple) else 1
    return SearchOutline(shown.values(), len(met) > 1, n, n_objectives)


def auto_once(function: Callable[[Any], Any], seed: int, n: int, sampler: str) -> dict[str, float]:
    """Search with a sampler, an eighth of the trials at once.

    Returns:
        ``loss``, the least one, or of two objectives the share of the area that is not dominated;
        ``trials`` until then, and ``open``, how many of them may train at once (n: all).
    """
    several = function is costly
    study = Study(
        "s",
        storage=optuna.storages.InMemoryStorage(),
        direction=("minimize", "minimize") if several else "minimize",
        sampler=sampler,
        seed=seed,
        n_trials=n,
    )
    losses = searched(study, function, n)
    if several:
        return {"loss": 1 - area(losses) / math.prod(_WORST)}
    least = min(losses)
    most = study.asker.max_open
    return {
        "loss": least,
        "trials": 1.0 + losses.index(least),
        "open": float(n if most is None else most),
    }


def area(points: list[tuple[float, float]]) -> float:
    """Return the area that points dominate, up to ``_WORST``."""
    found, below = 0.0, _WORST[1]
    for x, y in sorted(points):
        if x < _WORST[0] and y < below:
            found += (_WORST[0] - x) * (below - y)
            below = y
    return found


def auto(seeds: int, quick: bool) -> dict[str, Any]:
    """Return what "auto" chooses for each space, and what it and other samplers find there."""
    report: dict[str, Any] = {}
    for function, n, others in SPACES[4:5] if quick else SPACES:
        choice = choose_sampler(outline_of(function, n))
        ways = dict.fromkeys(("tpe", "random", choice.sampler, *others))
        rows = [{way: auto_once(function, seed, n, way) for way in ways} for seed in range(seeds)]
        entry: dict[str, Any] = {"auto": choice.sampler, "reason": choice.reason}
        for name in ("loss", "trials", "open") if function is grid24 else ("loss",):
            entry[name] = summary([{way: row[way][name] for way in ways} for row in rows])
        report[f"{function.__name__}, {n} trials"] = entry
        print(f"{function.__name__}, {n} trials: {json.dumps(entry)}", flush=True)
    return report


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--quick", action="store_true", help="two seeds of one space; keeps nothing"
    )
    arguments = parser.parse_args()
    found, seeds = machine.facts(), 2 if arguments.quick else arguments.seeds
    print(machine.describe(found), flush=True)
    report = {"machine": found, "seeds": seeds, **auto(seeds, arguments.quick)}
    if not arguments.quick:
        file = HERE / "results" / "auto.json"
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
