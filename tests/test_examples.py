"""The examples build what they say; `make demo` runs the first of them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from paceline.cli import user_file
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


SLICES = {
    "cifar10_cnn": ("cifar10.npz", (48, 24), {"dropout": 0.3, "lr": 1e-3}),
    "language_lstm": ("fra_eng.tsv", (48, 24), {"dropout": 0.3, "lr": 1e-3}),
    "translation": ("fra_eng.tsv", (48, 24), {"dropout": 0.3, "lr": 1e-3}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLICES)
def test_packed_histories_are_those_of_fit(example, data_file, monkeypatch, name):
    import paceline
    from streams import alone

    needed, sizes, first = SLICES[name]
    monkeypatch.setenv("PACELINE_DATA", str(data_file(needed).parent))
    file = example(name)
    read = getattr(sys.modules[file.build.__module__], "prepared", file.data)
    (x, y), validation = read(*sizes)[:2]
    tuner = paceline.Tuner(
        file.build, objective="loss", parallel_trials=2, plan="vectorized", on_note=len
    )
    tuner.enqueue(first)
    call = {"epochs": 1, "batch_size": 16, "shuffle": False, "validation_data": validation}
    tuner.search(x, y, n_trials=2, **call)
    assert tuner.trial(0).hparams == first
    history = alone(tuner.trial(1), file.build, x, y, **call)
    for metric, values in history.items():
        # One epoch of three steps in float32: 2e-6 measured; an accuracy moves by 1/24 at once.
        np.testing.assert_allclose(tuner.history(1)[metric], values, rtol=2e-5, err_msg=metric)


@pytest.mark.slow
def test_a_translation_is_read_word_by_word(example, data_file, monkeypatch):
    monkeypatch.setenv("PACELINE_DATA", str(data_file("fra_eng.tsv").parent))
    file = example("translation")
    module = sys.modules[file.build.__module__]
    (x, y), (x_val, y_val), names = module.prepared(300, 50)
    assert len(y) + len(y_val) <= 350
    assert x["english"].shape == (len(y), module.E)
    assert (x["french"][:, 0] == module.START).all()
    np.testing.assert_array_equal(x["french"][:, 1:], y[:, :-1] * (x["french"][:, 1:] > 0))
    held = {tuple(row) for row in x_val["english"] if module.UNKNOWN not in row}
    assert not held & {tuple(row) for row in x["english"]}
    assert module.words("Où est-il ? C'est là.") == ["où", "est-il", "?", "c'est", "là", "."]
    row = [*(names[1].index(word) for word in ("le", ".")), module.END, 5]
    assert module.text(row, names[1]) == "le ."


class Parrot:
    """Says the next number of the last French word it was given."""

    def predict(self, x, verbose):
        return np.eye(20)[x["french"] + 1]


def test_greedy_decoding_goes_on_from_its_own_words(example):
    module = sys.modules[example("translation").build.__module__]
    found = module.translate(Parrot(), np.zeros((2, module.E), "int32"))
    start = module.START + 1
    np.testing.assert_array_equal(found, [range(start, start + module.F)] * 2)
