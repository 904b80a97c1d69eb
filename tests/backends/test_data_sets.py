"""Data sets of TensorFlow, PyTorch and Grain in packs, against Keras' own ``fit`` on the same.

Each part needs its library beside JAX and is skipped without it; `make test` has none of them.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
import toys
from streams import BATCH, XV, YV, X, Y, alone, same, search

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="packs need JAX")

LIBRARIES = ("tensorflow", "torch", "grain")


def library(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed beside JAX")


def tensorflow_set(x: Any = X, y: Any = Y, *, shuffled: bool = False) -> Any:
    data = library("tensorflow").data.Dataset.from_tensor_slices((x, y))
    # With a seed and without reshuffling, so that whoever reads it finds the same.
    data = data.shuffle(len(x), seed=3, reshuffle_each_iteration=False) if shuffled else data
    return data.batch(BATCH)


def torch_set(x: Any = X, y: Any = Y) -> Any:
    torch = library("torch")
    tensors = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return torch.utils.data.DataLoader(tensors, batch_size=BATCH)


def grain_set(x: Any = X, y: Any = Y) -> Any:
    grain = library("grain")
    return grain.MapDataset.source(list(zip(x, y, strict=True))).batch(BATCH)


def grain_iterable(x: Any = X, y: Any = Y) -> Any:
    return grain_set(x, y).to_iter_dataset()


@pytest.mark.parametrize("make", [tensorflow_set, torch_set, grain_set, grain_iterable])
def test_a_data_set_of_another_library(make):
    tuner = search(make(), validation_data=make(XV, YV))
    call = {"epochs": 2, "shuffle": False}
    for number in (0, 3):
        history = alone(
            tuner.trial(number), toys.dense, make(), validation_data=make(XV, YV), **call
        )
        same(tuner, number, history)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # of Keras, at each end of Grain's
@pytest.mark.parametrize("executor", ["packed", "fit"])
@pytest.mark.parametrize("make", [tensorflow_set, torch_set, grain_set])
def test_targets_beyond_32_bits_count_as_floats_do(make, executor):
    def build(hp: Any) -> Any:
        model = keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(hp.Float("lr", 1e-8, 1e-7)), "mae")
        return model

    found = []
    for dtype in ("int64", "float32"):
        settings: Any = {"on_note": len, "objective": "min:loss", "executor": executor}
        tuner = paceline.Tuner(build, study=dtype, **settings)
        tuner.search(make(X, (Y + 3_000_000_000).astype(dtype)), epochs=2, n_trials=1)
        found.append(tuner.trial(0).history["loss"])
    assert found[0] == found[1]
    assert found[0][0] > 2.9e9


def test_tf_data_that_shuffles_once_and_weighs_classes():
    data, weights = tensorflow_set(shuffled=True), {0: 2.0, 2: 0.5}
    tuner = search(data, class_weight=weights)
    call = {"epochs": 2, "shuffle": False, "class_weight": weights}
    # The same data set: TensorFlow takes part of its seed from when it was made.
    history = alone(tuner.trial(2), toys.dense, data, **call)
    same(tuner, 2, history)


@pytest.mark.parametrize("late", [False, True])  # repeat before batch, or after
def test_tf_data_without_end(late):
    tf = library("tensorflow")

    def make() -> Any:
        data = tf.data.Dataset.from_tensor_slices((X, Y))
        return data.batch(BATCH).repeat() if late else data.repeat().batch(BATCH, True)

    tuner = search(make(), steps_per_epoch=3, epochs=3)
    call = {"epochs": 3, "shuffle": False, "steps_per_epoch": 3}
    for number in (0, 3):  # the last begins when the others have ended
        same(tuner, number, alone(tuner.trial(number), toys.dense, make(), **call))
    with pytest.raises(paceline.UsageError, match="steps_per_epoch is missing"):
        search(make(), "other")


def test_tf_records(fresh_folder):
    tf = library("tensorflow")
    feature = tf.train.Feature
    with tf.io.TFRecordWriter("train.tfrecord") as file:
        for x, y in zip(X, Y, strict=True):
            features = {
                "x": feature(float_list=tf.train.FloatList(value=x)),
                "y": feature(int64_list=tf.train.Int64List(value=[y])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            file.write(example.SerializeToString())

    def parsed(record: Any) -> Any:
        form = {
            "x": tf.io.FixedLenFeature([toys.FEATURES], tf.float32),
            "y": tf.io.FixedLenFeature([], tf.int64),
        }
        found = tf.io.parse_single_example(record, form)
        return found["x"], found["y"]

    data = tf.data.TFRecordDataset("train.tfrecord").map(parsed).batch(BATCH)
    assert int(data.cardinality()) == -2  # its length shows only when it is read
    tuner = search(data)
    same(tuner, 1, alone(tuner.trial(1), toys.dense, data, epochs=2, shuffle=False))


def test_tf_data_of_images_as_bytes_and_dicts():
    tf = library("tensorflow")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (24, 4, 4), dtype="uint8")
    inputs = {"image": images, "extra": rng.random((24, 2)).astype("float32")}
    targets = {"kind": rng.integers(0, 3, 24), "size": rng.random((24, 1)).astype("float32")}
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(8)

    def build(hp: Any) -> Any:
        image = keras.Input((4, 4), dtype="uint8", name="image")
        extra = keras.Input((2,), name="extra")
        flat = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(image))
        joined = keras.layers.Concatenate()([flat, extra])
        outputs = {
            "kind": keras.layers.Dense(3, activation="softmax", name="kind")(joined),
            "size": keras.layers.Dense(1, name="size")(joined),
        }
        model = keras.Model([image, extra], outputs)
        rate = hp.Float("lr", 1e-3, 1e-1, sampling="log")
        losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
        model.compile(keras.optimizers.SGD(rate), losses)
        return model

    tuner = search(data, build=build)
    same(tuner, 3, alone(tuner.trial(3), build, data, epochs=2, shuffle=False))


@pytest.mark.parametrize("executor", ["auto", "fit"])
def test_text_of_tf_data_is_refused_before_the_search(executor):
    tf = library("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((["a", "b"] * 8, [0, 1] * 8)).batch(4)
    with pytest.raises(paceline.DataError, match="must hold numbers, got text"):
        search(data, executor=executor)


@pytest.mark.skipif(
    not any(map(importlib.util.find_spec, LIBRARIES)), reason="none of them is there to import"
)
def test_none_of_them_is_imported_for_other_data(child_environment):
    code = (
        # Keras imports some of them by itself, where they are installed.
        "import sys, keras, streams, toys\n"
        "keras.utils.set_random_seed(0)\n"
        "toys.softmax().fit(streams.X, streams.Y, verbose=0)\n"
        "before = set(sys.modules)\n"
        "streams.search(streams.Batches(), epochs=1, n_trials=1)\n"
        f"assert not (set(sys.modules) - before) & set({LIBRARIES!r}), 'imported'\n"
    )
    folders = [str(Path(__file__).resolve().parents[1]), *sys.path]
    environment = {**child_environment, "PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
