"""Population based training, in packs and in Ray Tune, from the same first draws.

    python benchmarks/pbt.py [digits] [mnist] [--seeds 3] [--timed 1] [--floors] [--quick]
    python benchmarks/pbt.py --without-ray --seeds 10    only what is found, seed by seed

Two works: digits, 16 members x 40 epochs with a perturbation every 4, and a dense model on 12,000
MNIST images, 8 members x 12 epochs with a perturbation every 3. Learning rate and dropout are
searched. Each search is a process of its own with empty caches, timed from its start to its end, so
imports, Ray's start and compiling count on both sides. Ray Tune has the same share, probability of
a new draw and factors, keeps its actors, and is given a function that holds values within their
bounds; without it, the dropout leaves them and the search dies. How many trials Ray runs at once is
measured: one and two for each core, and the quicker counts.

Claimed, for the seeds that are timed: Ray Tune takes at least 20 times as long on digits and 4
times on MNIST. Over all seeds: the median of the population's best val_loss is no higher than with
Ray Tune, and lower than that of random search, which trains as many epochs in all. The
side "bandit" is Paceline with `explore="gp"`; nothing is claimed of it. Ray Tune's packages come
with `make bench-pbt`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
import numpy as np
from works import Pairs, classifier, data_file, digits

machine.PACKAGES = (*machine.PACKAGES, "ray")

LR, DROPOUT = (1e-4, 1e-2), (0.05, 0.5)


@dataclass(frozen=True)
class PopulationWork:
    """One population.

    Attributes:
        members: Its size.
        epochs: Epochs of a member.
        every: Epochs between two perturbations.
        batch_size: Examples of a step.
        units: Of the hidden layer.
        floor: Ray Tune's time divided by Paceline's is claimed to be at least this.
    """

    members: int
    epochs: int
    every: int
    batch_size: int
    units: int
    floor: float


WORKS = {
    "digits": PopulationWork(16, 40, 4, 32, 64, 20.0),
    "mnist": PopulationWork(8, 12, 3, 128, 128, 4.0),
}


def data_of(name: str) -> Pairs:
    """Return training and validation data: f32[N, F], i64[N]."""
    if name == "digits":
        return digits()
    with np.load(data_file("mnist.npz")) as file:
        x = (file["x_train"][:14000].reshape(14000, -1) / 255.0).astype("float32")
        y = file["y_train"][:14000].astype("int64")
    return (x[:12000], y[:12000]), (x[12000:], y[12000:])


def build_of(work: PopulationWork, n_features: int) -> Callable[[Any], Any]:
    """Return ``build(hp)``: a dense model with dropout."""

    def build(hp: Any) -> Any:
        from keras.layers import Dense, Dropout

        dropout = Dropout(hp.Float("dropout", *DROPOUT))
        return classifier(hp, n_features, [Dense(work.units, activation="relu"), dropout])

    return build


def draws(work: PopulationWork, seed: int) -> list[dict[str, float]]:
    """Return the first hyperparameters of all members, the same for every side."""
    rng = np.random.default_rng(seed)
    low, high = np.log(LR)
    return [
        {"dropout": float(rng.uniform(*DROPOUT)), "lr": float(np.exp(rng.uniform(low, high)))}
        for _ in range(work.members)
    ]


# -- the sides: each returns the best val_loss, and how many epochs were trained -------------------


def paceline_side(name: str, work: PopulationWork, seed: int, **options: Any) -> dict[str, Any]:
    """Search with Paceline; ``options`` are arguments of ``Tuner``."""
    import paceline

    (x, y), validation = data_of(name)
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            build_of(work, x.shape[1]),
            objective="val_loss",
            study="s",
            sampler="random",
            seed=seed,
            directory=directory,
            on_note=lambda text: None,
            **options,
        )
        for hparams in draws(work, seed):
            tuner.enqueue(hparams)
        tuner.search(
            x,
            y,
            validation_data=validation,
            epochs=work.epochs,
            batch_size=work.batch_size,
            n_trials=work.members,
            verbose=0,
        )
        trials = [tuner.trial(int(number)) for number in tuner.results()["number"]]
        programs = tuner.summary()["programs"]
        trained = sum(trial.epochs - (trial.continued_at or 0) for trial in trials)
        return {"best": tuner.best_trial.value, "epochs": trained, "programs": programs}


def population_side(name: str, work: PopulationWork, seed: int) -> dict[str, Any]:
    """Population based training in packs."""
    from paceline import PBT

    return paceline_side(name, work, seed, pruner=PBT(perturbation_interval=work.every))


def bandit_side(name: str, work: PopulationWork, seed: int) -> dict[str, Any]:
    """The same, with values for copies that a Gaussian process chooses."""
    from paceline import PBT

    return paceline_side(
        name, work, seed, pruner=PBT(perturbation_interval=work.every, explore="gp")
    )


def ray_side(name: str, work: PopulationWork, seed: int, at_once: int = 2) -> dict[str, Any]:
    """Population based training by Ray Tune, one trial a process, ``at_once`` of them together."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining
    from ray.tune.search.basic_variant import BasicVariantGenerator

    class Values:
        """An hp that gives the values of a configuration."""

        def __init__(self, config: Mapping[str, float]) -> None:
            self.config = config

        def Float(self, name: str, low: float, high: float, sampling: str = "") -> float:  # noqa: N802
            return self.config[name]

    class Member(tune.Trainable):
        """A Keras model that trains an epoch a step."""

        def setup(self, config: dict[str, Any], pairs: Pairs) -> None:
            import keras

            keras.utils.set_random_seed(int(config["seed"]))
            (self.x, self.y), self.validation = pairs
            self.model = build_of(work, self.x.shape[1])(Values(config))

        def step(self) -> dict[str, float]:
            logs = self.model.fit(
                self.x,
                self.y,
                validation_data=self.validation,
                epochs=1,
                batch_size=work.batch_size,
                verbose=0,
            ).history
            return {name: float(column[-1]) for name, column in logs.items()}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            variables = [*self.model.variables, *self.model.optimizer.variables]
            arrays = {str(i): np.asarray(each) for i, each in enumerate(variables)}
            np.savez(Path(checkpoint_dir) / "variables.npz", **arrays)

        def load_checkpoint(self, checkpoint_dir: str) -> None:
            self.model.optimizer.build(self.model.trainable_variables)
            with np.load(Path(checkpoint_dir) / "variables.npz") as file:
                variables = [*self.model.variables, *self.model.optimizer.variables]
                for i, variable in enumerate(variables):
                    variable.assign(file[str(i)])
            self.model.optimizer.learning_rate = self.config["lr"]

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.config = new_config
            # The rate of a dropout is part of the compiled step, so a model is built anew.
            self.model = build_of(work, self.x.shape[1])(Values(new_config))
            return True

    def explore(config: dict[str, Any]) -> dict[str, Any]:
        for key, (low, high) in (("lr", LR), ("dropout", DROPOUT)):
            config[key] = min(max(config[key], low), high)
        return config

    cores = os.cpu_count() or 1
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False)
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        metric="val_loss",
        mode="min",
        perturbation_interval=work.every,
        hyperparam_mutations={"lr": tune.loguniform(*LR), "dropout": tune.uniform(*DROPOUT)},
        quantile_fraction=0.25,
        resample_probability=0.25,
        perturbation_factors=(1.2, 0.8),
        custom_explore_fn=explore,
    )
    points = [{**values, "seed": seed * 1000 + i} for i, values in enumerate(draws(work, seed))]
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        trainable = tune.with_resources(
            tune.with_parameters(Member, pairs=data_of(name)), {"cpu": cores / at_once}
        )
        tuner = tune.Tuner(
            trainable,
            param_space={
                "lr": tune.loguniform(*LR),
                "dropout": tune.uniform(*DROPOUT),
                "seed": tune.randint(0, 2**31),
            },
            tune_config=tune.TuneConfig(
                scheduler=scheduler,
                search_alg=BasicVariantGenerator(points_to_evaluate=points, random_state=seed),
                num_samples=work.members,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                storage_path=directory,
                name="s",
                verbose=0,
                stop={"training_iteration": work.epochs},
            ),
        )
        results = tuner.fit()
        if results.errors:
            raise RuntimeError(f"Ray Tune: {results.errors[0]}")
        columns = [result.metrics_dataframe for result in results]
        best = min(float(column["val_loss"].min()) for column in columns)
        trained = sum(len(column) for column in columns)
    ray.shutdown()
    return {"best": best, "epochs": trained, "at_once": at_once}


