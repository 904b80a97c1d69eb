"""What a step costs: slots x compiler level for small models on this device.

For each model, number of slots and optimisation level of XLA's CPU compiler: seconds of processor
time to compile the loop over the full batches, and milliseconds of one epoch (minimum of the runs,
the least disturbed one; the median beside it). Quoted in docs/decisions/0003.

    python benchmarks/step_cost.py [--models dense gru ...] [--slots 1 8 16] [--levels 3 1]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras
import machine
import numpy as np
from keras import layers

from paceline.builder import Builder
from paceline.data import prepare
from paceline.plan import base, stacked
from paceline.program import trace
from paceline.program.group import Role
from paceline.search_space import HyperParameters

N = 640
RUNS = 9
RNG = np.random.default_rng(0)


def classifier(hp: Any, *body: Any) -> keras.Model:
    """The layers, a softmax over ten classes, Adam."""
    model = keras.Sequential([*body, layers.Dense(10, activation="softmax")])
    lr = hp.Float("lr", 1e-4, 1e-2, sampling="log")
    model.compile(
        keras.optimizers.Adam(lr), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def rate(hp: Any) -> float:
    """The dropout rate."""
    return hp.Float("dropout", 0.1, 0.5)


def digits(hp: Any) -> keras.Model:
    """Two hidden layers on 64 numbers."""
    hidden = [[layers.Dense(64, "relu"), layers.Dropout(rate(hp))] for _ in range(2)]
    return classifier(hp, keras.Input((64,)), *hidden[0], *hidden[1])


def mnist(hp: Any) -> keras.Model:
    """784-128-10."""
    return classifier(hp, keras.Input((784,)), layers.Dense(128, "relu"), layers.Dropout(rate(hp)))


def gru(hp: Any) -> keras.Model:
    """A GRU over 40 characters."""
    body = (layers.Embedding(60, 16), layers.GRU(32, dropout=rate(hp)))
    return classifier(hp, keras.Input((40,)), *body)


def attention(hp: Any) -> keras.Model:
    """One attention block over 20 positions."""
    inputs = keras.Input((20, 16))
    x = layers.MultiHeadAttention(2, 8, dropout=rate(hp))(inputs, inputs)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x + inputs))
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    lr = hp.Float("lr", 1e-4, 1e-2, sampling="log")
    model.compile(
        keras.optimizers.Adam(lr), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


#: name -> (build, inputs, batch size)
MODELS = {
    "digits": (digits, RNG.random((N, 64), np.float32), 32),
    "mnist": (mnist, RNG.random((N, 784), np.float32), 128),
    "gru": (gru, RNG.integers(0, 60, (N, 40)), 32),
    "attention": (attention, RNG.random((N, 20, 16), np.float32), 32),
}


def role_of(name: str) -> tuple[Role, Any, Any, int]:
    """The train step of two trials that differ in dropout, the state of one, the data, B."""
    build, x, batch_size = MODELS[name]
    data = prepare(x, RNG.integers(0, 10, N))
    shapes = data.batch_shapes(batch_size)
    steps, state = [], None
    for dropout in (0.1, 0.2):
        model = Builder(build)(HyperParameters(values={"dropout": dropout, "lr": 1e-3}), 1)
        state = trace.build_state(model, shapes)
        steps.append(trace.trace_train(model, state, shapes))
    role = Role(steps[0], None)
    role.admit(steps[1].canonical.constants)
    role.settle(2)
    return role, state, data, batch_size


def measure(name: str, slots: int, level: str) -> dict[str, Any]:
    """Compiles one cell and runs its epoch a few times."""
    role, state, data, batch_size = role_of(name)
    shapes = (
        *base.shapes(state, slots),
        base.lifted_shapes(role, slots),
        base.data_shapes(data),
        base.index_shape(slots, N),
        base.index_shape(),
    )
    batch = base.batches(role, N, batch_size)[0]
    lowered = jax.jit(stacked._full_batches(batch, len(role.full.log_names))).lower(*shapes)
    options = None
    if jax.default_backend() == "cpu":
        options = {"xla_backend_optimization_level": level}
    began = time.process_time()
    call = lowered.compile(compiler_options=options)
    compile_seconds = time.process_time() - began
    many = [[jnp.asarray(np.stack([np.asarray(a)] * slots)) for a in p] for p in state.lists()]
    lifted = [np.stack([role.full.canonical.constants[i].value] * slots) for i in role.lifted]
    order = np.stack([RNG.permutation(N) for _ in range(slots)]).astype(np.int32)
    steps, on_device, seconds = np.int32(N // batch_size), data.on_device(), []
    for _ in range(RUNS):
        began = time.perf_counter()
        jax.block_until_ready(call(*many, lifted, on_device, order, steps))
        seconds.append(time.perf_counter() - began)
    return {
        "model": name,
        "slots": slots,
        "level": level,
        "compile_cpu_seconds": compile_seconds,
        "epoch_ms": 1e3 * min(seconds),
        "epoch_ms_median": 1e3 * statistics.median(seconds),
        "ms_per_trial": 1e3 * min(seconds) / slots,
    }


def main() -> None:
    """Prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--slots", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--levels", nargs="+", default=["3", "1"])
    arguments = parser.parse_args()
    facts = machine.facts()
    print(facts)
    print("model       slots  level  compile cpu s  epoch ms (median)  ms per trial")
    rows = []
    for name in arguments.models:
        for slots in arguments.slots:
            for level in arguments.levels:
                row = measure(name, slots, level)
                rows.append(row)
                print(
                    f"{name:10s}  {slots:5d}  {level:>5s}  {row['compile_cpu_seconds']:13.2f}"
                    f"  {row['epoch_ms']:8.1f} ({row['epoch_ms_median']:6.1f})"
                    f"  {row['ms_per_trial']:12.2f}",
                    flush=True,
                )
    path = Path(__file__).parent / "results" / "step_cost.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n")
    print(f"written: {path.relative_to(machine.ROOT)}")


if __name__ == "__main__":
    main()
