"""The results of the examples on real data, and how long they take: docs/tutorials/examples.md.

    python benchmarks/example_runs.py                       all of them
    python benchmarks/example_runs.py --runs translation

Each example runs as that guide says, in a fresh process with empty caches; the time includes
imports and compiling. Asserted: the result is far better than guessing, that is, than always giving
the most frequent answer (in translation: the most frequent one at each place of a sentence).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import machine
import numpy as np
from works import EXAMPLES, data_file, example

PACELINE = [sys.executable, "-c", "from paceline.cli.app import main; main()"]
SEARCH = [*PACELINE, "search", "{file}", "--seed", "0", "--sampler", "random", "--quiet", "--json"]
#: Name -> data file, command.
RUNS = {
    "cifar10_cnn": (
        "cifar10.npz",
        [*SEARCH, "--trials", "4", "--epochs", "5", "--batch-size", "64"],
    ),
    "language_lstm": (
        "fra_eng.tsv",
        [*SEARCH, "--trials", "8", "--epochs", "5"],
    ),
    "translation": ("fra_eng.tsv", [sys.executable, "{file}"]),
}
#: The share of what guessing gets wrong that the example must get right.
LEARNED = 0.4


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS), metavar="RUN")
    arguments = parser.parse_args()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    entries: dict[str, Any] = {}
    for name in arguments.runs:
        entries[name] = run(name)
        entries[name]["guessing"] = guessing(name)
        print(json.dumps({name: entries[name]}, indent=1, ensure_ascii=False), flush=True)
        machine.keep(f"example_run_{name}", {"machine": found, **entries[name]})
    for name, entry in entries.items():
        least = entry["guessing"] + LEARNED * (1 - entry["guessing"])
        assert entry["value"] >= least, f"{name}: {entry['value']:.3f}, at least {least:.3f}"


def run(name: str) -> dict[str, Any]:
    """Run an example; return its seconds, the best trial's value, and what it printed."""
    needed, command = RUNS[name]
    words = [word.format(file=EXAMPLES / f"{name}.py") for word in command]
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        environment = os.environ | {
            "KERAS_BACKEND": "jax",
            "KERAS_HOME": f"{folder}/keras",
            "PACELINE_CACHE_DIR": f"{folder}/cache",
            "PACELINE_DATA": str(data_file(needed).parent),
        }
        began = time.perf_counter()
        done = subprocess.run(
            words, env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{name}: exit code {done.returncode}\n{done.stderr}")
    said = done.stdout.splitlines()
    shown = " ".join(words[len(PACELINE) :] if words[:3] == PACELINE else ["python", *words[1:]])
    shown = shown.replace(f"{EXAMPLES.parent}/", "")
    if words[:3] != PACELINE:
        (line,) = [line for line in said if line.startswith("trial ")]
        value = float(line.partition(": ")[2].partition("%")[0]) / 100
        return {"command": shown, "seconds": seconds, "value": value, "printed": said}
    summary = json.loads(said[-1])
    return {
        "command": f"paceline {shown}",
        "seconds": seconds,
        "value": summary["best"]["value"],
        "best": summary["best"],
        "parts": summary["seconds"],
    }


def guessing(name: str) -> float:
    """Return the accuracy, on the validation data, of the most frequent training answer."""
    os.environ["PACELINE_DATA"] = str(data_file(RUNS[name][0]).parent)
    (_, y), (_, y_val) = example(f"{name}.py").data()
    y, y_val = (np.asarray(part).reshape(len(part), -1) for part in (y, y_val))
    padding = 0 if y.shape[1] > 1 else -1  # sentences are padded with 0
    answers = [np.bincount(place[place != padding]).argmax() for place in y.T]
    return float((y_val == answers)[y_val != padding].mean())


if __name__ == "__main__":
    main()
