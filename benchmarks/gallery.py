"""The six studies of the gallery, each beside Keras' own ``fit``, one trial after another.

    python benchmarks/gallery.py                          all of them
    python benchmarks/gallery.py --studies digits co2     these; the others keep their results
    python benchmarks/gallery.py --quick                  whether it works: two trials, two epochs

A study is a file in ``examples/gallery``. Its search runs in a fresh process without compiled
programs. In another process, Keras' ``fit`` trains some of the trials with the same
hyperparameters, data and batches. Imports and the loading of data are not counted on either side.

The time of all trials in ``fit`` is an estimate. Each trial costs its start: build, compile and the
rest of a first epoch. Each epoch costs the mean of the later epochs.

The result is ``results/gallery.json``. Figures of the studies, as Plotly has them, are kept in
``.cache/gallery`` until ``tools/gallery_pages.py`` draws them.
"""

from __future__ import annotations

import argparse
import copy
import html
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import machine

HERE = Path(__file__).resolve()
FOLDER = machine.ROOT / "examples" / "gallery"
FIGURES = machine.ROOT / ".cache" / "gallery"
TIME_LIMIT = 1800.0  # s, for one process

#: Study -> its figures: name -> method of ``tuner.plot`` and its argument.
STUDIES: dict[str, dict[str, tuple[str, Any]]] = {
    "digits": {
        "slice": ("slice", ["lr", "layers", "units_0", "dropout"]),
        "importances": ("importances", None),
    },
    "fashion_mnist": {
        "curves": ("curves", None),
        "slice": ("slice", ["lr", "dropout", "normalize"]),
    },
    "sentences": {"curves": ("curves", None), "slice": ("slice", ["lr", "units", "dropout"])},
    "diamonds": {
        "slice": ("slice", ["lr", "layers", "embedding", "loss"]),
        "importances": ("importances", None),
    },
    "co2": {"slice": ("slice", ["lr", "look_back", "model"]), "curves": ("curves", None)},
    "attention": {
        "slice": ("slice", ["lr", "attention", "units", "dropout"]),
        "curves": ("curves", None),
    },
}
#: How many trials ``fit`` trains, and for how many epochs at most.
N_BESIDE, EPOCHS_BESIDE = 3, 4


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument(
        "--quick", action="store_true", help="two trials, two epochs; keeps nothing"
    )
    parser.add_argument("--note", default="", help="a sentence for the pages about other programs")
    parser.add_argument("--part", choices=("search", "beside"), help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        (name,) = arguments.studies
        part = searched if arguments.part == "search" else beside
        text = json.dumps(part(name, arguments.result, quick=arguments.quick), allow_nan=False)
        arguments.result.write_text(text, encoding="utf-8")
        return
    machine.end_children_when_told()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    entries: dict[str, Any] = {}
    for name in arguments.studies:
        entries[name] = measure(name, quick=arguments.quick)
        entries[name] |= {"commit": found["commit"], "note": arguments.note}
        print(told(name, entries[name]), flush=True)
    if not arguments.quick:
        machine.keep("gallery", {"machine": found, "entries": kept(found) | entries})


def kept(found: dict[str, Any]) -> dict[str, Any]:
    """Return the stored entries of the same machine and versions; each has a commit of its own."""
    path = machine.results_file("gallery")
    if not path.is_file():
        return {}
    old = json.loads(path.read_text(encoding="utf-8"))
    same = all(old["machine"][key] == found[key] for key in ("cpu", "cores"))
    others = ("keras", "jax", "jaxlib", "optuna")
    same &= all(old["machine"]["versions"][key] == found["versions"][key] for key in others)
    return old["entries"] if same else {}


def measure(name: str, *, quick: bool = False) -> dict[str, Any]:
    """Run both sides of a study, each in a fresh process; return the entry of the result."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        result = Path(folder) / "result.json"
        environment = machine.fresh_environment() | {
            "KERAS_BACKEND": "jax",
            "KERAS_HOME": f"{folder}/keras",
            "PACELINE_CACHE_DIR": f"{folder}/cache",
        }
        for part in ("search", "beside"):
            words = [sys.executable, str(HERE), "--studies", name, "--part", part]
            words += ["--result", str(result), *(["--quick"] if quick else [])]
            done = subprocess.run(
                words,
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIME_LIMIT,
            )
            if done.returncode:
                raise SystemExit(f"{name}, {part}: exit code {done.returncode}\n{done.stderr}")
        return json.loads(result.read_text(encoding="utf-8"))


def study_file(name: str) -> ModuleType:
    """Return a file of the gallery as a module."""
    spec = importlib.util.spec_from_file_location(f"gallery_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where Keras looks for a function of the model
    spec.loader.exec_module(module)
    return module


def searched(name: str, result: Path, *, quick: bool) -> dict[str, Any]:
    """Run a study's search; return what it found, and keep its figures."""
    import paceline

    module, search, calls = study_file(name), paceline.Tuner.search, []

    def timed(tuner: Any, *data: Any, **given: Any) -> None:
        began = time.perf_counter()
        search(tuner, *data, **given)
        calls.append((time.perf_counter() - began, given))

    paceline.Tuner.search = timed  # type: ignore[method-assign]
    tuner = module.search(**({"n_trials": 2, "epochs": 2} if quick else {}))
    ((seconds, given),) = calls
    page = Path(tuner.report(result.parent / "report.html")).read_text(encoding="utf-8")
    best, summary = tuner.best_trial, tuner.summary()
    for figure, (method, argument) in STUDIES[name].items() if not quick else ():
        FIGURES.mkdir(parents=True, exist_ok=True)
        drawn = getattr(tuner.plot, method)(*([] if argument is None else [argument]))
        (FIGURES / f"{name}_{figure}.json").write_text(drawn.to_json(), encoding="utf-8")
    table = tuner.results()
    trials = [tuner.trial(int(number)) for number in table["number"]]
    return {
        "seconds": seconds,
        "n_trials": summary["n_trials"],
        "epochs": given["epochs"],
        "epochs_trained": sum(trial.epochs for trial in trials),
        "programs": summary["programs"],
        "objective": tuner.plot.history().layout.yaxis.title.text,
        "best": {
            "number": best.number,
            "value": best.value,
            "epoch": best.best_epoch,
            "hparams": best.hparams,
        },
        "outcome": module.outcome(tuner),
        "verdict": verdict(page),
        "trials": [
            {
                "number": trial.number,
                "value": trial.value,
                "state": trial.state,
                "epochs": trial.epochs,
                "hparams": trial.hparams,
            }
            for trial in trials
        ],
    }


def verdict(page: str) -> dict[str, list[str]]:
    """Return the verdict of a report: its paragraphs, and what to try next."""
    (found,) = re.findall(r'<div class="verdict">(.*?)</div>', page, re.DOTALL)
    paragraphs = [html.unescape(text) for text in re.findall(r"<p>(.*?)</p>", found, re.DOTALL)]
    following = [html.unescape(text) for text in re.findall(r"<li>(.*?)</li>", found, re.DOTALL)]
    return {
        "found": [text for text in paragraphs if text != "What to try next:"],
        "following": following,
    }


class _Found(Exception):
    """Carries the arguments of a search that does not run."""


def beside(name: str, result: Path, *, quick: bool) -> dict[str, Any]:
    """Train some trials of a search with ``fit``; return its entry with what that took."""
    flags = os.environ.get("XLA_FLAGS")
    import paceline

    # Paceline adds an option for its own programs, which Keras alone would not have.
    os.environ.pop("XLA_FLAGS", None)
    if flags is not None:
        os.environ["XLA_FLAGS"] = flags
    import jax
    import keras

    entry = json.loads(result.read_text(encoding="utf-8"))
    jax.devices()
    module = study_file(name)

    def found(tuner: Any, *data: Any, **given: Any) -> None:
        raise _Found(data, given)

    paceline.Tuner.search = found  # type: ignore[method-assign]
    try:
        module.search()
        raise AssertionError(f"{name}: search was not called")
    except _Found as arguments:
        data, given = arguments.args
    of_fit = {k: v for k, v in given.items() if k not in ("n_trials", "epochs", "callbacks")}
    taken: list[dict[str, Any]] = []
    for trial in evenly([t for t in entry["trials"] if t["epochs"] > 1], N_BESIDE):
        clock = Clock()
        callbacks = [*copy.deepcopy(given.get("callbacks", [])), clock.callback()]
        keras.backend.clear_session()
        model = module.build(given_hparams(trial["hparams"]))
        epochs = min(trial["epochs"], EPOCHS_BESIDE)
        model.fit(*data, **of_fit, epochs=epochs, callbacks=callbacks, verbose=0)
        taken.append({"number": trial["number"], "epochs": clock.epochs})
    return entry | {"fit": estimate(taken, len(entry["trials"]), entry["epochs_trained"])}


def estimate(taken: list[dict[str, Any]], n_trials: int, n_epochs: int) -> dict[str, Any]:
    """Return what ``fit`` took for some trials, and would take for all of them.

    Args:
        taken: Trials that it has trained: "epochs" holds the seconds of each, of at least two.
        n_trials: Trials of the search.
        n_epochs: Epochs of all of them.
    """
    epochs = [seconds for each in taken for seconds in each["epochs"][1:]]
    epoch = sum(epochs) / len(epochs)
    start = sum(each["epochs"][0] - epoch for each in taken) / len(taken)
    return {
        "trials": taken,
        "seconds": sum(sum(each["epochs"]) for each in taken),
        "start": start,  # s, of each trial
        "epoch": epoch,  # s
        "estimate": n_trials * start + n_epochs * epoch,
    }


def evenly(trials: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """Return the first, the last, and others between them, at most n."""
    if len(trials) <= n:
        return trials
    return [trials[round(i * (len(trials) - 1) / (n - 1))] for i in range(n)]


def given_hparams(hparams: dict[str, Any]) -> Any:
    """Return an hp with these values."""
    from paceline import HyperParameters

    return HyperParameters(values=hparams, chooser=lambda parameter: parameter.default)


class Clock:
    """Measures a model from its build on. ``epochs``: seconds until each epoch's end."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self.epochs: list[float] = []

    def _tick(self, *_: Any) -> None:
        now = time.perf_counter()
        self.epochs.append(now - self._last)
        self._last = now

    def callback(self) -> Any:
        """Return a callback of ``fit`` that measures, validation included."""
        import keras

        return keras.callbacks.LambdaCallback(on_epoch_end=self._tick)


def told(name: str, entry: dict[str, Any]) -> str:
    """Return a line about a study."""
    fit = entry["fit"]
    return (
        f"{name}: {entry['seconds']:.1f} s for {len(entry['trials'])} trials, "
        f"{entry['epochs_trained']} epochs; best {entry['best']['value']:.4f}; "
        f"fit: {len(fit['trials'])} trials in {fit['seconds']:.1f} s, "
        f"all about {fit['estimate']:.0f} s; {entry['outcome']}"
    )


if __name__ == "__main__":
    main()
