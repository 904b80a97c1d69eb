"""An open-ended search: what a timeout makes of a usual space of layers, widths and optimizers.

    python benchmarks/open_ended.py [bounded open asha] [--timeout 60] [--seed 0]

12,000 images of Fashion-MNIST, 2,000 others to validate; a dense model of one to three layers, each
of 32 to 512 units, relu or tanh, trained by adam, sgd or rmsprop. Each search has a process and
empty caches of its own; imports and data are not counted.

bounded  n_trials=24, or as many as the time allows
open     n_trials=100_000: in effect without a number of trials
asha     the same with pruner="asha"

Claimed: "bounded" and "open" complete as many trials in the time (to a tenth, or to one trial);
every search has a best model and ends within 2 s of its timeout; "asha" compiles at most two
programs that train nothing. The exit code is 1 where a claim is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
import numpy as np
from works import Pairs, data_file

EPOCHS, BATCH = 12, 128
#: Name of a search -> arguments: of ``Tuner.search``, and of ``Tuner``.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bounded": ({"n_trials": 24}, {}),
    "open": ({"n_trials": 100_000}, {}),
    "asha": ({"n_trials": 100_000}, {"pruner": "asha"}),
}
SHARE, OVERRUN, UNTRAINED = 0.1, 2.0, 2
PARTS = ("build", "trace", "compile", "train", "validate")


def data() -> Pairs:
    """Return images f32[784] of Fashion-MNIST and their classes."""
    with np.load(data_file("fashion_mnist.npz")) as file:
        x, y = file["x_train"][:14000], file["y_train"][:14000]
    x = x.reshape(len(x), -1).astype("float32") / 255
    return (x[:12000], y[:12000]), (x[12000:], y[12000:])


def build(hp: Any) -> Any:
    """Build a dense classifier."""
    import keras

    activation = hp.Choice("activation", ["relu", "tanh"])
    layers: list[Any] = [keras.layers.Input((784,))]
    for i in range(hp.Int("layers", 1, 3)):
        layers.append(keras.layers.Dense(hp.Int(f"units_{i}", 32, 512), activation=activation))
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    model.compile(
        optimizer=keras.optimizers.get(
            {
                "class_name": hp.Choice("optimizer", ["adam", "sgd", "rmsprop"]),
                "config": {"learning_rate": hp.Float("lr", 1e-5, 1e-1, sampling="log")},
            }
        ),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of each search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="open_ended", help="of the file in results/")
    parser.add_argument("--result", type=Path, help="search here, and write what came of it there")
    arguments = parser.parse_args()
    if arguments.result is not None:
        found = search(arguments.cases[0], arguments.timeout, arguments.seed)
        arguments.result.write_text(json.dumps(found), encoding="utf-8")
        return 0
    machine.end_children_when_told()
    facts = machine.facts()
    print(machine.describe(facts), flush=True)
    rows = {}
    for case in arguments.cases:
        rows[case] = row = in_process(case, arguments.timeout, arguments.seed)
        print(lines_of(case, row), flush=True)
    missed = missed_claims(rows, arguments.timeout)
    machine.keep(
        arguments.name,
        {"machine": facts, "timeout": arguments.timeout, "searches": rows, "missed": missed},
    )
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def in_process(case: str, timeout: float, seed: int) -> dict[str, Any]:
    """Run a search in a fresh process with empty caches; return what came of it."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-cache-") as cache:
        result = Path(cache) / "result.json"
        command = [sys.executable, __file__, case, "--timeout", str(timeout)]
        environment = machine.fresh_environment() | {"PACELINE_CACHE_DIR": cache}
        subprocess.run(
            [*command, "--seed", str(seed), "--result", str(result)], env=environment, check=True
        )
        return json.loads(result.read_text(encoding="utf-8"))


def noting(bests: list[tuple[float, float]]) -> Callable[[Any], None]:
    """Return an ``on_progress`` that adds each new best value to a list, with its second."""

    def look(progress: Any) -> None:
        value = progress.best_value
        if value is not None and round(value, 4) > (bests[-1][1] if bests else -1.0):
            bests.append((round(progress.seconds, 1), round(value, 4)))

    return look


