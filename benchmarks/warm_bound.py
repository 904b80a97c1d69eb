"""What no tool can be below: the trials of a structural work, trained by hand-written JAX alone.

Each trial is a program of its own, written for its layers: products, Adam, dropout, one loop over
the batches of an epoch. Nothing else is timed: programs are compiled before, no model is built or
traced, and nothing is searched, stored or kept. So a tool that trains these trials on this machine
takes at least about that long with all its caches filled, and where KerasTuner's warm time divided
by it is below a floor, no caching reaches that floor. Trials are trained one after another, whose
products use all cores, and two at a time; the faster way counts.

    python benchmarks/warm_bound.py [--works intro layers] [--beside benchmarks/results/FILE.json]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import machine
import numpy as np
from jax import lax
from works import WORKS, Work

RUNS = 3
FAST = {"xla_backend_optimization_level": 3}


class Trial:
    """One trial of a work as a hand-written program.

    Args:
        work: The work.
        values: The trial's hyperparameters.
        data: Training and validation data on the device.
        seed: Of weights, orders and dropout.
    """

    def __init__(self, work: Work, values: dict[str, Any], data: Any, seed: int) -> None:
        self._work, self._values, self._data, self._seed = work, values, data, seed
        n_layers = values.get("layers", 1)
        widths = [784, *(values[f"units_{i}"] for i in range(n_layers)), 10]
        rng = np.random.default_rng(seed)
        self._start = [
            (
                rng.normal(0, np.sqrt(2 / (a + b)), (a, b)).astype(np.float32),
                np.zeros(b, np.float32),
            )
            for a, b in zip(widths, widths[1:], strict=False)
        ]
        zeros = jax.tree.map(np.zeros_like, self._start)
        self._state = (self._start, zeros, zeros, np.float32(0))
        x = data[0][0]
        self._n, self._rest = divmod(x.shape[0], work.batch_size)
        orders = np.zeros(x.shape[0], np.int32)
        key = jax.random.key(0)
        self._epoch = jax.jit(self._train, donate_argnums=0).lower(self._state, orders, key)
        self._epoch = self._epoch.compile(compiler_options=FAST)
        self._check = jax.jit(self._correct).lower(self._start).compile(compiler_options=FAST)

    def run(self) -> float:
        """Train all epochs, each with its validation; return the last accuracy."""
        state, rng = self._state, np.random.default_rng(self._seed)
        accuracy = 0.0
        for epoch in range(self._work.epochs):
            order = rng.permutation(self._data[0][0].shape[0]).astype(np.int32)
            key = jax.random.fold_in(jax.random.key(self._seed), epoch)
            state = self._epoch(jax.tree.map(jnp.asarray, state), order, key)
            accuracy = float(self._check(state[0]))
        return accuracy

    def _logits(self, weights: Any, x: Any, key: Any = None) -> Any:
        act = {"relu": jax.nn.relu, "tanh": jnp.tanh}[self._values["activation"]]
        for kernel, bias in weights[:-1]:
            x = act(x @ kernel + bias)
        if key is not None and self._values["dropout"]:
            x = jnp.where(jax.random.bernoulli(key, 0.75, x.shape), x / 0.75, 0)
        return x @ weights[-1][0] + weights[-1][1]

    def _correct(self, weights: Any) -> Any:
        x, y = self._data[1]
        return (self._logits(weights, x).argmax(-1) == y).mean()

    def _train(self, state: Any, order: Any, key: Any) -> Any:
        size = self._work.batch_size

        def step(number: Any, state: Any, size: int = size) -> Any:
            weights, first, second, t = state
            rows = lax.dynamic_slice(order, (number * self._work.batch_size,), (size,))
            x, y = self._data[0][0][rows], self._data[0][1][rows]

            def loss(weights: Any) -> Any:
                logits = self._logits(weights, x, jax.random.fold_in(key, number))
                return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

            grads, t = jax.grad(loss)(weights), t + 1
            first = jax.tree.map(lambda m, g: m + 0.1 * (g - m), first, grads)
            second = jax.tree.map(lambda v, g: v + 0.001 * (g * g - v), second, grads)
            rate = self._values["lr"] * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            weights = jax.tree.map(
                lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-7), weights, first, second
            )
            return weights, first, second, t

        state = lax.fori_loop(0, self._n, step, state)
        return step(self._n, state, self._rest) if self._rest else state


def one_by_one(trials: list[Trial]) -> list[float]:
    """Train trials one after another; return their accuracies."""
    return [trial.run() for trial in trials]


def two_at_a_time(trials: list[Trial]) -> list[float]:
    """Train trials in two threads; return their accuracies."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(Trial.run, trials))


def measure(work: Work) -> dict[str, Any]:
    """Return the seconds of both ways, the least of some runs, and the best accuracy."""
    assert work.given is not None
    data = jax.tree.map(jnp.asarray, work.data())
    began = time.perf_counter()
    trials = [Trial(work, values, data, seed) for seed, values in enumerate(work.given())]
    found: dict[str, Any] = {"compile": time.perf_counter() - began, "trials": len(trials)}
    ways: list[Callable[[list[Trial]], list[float]]] = [one_by_one, two_at_a_time]
    for way in ways:
        seconds = []
        for _ in range(RUNS):
            began = time.perf_counter()
            best = max(way(trials))
            seconds.append(time.perf_counter() - began)
        found[way.__name__] = min(seconds)
        # A bound that trains nothing would be none.
        assert best > 0.85, f"{work.name}: the best accuracy is {best}"
        found["best"] = best
    found["bound"] = min(found[way.__name__] for way in ways)
    return found


def main() -> None:
    """Print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--works", nargs="+", default=["intro", "layers"])
    parser.add_argument("--beside", type=Path, help="results of search_speed.py on this machine")
    arguments = parser.parse_args()
    beside = json.loads(arguments.beside.read_text())["works"] if arguments.beside else {}
    facts = machine.facts()
    print(facts)
    rows = {}
    for name in arguments.works:
        rows[name] = row = measure(WORKS[name])
        print(
            f"{name}: {row['trials']} trials in {row['one_by_one']:.1f} s one by one and "
            f"{row['two_at_a_time']:.1f} s two at a time (best {row['best']:.3f}); compiled before "
            f"in {row['compile']:.1f} s"
        )
        if name in beside:
            warm = {side: s["warm"] for side, s in beside[name]["seconds"].items()}
            row |= {"warm": warm, "most": warm["keras_tuner"] / row["bound"]}
            print(
                f"  warm: Paceline {warm['paceline']:.1f} s, KerasTuner "
                f"{warm['keras_tuner']:.1f} s: at most {row['most']:.1f} times "
                "as fast, if all but training were free"
            )
    machine.keep("warm_bound", {"machine": facts, "works": rows})


if __name__ == "__main__":
    main()
