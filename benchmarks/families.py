"""Whether families of trials hurt the search: searches that look their losses up in a table.

    python benchmarks/families.py [--train] [--seeds 200] [--wave N] [--floors]

512 digits trials (four widths x two activations x eight learning rates x eight dropout rates) are
trained once; their losses are kept in results/families_table.json. Then each sampler searches that
table with 64 trials for every seed, in families and in the plain order, and nothing is trained.
Claimed: the bootstrap 95 % interval of the difference between the two median best losses lies
within 0.003 of 0. The simulation is deterministic: no figure depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
import numpy as np
import optuna
from works import digits

from paceline.study.samplers import structure_order
from paceline.study.study import Study

HERE = Path(__file__).resolve().parent
TABLE = HERE / "results" / "families_table.json"
TRIALS, EPOCHS, BATCH = 64, 20, 32
SLOTS = 16  # two packs of eight: a CPU with two cores
WITHIN = 0.003


def declare(hp: Any) -> tuple[int, str, float, float]:
    """Declare the space: two structural choices, and two numbers on a grid, for the look-up."""
    return (
        hp.Choice("units", [16, 32, 64, 128]),
        hp.Choice("activation", ["relu", "tanh"]),
        10 ** hp.Float("log_lr", -3.5, -1.4, step=0.3),
        hp.Float("dropout", 0.05, 0.75, step=0.1),
    )


def build(hp: Any) -> Any:
    """Build the digits model: dense 64-units-10 with dropout."""
    import keras

    units, activation, lr, dropout = declare(hp)
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(units, activation=activation),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(lr),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def key(hparams: dict[str, Any]) -> str:
    """Return the key of a configuration in the table."""
    lr, dropout = round(hparams["log_lr"], 1), round(hparams["dropout"], 2)
    return f"{structure(hparams)} {lr} {dropout}"


def structure(hparams: dict[str, Any]) -> str:
    """Return the name of the program that a configuration needs."""
    return f"{hparams['units']} {hparams['activation']}"


def train() -> dict[str, float]:
    """Train every configuration; return its validation loss at its best epoch."""
    import paceline

    (x, y), validation = digits()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            build, objective="val_loss", study="s", sampler="grid", directory=directory
        )
        tuner.search(x, y, validation_data=validation, epochs=EPOCHS, batch_size=BATCH)
        results = tuner.results()
    return {key(row): round(float(row["value"]), 5) for row in results.to_dict("records")}


def search(
    table: dict[str, float], sampler: str, seed: int, slots: int
) -> tuple[list[dict[str, Any]], list[float], list[int]]:
    """Run one search by look-up, in waves of as many trials at once as the sampler allows.

    Args:
        table: Key of a configuration -> loss.
        sampler: Name of the sampler.
        seed: Seed of the study.
        slots: Trials at once; 1 is the plain order.

    Returns:
        Configurations and losses in the order of asking, and the number of programs of each wave.
    """
    study = Study(
        "s",
        storage=optuna.storages.InMemoryStorage(),
        direction="minimize",
        sampler=sampler,
        seed=seed,
        n_trials=TRIALS,
    )
    study.proposer.structure_order.fill(slots)
    asked: list[dict[str, Any]] = []
    programs: list[int] = []
    at_once = study.asker.max_open or SLOTS
    while len(asked) < TRIALS:
        wave: list[int] = []
        while len(wave) < at_once and len(asked) < TRIALS:
            proposal = study.asker.propose(lambda hp, proposal: declare(hp))
            assert proposal is not None
            proposal, hp, _ = proposal
            wave.append(study.accept(proposal, hp))
            asked.append(hp.hparams)
            study.updates.learn_program(wave[-1], structure(hp.hparams))
        programs.append(len({structure(study.trials.by_number(number).hparams) for number in wave}))
        for number in wave:
            loss = table[key(study.trials.by_number(number).hparams)]
            study.updates.report(number, EPOCHS, {"val_loss": loss}, loss)
            study.updates.finish(number, "complete")
    return asked, [table[key(hparams)] for hparams in asked], programs


def interval(family: list[float], plain: list[float], of: Any) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of the difference families minus plain, paired by seed."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(plain), (10_000, len(plain)))
    gaps = of(np.array(family)[rows], axis=1) - of(np.array(plain)[rows], axis=1)
    low, high = np.quantile(gaps, [0.025, 0.975])
    return round(float(low), 6), round(float(high), 6)


def compare(table: dict[str, float], sampler: str, seeds: int) -> dict[str, Any]:
    """Compare families with the plain order, over seeds."""
    best: dict[str, list[float]] = {"plain": [], "family": []}
    half: dict[str, list[float]] = {"plain": [], "family": []}
    shares: dict[str, Counter[str]] = {"plain": Counter(), "family": Counter()}
    programs: dict[str, list[int]] = {"plain": [], "family": []}
    same = 0
    for seed in range(seeds):
        found = {}
        for way, slots in (("plain", 1), ("family", SLOTS)):
            asked, losses, met = search(table, sampler, seed, slots)
            best[way].append(min(losses))
            half[way].append(min(losses[: TRIALS // 2]))
            shares[way].update(structure(hparams) for hparams in asked)
            programs[way] += met
            found[way] = sorted(map(key, asked))
        same += found["plain"] == found["family"]
    total = seeds * TRIALS
    return {
        "median_best": {way: float(np.median(values)) for way, values in best.items()},
        "interval": interval(best["family"], best["plain"], np.median),
        "mean_best": {way: round(float(np.mean(values)), 6) for way, values in best.items()},
        "interval_of_mean": interval(best["family"], best["plain"], np.mean),
        "interval_at_half": interval(half["family"], half["plain"], np.median),
        "same_set_of_trials": f"{same} of {seeds}",
        "programs_at_once": {way: round(float(np.mean(n)), 3) for way, n in programs.items()},
        "share_moved": round(
            sum(
                abs(shares["plain"][name] - shares["family"][name])
                for name in shares["plain"] | shares["family"]
            )
            / (2 * total),
            4,
        ),
    }


def main() -> int:
    """Compare; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--train", action="store_true", help="train the table anew")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument(
        "--wave", type=int, default=structure_order.WAVE, help="trials of a wave of TPE's"
    )
    parser.add_argument("--samplers", nargs="*", default=["random", "tpe"])
    parser.add_argument("--name", default="families", help="of the file in results/")
    parser.add_argument("--floors", action="store_true", help="exit 1 where the claim is missed")
    arguments = parser.parse_args()
    structure_order.WAVE = arguments.wave
    found = machine.facts()
    print(machine.describe(found), flush=True)
    if arguments.train or not TABLE.is_file():
        table = train()
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(json.dumps(table, indent=0) + "\n", encoding="utf-8")
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    ranked = sorted(table.values())
    print(f"{len(table)} trained trials, losses {ranked[0]}, {ranked[1]}, ... {ranked[-1]}")
    report: dict[str, Any] = {"machine": found, "wave": arguments.wave, "seeds": arguments.seeds}
    missed = False
    for sampler in arguments.samplers:
        began = time.perf_counter()
        report[sampler] = row = compare(table, sampler, arguments.seeds)
        low, high = row["interval"]
        missed |= low < -WITHIN or high > WITHIN
        medians, met = row["median_best"], row["programs_at_once"]
        print(
            f"{sampler} ({time.perf_counter() - began:.0f} s):\n"
            f"  median best {medians['family']:.5f} in families, {medians['plain']:.5f} plainly; "
            f"95 % interval of the difference {row['interval']} (claimed within {WITHIN})\n"
            f"  of the means {row['interval_of_mean']}, of the medians after half of the trials "
            f"{row['interval_at_half']}\n"
            f"  same trials for {row['same_set_of_trials']} seeds; {row['share_moved']:.1%} of the "
            f"trials moved to other structures\n"
            f"  programs among the trials at once: {met['family']} in families, "
            f"{met['plain']} plainly",
            flush=True,
        )
    machine.keep(arguments.name, report)
    return 1 if arguments.floors and missed else 0


if __name__ == "__main__":
    sys.exit(main())