def search(case: str, timeout: float, seed: int) -> dict[str, Any]:
    """Run a search here.

    Returns:
        Counts, the seconds of its parts, and the moment at which each complete trial and each new
        best value came, in seconds since the search began.
    """
    import paceline
    from paceline.study.timeline import read_timelines

    call, of_tuner = CASES[case]
    (x, y), validation = data()
    device = machine.device()
    bests: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        tuner = paceline.Tuner(
            build,
            objective="val_accuracy",
            study="s",
            seed=seed,
            directory=directory,
            on_progress=noting(bests),
            on_note=lambda text: None,
            **of_tuner,
        )
        began = time.perf_counter()
        tuner.search(
            *(x, y),
            validation_data=validation,
            epochs=EPOCHS,
            batch_size=BATCH,
            timeout=timeout,
            **call,
        )
        seconds = time.perf_counter() - began
        results, summary = tuner.results(), tuner.summary()
        (timeline,) = read_timelines(Path(directory) / "s")
        try:
            tuner.best_model()
        except paceline.PacelineError as error:
            has_model, why = False, str(error)
        else:
            has_model, why = True, ""
    ends = {stay.trial: stay.ended for stay in timeline.stays}
    complete = results.loc[results["state"] == "complete", "number"]
    trained = {stay.program for stay in timeline.stays if stay.epochs}
    compiled = {step.program for step in timeline.compiled}
    return {
        "device": device,
        "seconds": round(seconds, 1),
        "ended": (summary["ended"] or {}).get("by"),
        "begun": len(results),
        "complete": sorted(round(ends[number], 1) for number in complete if number in ends),
        "pruned": int((results["state"] == "pruned").sum()),
        "trial_epochs": sum(stay.epochs for stay in timeline.stays),
        "programs": len(compiled),
        "untrained": len(compiled - trained),
        "parts": {part: round(summary["seconds"][part], 1) for part in PARTS},
        "bests": bests,
        "model": has_model,
        "why_no_model": why,
        "load": round(os.getloadavg()[0], 1),
    }


def lines_of(case: str, row: dict[str, Any]) -> str:
    """Return what is printed of a search."""
    call, of_tuner = CASES[case]
    given = ", ".join(f"{name}={value!r}" for name, value in {**call, **of_tuner}.items())
    parts = "  ".join(f"{part} {seconds}" for part, seconds in row["parts"].items())
    bests = ", ".join(f"{value} at {at} s" for at, value in row["bests"])
    return (
        f"\n{case} ({given}) on {row['device']}, load {row['load']}: {row['seconds']} s, ended by "
        f"{row['ended']}\n"
        f"  {row['begun']} trials begun, {len(row['complete'])} complete, {row['pruned']} pruned; "
        f"{row['trial_epochs']} epochs\n"
        f"  {row['programs']} programs compiled, {row['untrained']} of them trained nothing\n"
        f"  {parts} s\n"
        f"  best {bests or 'none'}{'' if row['model'] else '; no best model: '}"
        f"{row['why_no_model']}"
    )


def missed_claims(rows: dict[str, dict[str, Any]], timeout: float) -> list[str]:
    """Return what does not hold of what is claimed, a line each."""
    missed = []
    for case, row in rows.items():
        if not row["model"]:
            missed.append(f"{case}: no best model: {row['why_no_model']}")
        if row["seconds"] > timeout + OVERRUN:
            late = row["seconds"] - timeout
            missed.append(f"{case}: ended {late:.1f} s after its timeout, promised {OVERRUN}")
    if "asha" in rows and rows["asha"]["untrained"] > UNTRAINED:
        n = rows["asha"]["untrained"]
        missed.append(f"asha: {n} programs trained nothing, promised at most {UNTRAINED}")
    if {"bounded", "open"} <= rows.keys():
        # A search that has all its trials is compared at the moment at which it ended.
        moment = min(timeout, rows["bounded"]["seconds"])
        counts = [
            sum(at <= moment for at in rows[case]["complete"]) for case in ("bounded", "open")
        ]
        if abs(counts[0] - counts[1]) > max(1, SHARE * max(counts)):
            missed.append(
                f"after {moment:.0f} s {counts[0]} trials were complete with n_trials=24, and "
                f"{counts[1]} with n_trials=100_000"
            )
    return missed


if __name__ == "__main__":
    sys.exit(main())
