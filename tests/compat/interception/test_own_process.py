"""Fits of a session whose Keras does not run on JAX; NumPy's backend stands for all others.

Keras cannot train on NumPy, so whatever is trained was trained in the session's process.
``tests/sessions`` has TensorFlow and PyTorch.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.compat.interception.fit_server import FitServer
from paceline.data.arrays import prepare
from paceline.executor.base import PackOptions, SearchData
from paceline.executor.training import memory
from session_scripts import run_script

CODE = """
import signal, subprocess


def network(i):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
    weights = np.random.default_rng(i)
    model.set_weights([weights.normal(size=part.shape) for part in model.get_weights()])
    model.compile(keras.optimizers.Adam(0.01 * (i + 1)), "sparse_categorical_crossentropy")
    return model


class Norms(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.norms = []

    def on_epoch_end(self, epoch, logs=None):
        self.norms.append(float(np.linalg.norm(self.model.get_weights()[0])))
        if epoch == 0:
            self.model.layers[0].bias.assign([0.0, 0.0, 0.0])
            self.model.optimizer.learning_rate = 0.5


def train(i):
    model, norms = network(i), Norms()
    told = {"callbacks": [norms] * (i % 2), "verbose": 0}
    history = model.fit(X[:40], Y[:40], epochs=3, batch_size=16, **told)
    return history.history["loss"], norms.norms, np.asarray(model.predict(X, verbose=0)).tolist()


class Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        os.kill(os.getpid(), signal.SIGINT)


def interrupted(i):
    network(i).fit(X, Y, epochs=99, callbacks=[Interrupt()], verbose=0)


def children():
    status = [open(f"/proc/{each}/status").read() for each in os.listdir("/proc") if each.isdigit()]
    return sum(f"PPid:\\t{os.getpid()}\\n" in text for text in status)


notes = []
first = list(paceline.map(train, range(4), seeds=1, notes=notes.append, progress=False))
n = [children()]
try:
    list(paceline.map(interrupted, range(2), notes=notes.append, progress=False))
    n.append("not interrupted")
except KeyboardInterrupt:
    n.append(children())
second = list(paceline.map(train, range(4), seeds=1, notes=notes.append, progress=False))
n.append(children())
print("FOUND" + json.dumps({"first": first, "second": second, "notes": notes, "children": n}))
"""


@pytest.mark.slow
def test_functions_return_what_they_return_in_a_session_on_jax() -> None:
    there, here = run_script(CODE, "numpy"), run_script(CODE, "jax")
    assert there["children"] == [1, 0, 1]  # kept for the next call; ended by Ctrl-C
    assert here["children"] == [0, 0, 0]
    assert there["first"] == there["second"] and there["notes"] == here["notes"] == []
    for (losses, norms, outputs), (its_losses, its_norms, its_outputs) in zip(
        there["first"], here["first"], strict=True
    ):
        assert losses == its_losses and len(losses) == 3
        np.testing.assert_allclose(norms, its_norms, rtol=1e-6)
        np.testing.assert_allclose(outputs, its_outputs, atol=1e-5)


def test_data_without_memory_refuse_their_own_fits_alone(monkeypatch):
    """Else no fit of the session would train in the process any more."""
    told = []
    link = SimpleNamespace(tell=lambda *message: told.append(message))
    server = FitServer(link, PackOptions())
    both = [prepare(np.ones((60, 4), "float32"), np.ones(60, "int32")) for _ in range(2)]
    monkeypatch.setenv(memory.LIMIT, "1000")
    server.open(1, SearchData(*both))
    server.submit(SimpleNamespace(executor=1, number=7))
    name, executor, facts, number, why = told[0]
    assert (name, executor, facts.busy, number) == ("submitted", 1, False, 7)
    assert why.startswith("validation_data:") and "do not fit" in why
    server.close(1)
    monkeypatch.delenv(memory.LIMIT)
    server.open(2, SearchData(*both))
    server.close_all()
    assert len(told) == 1
