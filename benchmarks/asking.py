"""What asking for trials costs, and what samplers find, on functions that need no training.

    python benchmarks/asking.py cost [--trials 4096]       # seconds, random beside TPE
    python benchmarks/asking.py digits [--trials 4096]     # whole searches, trained
    python benchmarks/asking.py seen [--seeds 200]         # TPE that sees few trials beside plain
    python benchmarks/asking.py again [--seeds 200]        # both once more, from other seeds
    python benchmarks/asking.py liar [--seeds 200]         # TPE with and without the constant liar
    python benchmarks/asking.py samplers [--seeds 200]     # random, TPE and CMA-ES
    python benchmarks/asking.py                            # all of these; --quick tries them

Each part is kept under its name in results/asking.json. `seen`, `again`, `liar` and `samplers` are
deterministic: their figures depend on no machine. `seen` and `again` take hours; they keep each
search in results/asking_seen.json and go on with those that are not there, so remove that file
where the samplers have changed. What `again` finds says how far two searches are apart by chance,
and `twice` counts the pairs of both.
`cost` claims that asking for 4,096 trials under TPE grows less than threefold from the first to the
last thousand; `digits` that the search takes at most 1.5 times as long as random search.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
import numpy as np
import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.search_space import HyperParameters
from paceline.study.samplers import told_trials, tpe
from paceline.study.samplers.in_memory_study import SampledTrials
from paceline.study.samplers.samplers import resolve_sampler
from paceline.study.study import Study

HERE = Path(__file__).resolve().parent
#: Trials that train at once, as on a CPU with two cores.
OPEN = 16
#: Trials up to which `seen` follows TPE.
UP_TO = 1400


# -- functions: declare a space, and give a loss ---------------------------------------------------


def rates(hp: Any) -> float:
    """A training in miniature: rates on log scales that interact, a dropout, a choice."""
    lr, decay = (
        hp.Float("lr", 1e-5, 1.0, sampling="log"),
        hp.Float("decay", 1e-7, 1e-1, sampling="log"),
    )
    dropout, kind = hp.Float("dropout", 0.0, 0.8), hp.Choice("kind", ["a", "b", "c"])
    best = {"a": -2.2, "b": -3.0, "c": -1.5}[kind]
    a, b = math.log10(lr) - best, math.log10(decay) + 4
    return a * a + 0.3 * (b + 0.8 * a) ** 2 + 3 * (dropout - 0.25) ** 2 + 0.05 * "bac".index(kind)


def hartmann(hp: Any) -> float:
    """Hartmann's function of six dimensions, Dixon and Szegoe 1978; its minimum is 0 here."""
    x = np.array([hp.Float(f"x{i}", 0.0, 1.0) for i in range(6)])
    weights = np.array([1.0, 1.2, 3.0, 3.2])
    apart = (_A * (x - _P) ** 2).sum(axis=1)
    return 3.32237 - float(weights @ np.exp(-apart))


_A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def rosenbrock(hp: Any) -> float:
    """Rosenbrock's valley in five dimensions, which bends: coordinates have to move together."""
    x = np.array([hp.Float(f"x{i}", -2.0, 2.0) for i in range(5)])
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def sphere(hp: Any) -> float:
    """The squared distance from a point off the centre, in five dimensions."""
    return sum((hp.Float(f"x{i}", -1.0, 1.0) - 0.3) ** 2 for i in range(5))


def ellipsoid(hp: Any) -> float:
    """A bowl whose axes differ thousandfold and are turned, on log scales; a step and an Int."""
    u = [math.log10(hp.Float(f"x{i}", 1e-4, 1.0, sampling="log")) + 2.6 for i in range(3)]
    u += [hp.Float("step", 0.0, 2.0, step=0.05) - 1.35, (hp.Int("units", 8, 256) - 90) / 80]
    turned = [u[i] + 0.6 * u[(i + 1) % 5] for i in range(5)]
    return sum(10 ** (i * 0.75) * v * v for i, v in enumerate(turned))


FUNCTIONS = {f.__name__: f for f in (rates, hartmann, sphere, rosenbrock, ellipsoid)}


# -- searches of a function ------------------------------------------------------------------------


