"""A notebook whose kernel has trained a TensorFlow model: its search trains in packs, on JAX."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import notebooks

FIRST = f"""
import sys
sys.path.insert(0, {str(notebooks.SOURCE)!r})
import numpy as np
from tensorflow import keras

Y = np.arange(60) % 3
X = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
before = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
before.compile("sgd", "sparse_categorical_crossentropy")
before.fit(X, Y, verbose=0)
"""
SEARCH = """
import paceline
from IPython.display import HTML, display


class Draws(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        display(HTML(f"epoch {epoch}"))
        seen.append(epoch)


def build(hp):
    hidden = keras.layers.Dense(hp.Int("units", 4, 8, step=4), activation="relu")
    model = keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(3, "softmax")])
    sgd = keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1))
    model.compile(sgd, "sparse_categorical_crossentropy")
    return model


seen = []
tuner = paceline.Tuner(build, "val_loss", "book", sampler="random", seed=1)
tuner.search(X, Y, validation_data=(X, Y), epochs=2, n_trials=3, callbacks=[Draws()])
"""
FOUND = """
import json
best = tuner.best_model().evaluate(X, Y, verbose=0)
print(json.dumps([tuner.results()["plan"].tolist(), len(seen), best, tuner.best_trial.value]))
print(json.dumps([keras.backend.backend(), bool(np.isfinite(before.predict(X, verbose=0)).all())]))
"""


def test_a_search_packs_after_a_tensorflow_model_was_trained(
    fresh_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorflow")
    monkeypatch.setenv("KERAS_HOME", "none")  # without a keras.json
    for name in ("KERAS_BACKEND", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    book = notebooks.run(FIRST, SEARCH, FOUND, folder=fresh_folder)
    first, search, found = book.cells
    assert not [each for cell in book.cells for each in notebooks.outputs(cell, "error")]
    assert not notebooks.outputs(first, "display_data")
    shown = [each.data.get("text/html", "") for each in notebooks.outputs(search, "display_data")]
    assert sum(text.startswith("epoch ") for text in shown) == 6
    assert any("3 of 3 trials" in text or "book" in text for text in shown)  # the table
    text = "".join(each.text for each in notebooks.outputs(found, "stream"))
    (plans, n_seen, best, value), (backend, finite) = map(json.loads, text.splitlines()[-2:])
    assert len(plans) == 3 and "fit" not in plans and n_seen == 6
    assert best == pytest.approx(value, abs=1e-5)  # each backend evaluates the same weights
    assert backend == "tensorflow" and finite