SIDES: dict[str, Callable[..., dict[str, Any]]] = {
    "paceline": population_side,
    "bandit": bandit_side,
    "ray": ray_side,
    "random": paceline_side,
}


# -- the comparison --------------------------------------------------------------------------------


def run(side: str, name: str, work: PopulationWork, seed: int, **options: Any) -> dict[str, Any]:
    """Run one side in a process with empty caches; return what it found, and its seconds."""
    job = {"side": side, "name": name, "work": vars(work), "seed": seed, "options": options}
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as home:
        env = {**os.environ, "HOME": home, "XDG_CACHE_HOME": str(Path(home) / "cache")}
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, __file__, "--child", json.dumps(job)],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{side}, {name}, seed {seed}:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    row = {"seconds": round(seconds, 2), **found}
    print(f"{name}, seed {seed}, {side}: {json.dumps(row)}", flush=True)
    return row


def compare(name: str, work: PopulationWork, seeds: int, timed: int) -> dict[str, Any]:
    """Compare all sides for every seed; return the rows, and what is claimed of them."""
    cores = os.cpu_count() or 1
    rows: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    first = [run("ray", name, work, 0, at_once=cores * per_core) for per_core in (1, 2)]
    quicker = min(first, key=lambda row: row["seconds"])
    for seed in range(max(seeds, timed)):
        rows["paceline"].append(run("paceline", name, work, seed))
        rows["bandit"].append(run("bandit", name, work, seed))
        again = {"at_once": quicker["at_once"]}
        rows["ray"].append(run("ray", name, work, seed, **again) if seed else quicker)
        rows["random"].append(run("random", name, work, seed))
    seconds = {side: [row["seconds"] for row in found[:timed]] for side, found in rows.items()}
    medians = {
        side: statistics.median(row["best"] for row in found) for side, found in rows.items()
    }
    ratio = statistics.median(seconds["ray"]) / statistics.median(seconds["paceline"])
    report = {
        "ray at other numbers at once": [row for row in first if row is not quicker],
        "rows": rows,
        "ratio": round(ratio, 2),
        "median best": {side: round(value, 5) for side, value in medians.items()},
        "floor": work.floor,
        "met": {
            "time": ratio >= work.floor,
            "no worse than Ray Tune": medians["paceline"] <= medians["ray"],
            "better than random": medians["paceline"] < medians["random"],
        },
    }
    print(
        f"{name}: Ray Tune takes {ratio:.1f} times as long (claimed: {work.floor:g}); median best "
        f"val_loss {report['median best']}; {report['met']}",
        flush=True,
    )
    return report