def ask_on(
    function: Callable[[Any], float],
    seed: int,
    n: int,
    past: list[FrozenTrial],
    open_: int = OPEN,
    sampler: str = "tpe",
) -> list[FrozenTrial]:
    """Go on with a search to ``n`` trials, ``open_`` at once; return all of its trials."""
    chosen = resolve_sampler(sampler, seed)
    sampled = SampledTrials(learns=False, past=past, signs=(1,), told=chosen.told)
    trials, running = list(past), []
    for number in range(len(past), n):
        assert chosen.make is not None
        asked = sampled.ask(chosen.make(number, 0))

        def choose(parameter: Any, asked: optuna.Trial = asked) -> Any:
            stored = sampled.suggest(asked, parameter.storage_name, parameter.distribution)
            return parameter.from_storage(stored)

        hp = HyperParameters(chooser=choose)
        loss = function(hp)
        kinds = {name: parameter.distribution for name, parameter in hp.parameters.items()}
        begun = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING)
        sampled.accept(number, asked.number, begun)
        running.append((number, loss, hp.to_storage(), kinds))
        if len(running) == open_ or number == n - 1:
            for told, loss, values, kinds in running if number == n - 1 else [running.pop(0)]:
                sampled.tell(told, OptunaState.COMPLETE, [loss])
                trials.append(
                    optuna.trial.create_trial(value=loss, params=values, distributions=kinds)
                )
                trials[-1].number = len(trials) - 1
    return trials


def best(trials: list[FrozenTrial]) -> float:
    """Return the least loss."""
    return min(trial.values[0] for trial in trials)


@contextmanager
def seeing(few: int) -> Iterator[None]:
    """Have TPE see all of up to ``few`` trials."""
    before, told_trials.FEW = told_trials.FEW, few
    try:
        yield
    finally:
        told_trials.FEW = before


def few_of(up_to: int) -> int:
    """Return how many trials TPE sees all of; fewer with ``--quick``."""
    return told_trials.FEW if up_to > told_trials.FEW else up_to // 2


def seen_once(job: tuple[str, int, int]) -> tuple[int, dict[str, float]]:
    """Search to ``told_trials.FEW`` trials, then go on under plain TPE, and seeing some of them."""
    name, seed, up_to = job
    function, few = FUNCTIONS[name], few_of(up_to)
    with seeing(10**9):
        begun = ask_on(function, seed, few, [])
        found = {"begun": best(begun), "plain": best(ask_on(function, seed, up_to, begun))}
    with seeing(few):
        found["seen"] = best(ask_on(function, seed, up_to, begun))
    return seed, found


def again_once(job: tuple[str, int, int]) -> tuple[int, dict[str, float]]:
    """Search as ``seen_once`` does, and go on both ways with draws from another seed."""
    name, seed, up_to = job
    function, few = FUNCTIONS[name], few_of(up_to)
    with seeing(10**9):
        begun = ask_on(function, seed, few, [])
        found = {"again": best(ask_on(function, seed + 10**6, up_to, begun))}
    with seeing(few):
        found["again_seen"] = best(ask_on(function, seed + 10**6, up_to, begun))
    return seed, found


