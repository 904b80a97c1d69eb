"""Several objectives on the backend that Keras runs on here (`make test-backends`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

import paceline
import toys
from paceline.errors import ObjectiveError, UsageError

BACKEND = keras.backend.backend()
# On JAX tests/tuner/test_objectives.py has their like.
pytestmark = [pytest.mark.slow] if BACKEND == "jax" else []
X, Y = toys.data()
XV, YV = toys.data(23, seed=1)
CALL: dict[str, Any] = {"validation_data": (XV, YV), "epochs": 3, "batch_size": 16}


def build(hp: Any) -> keras.Model:
    units = hp.Int("units", 2, 16)
    layers = [
        keras.Input((toys.FEATURES,)),
        keras.layers.Dense(units, activation="relu"),
        keras.layers.Dense(toys.CLASSES, activation="softmax"),
    ]
    return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-1, sampling="log"))


def searched(objective: list[str], sampler: str = "random", **options: Any) -> paceline.Tuner:
    tuner = paceline.Tuner(
        build,
        objective=objective,
        study="s",
        executor="fit",
        sampler=sampler,
        on_note=lambda text: None,
        **options,
    )
    tuner.search(X, Y, **CALL, n_trials=6)
    return tuner


def test_a_front_of_a_metric_and_what_a_model_costs(fresh_folder) -> None:
    tuner = searched(["val_accuracy", "params", "bytes", "latency"])
    trials = [tuner.trial(number) for number in range(6)]
    for trial in trials:
        history = tuner.history(trial.number)["val_accuracy"]
        units = trial.hparams["units"]
        n_weights = toys.FEATURES * units + units + units * toys.CLASSES + toys.CLASSES
        assert trial.values[:3] == [max(history), n_weights, 4 * n_weights]
        assert trial.values[3] == trial.costs["latency"] > 0
        assert trial.costs["latency_batch"] > 0 and trial.costs["latency_device"]
    losses = [[-trial.values[0], *trial.values[1:]] for trial in trials]
    dominated = [
        any(all(a <= b for a, b in zip(x, y, strict=True)) and x != y for x in losses)
        for y in losses
    ]
    front = {trial.number for trial in tuner.pareto()}
    assert front == {t.number for t, out in zip(trials, dominated, strict=True) if not out}
    for trial in tuner.pareto():
        model = tuner.best_model(number=trial.number)
        value = model.evaluate(XV, YV, verbose=0, return_dict=True)["accuracy"]
        assert value == pytest.approx(trial.values[0], abs=1e-5)


def test_a_genetic_sampler_and_a_pruner(fresh_folder) -> None:
    tuner = searched(["val_loss", "params"], "nsga2:3", pruner="threshold:1.0")
    states = set(tuner.results()["state"])
    assert states <= {"complete", "pruned"} and "complete" in states
    assert all(len(trial.values) == 2 for trial in tuner.pareto())


@pytest.mark.skipif(BACKEND == "jax", reason="JAX counts them")
def test_operations_are_counted_by_jax_alone_and_nothing_is_trained(fresh_folder) -> None:
    with pytest.raises(ObjectiveError, match=f'"flops" .* Keras runs on {BACKEND}. Set'):
        searched(["val_accuracy", "flops"])
    assert not any(Path("runs").rglob("journal.log"))


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has packs")
def test_a_population_is_refused_and_nothing_is_trained(fresh_folder) -> None:
    tuner = paceline.Tuner(build, study="s", sampler="random", pruner="pbt:2")
    with pytest.raises(UsageError, match=f"Keras' own fit: Keras runs on {BACKEND}"):
        tuner.search(X, Y, **{**CALL, "epochs": 5}, n_trials=4)
    assert not any(Path("runs").rglob("journal.log"))
