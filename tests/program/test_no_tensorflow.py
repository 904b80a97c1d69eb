"""Where TensorFlow is installed, a search on JAX does not wait for Keras to import it."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import pytest

import paceline
import toys
from paceline.program import keras_private


@pytest.fixture(autouse=True)
def installed(fresh_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A TensorFlow that cannot be imported without being noticed."""
    if keras.backend.backend() != "jax" or "tensorflow" in sys.modules:
        pytest.skip("Keras has imported TensorFlow")
    from keras.src.utils import module_utils

    folder = fresh_folder / "installed"
    folder.mkdir()
    (folder / "tensorflow.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(module_utils.tensorflow, "_available", None)


def test_keras_imports_it_outside_of_the_block_only() -> None:
    with keras_private.no_tensorflow(), keras_private.no_tensorflow():
        keras.utils.set_random_seed(1)
    with pytest.raises(RuntimeError, match="imported"):
        keras.utils.set_random_seed(1)


def test_a_search_that_saves_its_best_model() -> None:
    tuner = paceline.Tuner(toys.dense, "val_accuracy", study="s", sampler="random")
    tuner.search(*toys.data(), **toys.CALL | {"epochs": 2}, n_trials=2)
    assert tuner.results()["state"].tolist() == ["complete"] * 2
    assert list(Path("runs/s").rglob("*.keras"))


def test_a_loop_of_fits() -> None:
    def train(seed: int) -> float:
        model = keras.Sequential([keras.Input((toys.FEATURES,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model.fit(*toys.data(), epochs=1, verbose=0).history["loss"][-1]

    assert len(list(paceline.map(train, range(2)))) == 2