def beside_random(name: str, work: PopulationWork, seeds: int) -> dict[str, Any]:
    """Compare Paceline's populations with random search, seed by seed; return the rows."""
    sides = [side for side in SIDES if side != "ray"]
    rows = {side: [run(side, name, work, seed) for seed in range(seeds)] for side in sides}
    best = {side: [row["best"] for row in found] for side, found in rows.items()}
    report: dict[str, Any] = {"rows": rows, "ratios": {}}
    for side in ("paceline", "bandit"):
        ratios = [a / b for a, b in zip(best[side], best["random"], strict=True)]
        low, high = _interval(ratios)
        report["ratios"][side] = [statistics.median(ratios), low, high]
        lower = sum(ratio < 1 for ratio in ratios)
        print(
            f"{name}: best val_loss of {side} / random: median {statistics.median(ratios):.3f} "
            f"[{low:.3f}, {high:.3f}], lower for {lower} of {seeds} seeds",
            flush=True,
        )
    return report


def _interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by 10,000 draws from the values."""
    draws = np.random.default_rng(0).choice(values, (10_000, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return float(low), float(high)


def main() -> int:
    """Compare; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("works", nargs="*", default=list(WORKS), help=f"of {', '.join(WORKS)}")
    parser.add_argument("--seeds", type=int, default=3, help="how many, for the values found")
    parser.add_argument("--timed", type=int, default=1, help="how many of them are timed")
    parser.add_argument("--without-ray", action="store_true", help="random search beside it only")
    parser.add_argument("--quick", action="store_true", help="few epochs; keeps nothing")
    parser.add_argument("--floors", action="store_true", help="exit 1 where a claim is missed")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        job = json.loads(arguments.child)
        work = PopulationWork(**job["work"])
        found = SIDES[job["side"]](job["name"], work, job["seed"], **job["options"])
        print(json.dumps(found))
        return 0
    found = machine.facts()
    print(machine.describe(found), flush=True)
    if arguments.without_ray:
        for name in arguments.works:
            row = {name: beside_random(name, WORKS[name], arguments.seeds)}
            machine.gather("pbt_beside_random", found, row)
        return 0
    report = {}
    for name in arguments.works:
        work = WORKS[name]
        if arguments.quick:
            work = replace(work, members=4, epochs=2 * work.every)
        seeds, timed = (1, 1) if arguments.quick else (arguments.seeds, arguments.timed)
        report[name] = compare(name, work, seeds, timed)
    if not arguments.quick:
        machine.gather("pbt", found, report)
    missed = not all(all(each["met"].values()) for each in report.values())
    return 1 if arguments.floors and missed else 0


if __name__ == "__main__":
    sys.exit(main())
