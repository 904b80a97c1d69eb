"""Losses, metrics and layers with TensorFlow's functions: packs on JAX are TensorFlow's ``fit``.

`make test-sessions` runs this where TensorFlow is installed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sessions.test_sessions import run

SCRIPT = """
import json
import numpy as np
import tensorflow as tf
from tensorflow.keras import backend as K

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 6)).astype("float32")
LABELS = np.arange(60) % 3
Y = np.eye(3, dtype="float32")[LABELS]
OF_CLASSES = tf.constant([1.0, 2.0, 0.5])


def focal(y, p):
    p = tf.clip_by_value(p, K.epsilon(), 1.0 - K.epsilon())
    each = -y * tf.math.log(p) * tf.pow(1.0 - p, 2.0) * OF_CLASSES
    return tf.reduce_sum(each, axis=-1)


@tf.function
def dice(y, p):
    y, p = K.flatten(y), K.flatten(p)
    return 1 - (2.0 * K.sum(y * p) + 1) / (K.sum(y) + K.sum(p) + 1)


def f1(y, p):
    hits = K.sum(K.round(K.clip(y * p, 0, 1)))
    recall = hits / (K.sum(K.round(K.clip(y, 0, 1))) + K.epsilon())
    precision = hits / (K.sum(K.round(K.clip(p, 0, 1))) + K.epsilon())
    return 2 * precision * recall / (precision + recall + K.epsilon())


class Attention(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4), name="kernel")

    def call(self, x):
        scores = tf.nn.softmax(tf.matmul(x, self.kernel), axis=-1)
        size = tf.cast(tf.shape(x)[0] // tf.shape(x)[0] * tf.shape(x)[1], x.dtype)
        return tf.concat([x, tf.nn.relu(scores - 0.2) * size], axis=-1)


class Hits(keras.metrics.Metric):
    def __init__(self, name="hits", **more):
        super().__init__(name=name, **more)
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y, p, sample_weight=None):
        same = tf.cast(tf.equal(tf.argmax(y, -1), tf.argmax(p, -1)), tf.float32)
        if sample_weight is not None:
            same = tf.multiply(same, tf.cast(sample_weight, tf.float32))
        self.total.assign_add(tf.reduce_sum(same))

    def result(self):
        return self.total / 60.0


def built(hp, *layers, loss="categorical_crossentropy", **more):
    middle = [*layers, keras.layers.Dense(5, activation=tf.nn.leaky_relu)]
    last = keras.layers.Dense(3, activation="softmax")
    model = keras.Sequential([keras.Input((6,)), *middle, last])
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=w.shape, scale=0.5) for w in model.get_weights()]
    model.set_weights([w.astype("float32") for w in weights])
    model.compile(keras.optimizers.SGD(hp.Float("lr", 1e-2, 1e-1)), loss, **more)
    return model


def losses(hp):
    return built(hp, loss=focal, metrics=[f1, dice], weighted_metrics=[Hits()])


def layer(hp):
    return built(hp, Attention())


def draws(hp):
    return built(hp, keras.layers.Lambda(lambda x: x + 0.1 * tf.random.normal([20, 6])))


def buckets(y, p):
    return tf.cast(tf.math.floormod(tf.argmax(p, -1) * 1_000_003 * 4099, 1000), tf.float32)


def hashes(hp):
    return built(hp, metrics=[buckets])


def search(build, study, **more):
    notes = []
    tuner = paceline.Tuner(build, "val_loss", study, sampler="random", seed=1,
                           on_note=notes.append, **more)
    weight = np.linspace(0.5, 1.5, 60).astype("float32")
    tuner.search(X, Y, sample_weight=weight, validation_data=(X, Y), epochs=2, batch_size=20,
                 n_trials=3, shuffle=False)
    return [tuner.history(n) for n in range(3)], tuner.results()["plan"].tolist(), notes


found = {}
for build in (losses, layer, draws, hashes):
    name = build.__name__
    found[name] = search(build, name), search(build, "alone " + name, executor="fit")
found["short"] = search(layer, "short", precision="bfloat16")
print("FOUND" + json.dumps(found))
"""


@pytest.mark.parametrize("session", ["tensorflow.keras"])
def test_packs_are_fit_on_tensorflow(session: str, fresh_folder: Path) -> None:
    pytest.importorskip("tensorflow", reason="these are TensorFlow's functions")
    on_tensorflow = session == "tensorflow.keras"
    script = SCRIPT if on_tensorflow else SCRIPT.replace("layer, draws, hashes)", "layer)")
    found = run(session, script, fresh_folder)
    for name in ("losses", "layer"):
        (histories, plans, _), (alone, plans_alone, _) = found[name]
        assert "fit" not in plans and set(plans_alone) == {"fit"}, name
        for one, other in zip(histories, alone, strict=True):
            assert one.keys() == other.keys()
            for log in one:
                np.testing.assert_allclose(one[log], other[log], rtol=1e-5, atol=1e-5)
    histories, plans, _ = found["short"]
    assert "fit" not in plans and np.isfinite([each["loss"] for each in histories]).all()
    if on_tensorflow:
        (_, plans, notes), _ = found["draws"]
        assert set(plans) == {"fit"}
        assert any("tf.random.normal" in note and "runs once" in note for note in notes), notes
        (_, plans, notes), _ = found["hashes"]
        assert set(plans) == {"fit"}
        assert any("cast them to tf.int32" in note for note in notes), notes