def liar_once(job: tuple[str, int, int]) -> tuple[int, dict[str, float]]:
    """Search with and without the constant liar, for as many trials as ``up_to``."""
    name, seed, up_to = job
    found = {}
    made = optuna.samplers.TPESampler
    for liar in (True, False):

        def make(liar: bool = liar, **arguments: Any) -> Any:
            return made(**{**arguments, "constant_liar": liar})

        tpe.optuna.samplers.TPESampler = make  # type: ignore[assignment, misc]
        try:
            for open_ in (4, max(4, up_to // 8)):
                trials = ask_on(FUNCTIONS[name], seed, up_to, [], open_)
                found[f"{'liar' if liar else 'plain'}, {open_} open"] = best(trials)
        finally:
            tpe.optuna.samplers.TPESampler = made  # type: ignore[misc]
    return seed, found


def samplers_once(job: tuple[str, int, int]) -> tuple[int, dict[str, float]]:
    """Search with each sampler, an eighth of the trials at once."""
    name, seed, up_to = job
    found = {}
    for sampler in ("random", "tpe", "cmaes"):
        study = Study(
            "s",
            storage=optuna.storages.InMemoryStorage(),
            direction="minimize",
            sampler=sampler,
            seed=seed,
            n_trials=up_to,
        )
        found[sampler] = min(searched(study, FUNCTIONS[name], up_to))
    return seed, found


def searched(study: Study, function: Callable[[Any], Any], n: int) -> list[Any]:
    """Search with an eighth of the trials at once; return the losses, tuples of several."""
    losses: list[Any] = []
    running: list[tuple[int, Any]] = []
    for _ in range(n):
        proposal = study.asker.propose(lambda hp, proposal: function(hp))
        assert proposal is not None
        proposal, hp, loss = proposal
        running.append((study.accept(proposal, hp), loss))
        losses.append(loss)
        if len(running) == max(4, n // 8):
            number, loss = running.pop(0)
            values = loss if isinstance(loss, tuple) else ()
            first = values[0] if values else loss
            study.updates.report(number, 1, {"loss": first}, first)
            study.updates.finish(number, "complete", value=first, values=values)
    return losses


def many(
    once: Callable[[tuple[str, int, int]], tuple[int, dict[str, float]]],
    names: list[str],
    seeds: int,
    up_to: int,
    jobs: int,
    kept: Path | None = None,
    finds: str = "",
) -> dict[str, Any]:
    """Search every function from every seed; return medians, and intervals of differences.

    Rows are kept in the file ``kept`` as they come, and those that it has with a way ``finds`` are
    not searched again.
    """
    report: dict[str, Any] = {}
    rows = json.loads(kept.read_text(encoding="utf-8")) if kept and kept.is_file() else {}
    for name in names:
        known = rows.setdefault(name, {})
        todo = [
            (name, seed, up_to) for seed in range(seeds) if finds not in known.get(str(seed), {})
        ]
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            for seed, row in pool.imap_unordered(once, todo):
                known[str(seed)] = {**known.get(str(seed), {}), **row}
                if kept is not None:
                    kept.write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")
        found = [known[str(seed)] for seed in range(seeds)]
        report[name] = summary(found)
        if all({"seen", "again_seen"} <= set(row) for row in found):
            twice = [{"plain": row["plain"], "seen": row["seen"]} for row in found]
            twice += [{"plain": row["again"], "seen": row["again_seen"]} for row in found]
            report[name]["twice"] = summary(twice, seeds)
        print(f"{name}, {up_to} trials, {seeds} seeds: {json.dumps(report[name])}", flush=True)
    return report


def summary(rows: list[dict[str, float]], seeds: int | None = None) -> dict[str, Any]:
    """Return the median of each way, and of ways beside the first the gain over it.

    Rows of one seed are resampled together: the first ``seeds`` rows are one of each.

    ``worse`` is the share of seeds in which a way ended worse than the way ``plain`` or ``tpe``,
    ``of_medians`` the 95 % interval of its median by the other's.
    """
    rng = np.random.default_rng(0)
    seeds = seeds or len(rows)
    once = rng.integers(0, seeds, (4000, seeds))
    picks = np.concatenate([once + first for first in range(0, len(rows), seeds)], axis=1)
    ways = {way: np.array([row[way] for row in rows]) for way in rows[0]}
    base = next((way for way in ways if way.startswith(("plain", "tpe"))), None)
    found: dict[str, Any] = {}
    for way, values in ways.items():
        found[way] = {"median": float(f"{np.median(values):.4g}")}
        against = base
        if way.startswith("liar"):
            against = way.replace("liar", "plain")
        elif way == "again_seen":
            against = "again"
        if against is not None and way != against and not way.startswith("plain"):
            ratio = np.log(np.maximum(values, 1e-300)) - np.log(np.maximum(ways[against], 1e-300))
            medians = np.median(ratio[picks], axis=1)
            low, high = np.exp(np.quantile(medians, [0.025, 0.975]))
            ours, theirs = (
                np.median(np.maximum(each[picks], 1e-300), axis=1)
                for each in (values, ways[against])
            )
            least, most = np.quantile(ours / theirs, [0.025, 0.975])
            found[way] |= {
                "of": against,
                "ratio": round(float(np.exp(np.median(ratio))), 3),
                "interval": [round(float(low), 3), round(float(high), 3)],
                "of_medians": [round(float(least), 3), round(float(most), 3)],
                "worse": round(float((values > ways[against]).mean()), 3),
                "better": round(float((values < ways[against]).mean()), 3),
            }
    return found


# -- cost ------------------------------------------------------------------------------------------


def cost(n: int) -> dict[str, Any]:
    """Return the seconds that asking and telling take after each fourth of the trials."""
    report: dict[str, Any] = {}
    for sampler in ("random", "tpe", "cmaes"):
        study = Study(
            "s",
            storage=optuna.storages.InMemoryStorage(),
            direction="minimize",
            sampler=sampler,
            n_trials=n,
        )
        running: list[tuple[int, float]] = []
        began, seconds = time.process_time(), []
        for number in range(n):
            proposal = study.asker.propose(lambda hp, proposal: rates(hp))
            assert proposal is not None
            proposal, hp, loss = proposal
            running.append((study.accept(proposal, hp), loss))
            if len(running) == OPEN:
                told, value = running.pop(0)
                study.updates.report(told, 1, {"loss": value}, value)
                study.updates.finish(told, "complete")
            if (number + 1) % (n // 4) == 0:
                seconds.append(round(time.process_time() - began, 2))
        report[sampler] = seconds
        print(f"{sampler}: {n} trials, processor seconds after each fourth: {seconds}", flush=True)
    return report


def digits_search(n: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of whole searches of small digits models: random and TPE, in turns."""
    found: dict[str, list[dict[str, Any]]] = {"random": [], "tpe": []}
    for sampler in ("random", "tpe", "tpe", "random")[: 2 * rounds]:
        found[sampler].append(one_search(sampler, n))
        print(f"digits, {n} trials, {sampler}: {found[sampler][-1]}", flush=True)
    seconds = {
        sampler: sum(row["seconds"] for row in rows) / rounds for sampler, rows in found.items()
    }
    return {**found, "ratio": round(seconds["tpe"] / seconds["random"], 3)}


def one_search(sampler: str, n: int) -> dict[str, Any]:
    """Return the seconds of one search of small digits models, programs compiled before."""
    from works import digits, digits_build

    import paceline

    (x, y), validation = digits()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        for trials in (16, n):  # the first search compiles
            tuner = paceline.Tuner(
                digits_build,
                objective="val_accuracy",
                study=f"s{trials}",
                sampler=sampler,
                directory=directory,
                on_note=lambda text: None,
            )
            began, used = time.perf_counter(), time.process_time()
            tuner.search(x, y, validation_data=validation, epochs=10, n_trials=trials)
            seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 1),
        "processor": round(time.process_time() - used, 1),
        "best": tuner.best_trial.value,
    }


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = ("cost", "digits", "seen", "again", "liar", "samplers")
    parser.add_argument("parts", nargs="*", help=", ".join(parts))
    parser.add_argument("--functions", nargs="*", default=list(FUNCTIONS))
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--trials", type=int, help="4096 for cost and digits, 64 for the others")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--quick", action="store_true", help="few seeds and trials; keeps nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(parts):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    seeds = 2 if arguments.quick else arguments.seeds
    functions, jobs = arguments.functions, arguments.jobs
    file = HERE / "results" / "asking.json"
    report = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    found = machine.facts()
    print(machine.describe(found), flush=True)
    missed = False
    for part in arguments.parts or parts:
        if part == "cost":
            result = cost(arguments.trials or (256 if arguments.quick else 4096))
            first, *_, before, last = result["tpe"]
            missed |= not arguments.quick and last - before > 3 * first
        elif part == "digits":
            n = arguments.trials or (64 if arguments.quick else 4096)
            result = digits_search(n, 1 if arguments.quick else 2)
            missed |= not arguments.quick and result["ratio"] > 1.5
        elif part in ("seen", "again"):
            up_to = 60 if arguments.quick else UP_TO
            kept = None if arguments.quick else HERE / "results" / "asking_seen.json"
            once = seen_once if part == "seen" else again_once
            finds = "seen" if part == "seen" else "again_seen"
            result = many(once, functions, seeds, up_to, jobs, kept, finds)
            part = "seen"  # noqa: PLW2901 - one report tells of both
        else:
            once = liar_once if part == "liar" else samplers_once
            trials = [arguments.trials] if arguments.trials else [64, 256]
            if part == "liar":
                trials = trials[:1]
            result = {
                str(n): many(once, functions, seeds, 32 if arguments.quick else n, jobs)
                for n in trials
            }
        if not arguments.quick:
            report[part] = {"machine": found, "seeds": seeds, **result}
            file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
