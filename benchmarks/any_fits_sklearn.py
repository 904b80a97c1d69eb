"""scikit-learn's searches of Keras models, with one line around them and as they were: cold.

    python benchmarks/any_fits_sklearn.py
    python benchmarks/any_fits_sklearn.py --works grid --quick  # a few fits; no floor is checked
    python benchmarks/any_fits_sklearn.py --keep  # writes benchmarks/results, too
    python benchmarks/any_fits_sklearn.py --backend tensorflow --python PYTHON  # in such sessions

Works
    grid: ``GridSearchCV`` over 12 configurations x 5 folds of digits, 10 epochs.
    bag: ``BaggingClassifier`` of 16 networks.

Each side runs in a process of its own, whose time counts from its start to its end: imports, data,
compiling, training, scores. ``paceline`` has the line, ``original`` has not. Both are on JAX, or on
``--backend``, where seeds draw other weights than on JAX: scores are printed, but not compared.
``WORKS`` and ``scored`` have the form of ``any_fits.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

import machine
from any_fits import SIDES, run

#: Work -> configurations or members, and how many times as fast as the original Paceline has to be.
WORKS = {"grid": (12, 8.0), "bag": (16, 3.0)}
FIT = {"epochs": 10, "batch_size": 32, "verbose": 0}


def make(X: Any, y: Any, rate: float = 1e-3) -> Any:  # noqa: N803 - Keras' names
    """Returns a network of the digits, whose seed is its own."""
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((X.shape[1],)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(y.shape[1], activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(rate), "categorical_crossentropy", metrics=["accuracy"])
    return model


def scored(work: str, side: str, n: int) -> dict[str, Any]:
    """Runs a work; returns the mean score of each configuration, or the bag's score."""
    import paceline  # noqa: F401, I001, RUF100 - the first import: Keras on JAX
    import joblib  # noqa: TID251 - its parallel_config only
    import numpy as np
    from keras.wrappers import SKLearnClassifier
    from sklearn.datasets import load_digits
    from sklearn.ensemble import BaggingClassifier
    from sklearn.model_selection import GridSearchCV

    class Classifier(SKLearnClassifier):
        def fit(self, X: Any, y: Any) -> Any:  # noqa: N803 - scikit-learn's names
            return super().fit(X, y, **FIT)

    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    with contextlib.ExitStack() as stack:
        if side == "paceline":
            stack.enter_context(joblib.parallel_config(backend="paceline"))
        if work == "grid":
            rates = [{"rate": float(rate)} for rate in np.geomspace(1e-4, 1e-2, n)]
            grid = GridSearchCV(Classifier(make), {"model_kwargs": rates}, cv=5, refit=False)
            grid.fit(x, y)
            return {"scores": grid.cv_results_["mean_test_score"].round(6).tolist()}
        bag = BaggingClassifier(Classifier(make), n_estimators=n, random_state=0)
        return {"scores": [round(float(bag.fit(x, y).score(x, y)), 6)]}


def main() -> None:
    """Measures the works, and fails where one is slower than promised or scores differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    parser.add_argument("--backend", choices=("jax", "tensorflow", "torch"), default="jax")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--trials", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(scored(given.works[0], given.side, given.trials)))
        return
    facts = machine.facts()
    print(json.dumps(facts))
    missed, rows = [], {}
    for work in given.works:
        n, floor = WORKS[work]
        n = 2 if given.quick else n
        how = {"python": given.python, "backend": given.backend}
        sides = {side: run(__file__, work, side, n, **how) for side in SIDES}
        ratio = sides["original"]["seconds"] / sides["paceline"]["seconds"]
        pairs = zip(sides["paceline"]["scores"], sides["original"]["scores"], strict=True)
        apart = max(abs(one - there) for one, there in pairs)
        rows[work] = {**sides, "n_trials": n, "times": round(ratio, 1), "apart": round(apart, 4)}
        print(json.dumps({"work": work, **rows[work]}), flush=True)
        # Rounding may turn one of a fold's 360 predictions.
        differs = apart > 0.005 and given.backend == "jax"
        if differs or (ratio < floor and not given.quick):
            missed.append(work)
    if given.keep:
        name = "any_fits_sklearn" + ("" if given.backend == "jax" else f"_{given.backend}")
        machine.keep(name, {"machine": facts, "works": rows})
    if missed:
        sys.exit(f"slower than promised, or other scores: {', '.join(missed)}")


if __name__ == "__main__":
    main()
