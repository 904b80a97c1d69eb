"""The examples build what they say; `make demo` runs the first of them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from paceline import user_file
from paceline.search_space import HyperParameters

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield lambda name: user_file.load(EXAMPLES / f"{name}.py")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(EXAMPLES)):
            del sys.modules[name]


def widths(model) -> list[int]:
    """Sizes of the dense layers, the input first."""
    import keras

    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    return [int(np.prod(dense[0].input.shape[1:])), *(layer.units for layer in dense)]


def test_digits_is_a_dense_network_with_its_own_data(example):
    file = example("digits")
    hp = HyperParameters()
    model = file.build(hp)
    assert widths(model) == [64, 64, 10]
    assert list(hp.hparams) == ["dropout", "lr", "weight_decay"]
    (x, y), (x_val, y_val) = file.data()
    assert (len(x), len(y), len(x_val), len(y_val)) == (1437, 1437, 360, 360)
    assert model.predict_on_batch(x[:4]).shape == (4, 10)


def test_mnist_dense_takes_images_as_they_are(example):
    hp = HyperParameters()
    model = example("mnist_dense").build(hp)
    assert widths(model) == [784, 128, 10]
    assert list(hp.hparams) == ["dropout", "lr"]
    image = np.full((1, 28, 28), 255, np.uint8)
    scaled = model.layers[0](image)
    assert float(np.max(scaled)) == pytest.approx(1)


def test_fashion_mnist_is_the_network_and_the_grid_of_the_design(example):
    import keras

    given = {"activation": "elu", "conv_dropout": 0.4, "dense1_neuron": 512}
    hp = HyperParameters(values=given, chooser=lambda parameter: parameter.default)
    model = example("fashion_mnist_cnn").build(hp)
    assert hp.hparams == given
    assert {p.name: p.values() for p in hp.parameters.values()} == {
        "activation": ["relu", "elu"],
        "conv_dropout": [0.25, 0.4],
        "dense1_neuron": [256, 512],
    }
    convolutions = [x for x in model.layers if isinstance(x, keras.layers.Conv2D)]
    assert [(x.filters, x.kernel_size) for x in convolutions] == [
        (64, (5, 5)),
        (128, (5, 5)),
        (256, (5, 5)),
    ]
    assert {x.activation.__name__ for x in convolutions} == {"elu"}
    assert [x.rate for x in model.layers if isinstance(x, keras.layers.Dropout)] == [0.4] * 3
    for kind in (keras.layers.BatchNormalization, keras.layers.MaxPooling2D):
        assert sum(isinstance(x, kind) for x in model.layers) == 3
    assert widths(model) == [3 * 3 * 256, 512, 10]


def test_compare_devices_takes_images_as_they_are(example):
    import keras

    hp = HyperParameters()
    model = example("compare_devices").build(hp)
    assert hp.hparams == {"dropout": 0.25, "lr": 0.001}
    convolutions = [x for x in model.layers if isinstance(x, keras.layers.Conv2D)]
    assert [x.filters for x in convolutions] == [32, 32, 64, 64]
    assert widths(model) == [6 * 6 * 64, 512, 10]
    assert float(np.max(model.layers[0](np.full((1, 32, 32, 3), 255, np.uint8)))) == pytest.approx(
        1
    )
