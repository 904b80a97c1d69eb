"""The works that benchmarks search: model, data, size, and the ratios that are promised.

The data sets come from the folder that PACELINE_DATA names, else from ``shared/data`` beside the
checkout; the digits ship inside scikit-learn. ``build`` functions use KerasTuner's methods of hp
only, so that every side runs the same function.

N: training examples. V: validation examples.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import random
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

Pairs = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class MissingDataError(Exception):
    """Raised for a data set that is not on this machine; the work is skipped."""


@dataclass(frozen=True)
class Work:
    """One search for all sides of a comparison.

    Attributes:
        name: Name of the work, as ``--works`` takes it.
        title: Title in tables.
        build: ``() -> build(hp)``; a function, so that this file need not import Keras.
        data: ``() -> (x, y), (x_val, y_val)``.
        n_trials, epochs, batch_size: Size of the search.
        floor: (cold, warm): KerasTuner's time divided by Paceline's is claimed to be at least this.
        goal: (cold, warm): the same ratio that is aimed at; None if another issue sets it.
        rounds: How often each side runs by default; the median counts.
        given: Values of the trials, for works in which a random draw would decide the amount of
            work (numbers of units), so that all sides do the same; None: each side draws its own.
        for_a_card: Whether the work takes too long on a CPU, so that only ``gpu.py`` runs it.
        of_examples: Whether ``examples.py`` runs the work.
        objective: Name of the metric that counts; more is better.
    """

    name: str
    title: str
    build: Callable[[], Callable[[Any], Any]]
    data: Callable[[], Pairs]
    n_trials: int
    epochs: int
    batch_size: int
    floor: tuple[float, float]
    goal: tuple[float, float] | None
    rounds: int = 3
    given: Callable[[], list[dict[str, Any]]] | None = None
    for_a_card: bool = False
    of_examples: bool = False
    objective: str = "val_accuracy"


def data_file(name: str) -> Path:
    """Return the path of a data file.

    Raises:
        MissingDataError: There is no such file.
    """
    folder = Path(os.environ.get("PACELINE_DATA") or ROOT.parent / "shared" / "data")
    path = folder / name
    if not path.is_file():
        raise MissingDataError(f"no {name} in {folder}; PACELINE_DATA names the folder that has it")
    return path


# -- digits ----------------------------------------------------------------------------------------


def classifier(hp: Any, n_features: int, layers: list[Any]) -> Any:
    """Return a compiled classifier of ten classes; its learning rate is searched.

    Args:
        hp: Asked for "lr", after the values in ``layers``.
        n_features: Numbers of an example.
        layers: The hidden layers.
    """
    import keras

    head = keras.layers.Dense(10, activation="softmax")
    model = keras.Sequential([keras.layers.Input((n_features,)), *layers, head])
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def digits_build(hp: Any) -> Any:
    """Build a dense model 64-64-10 with dropout; learning rate and dropout are searched."""
    from keras.layers import Dense, Dropout

    dropout = Dropout(hp.Float("dropout", 0.05, 0.5))
    return classifier(hp, 64, [Dense(64, activation="relu"), dropout])


def structures_build(hp: Any) -> Any:
    """Build a digits model of one of eight structures: layers, widths, activations."""
    from keras.layers import Dense, Dropout

    units, activation = hp.Choice("units", [32, 64]), hp.Choice("activation", ["relu", "tanh"])
    layers = []
    for _ in range(hp.Int("layers", 1, 2)):
        layers += [Dense(units, activation=activation), Dropout(hp.Float("dropout", 0.05, 0.5))]
    return classifier(hp, 64, layers)


def structures_trials() -> list[dict[str, Any]]:
    """Return 64 random configurations for all sides: eight of each structure on average."""
    rng = random.Random(1)
    return [
        {
            "units": rng.choice([32, 64]),
            "activation": rng.choice(["relu", "tanh"]),
            "layers": rng.choice([1, 2]),
            "dropout": rng.uniform(0.05, 0.5),
            "lr": 10 ** rng.uniform(-4, -2),
        }
        for _ in range(64)
    ]


def narrow_build(hp: Any) -> Any:
    """Build a digits model of two hidden layers, each of many widths."""
    from keras.layers import Dense, Dropout

    first = Dense(hp.Int("units", 8, 128, step=8), activation="relu")
    dropout = Dropout(hp.Float("dropout", 0.05, 0.5))
    second = Dense(hp.Int("second", 8, 64, step=8), activation="relu")
    return classifier(hp, 64, [first, dropout, second])


def narrow_trials() -> list[dict[str, Any]]:
    """Return 32 random configurations for all sides."""
    rng = random.Random(1)
    return [
        {
            "units": 8 * rng.randint(1, 16),
            "second": 8 * rng.randint(1, 8),
            "dropout": rng.uniform(0.05, 0.5),
            "lr": 10 ** rng.uniform(-4, -2),
        }
        for _ in range(32)
    ]


def widths_build(most: int) -> Callable[[Any], Any]:
    """Return a ``build`` of an MNIST model like those of KerasTuner's guides.

    Args:
        most: Hidden layers, at most; each has units of its own.
    """

    def build(hp: Any) -> Any:
        from keras.layers import Dense, Dropout

        activation = hp.Choice("activation", ["relu", "tanh"])
        layers = []
        for i in range(hp.Int("layers", 1, most) if most > 1 else 1):
            units = hp.Int(f"units_{i}", 32, 512, step=32)
            layers.append(Dense(units, activation=activation))
        if hp.Boolean("dropout"):
            layers.append(Dropout(0.25))
        return classifier(hp, 784, layers)

    return build


def widths_trials(n: int, most: int) -> list[dict[str, Any]]:
    """Return n random configurations of ``widths_build`` for all sides."""
    rng, found = random.Random(1), []
    for _ in range(n):
        trial = {
            "activation": rng.choice(["relu", "tanh"]),
            "dropout": rng.choice([True, False]),
            "lr": 10 ** rng.uniform(-4, -2),
        }
        layers = rng.randint(1, most)
        if most > 1:
            trial["layers"] = layers
        trial |= {f"units_{i}": 32 * rng.randint(1, 16) for i in range(layers)}
        found.append(trial)
    return found


def flat_mnist() -> Pairs:
    """Return 12,000 images f32[784] in 0..1 to train on; 2,000 test images validate."""
    (x, y), (x_val, y_val) = mnist()
    x, x_val = (a.reshape(len(a), 784) / np.float32(255) for a in (x[:12_000], x_val[:2_000]))
    return (x, y[:12_000]), (x_val, y_val[:2_000])


def digits() -> Pairs:
    """Return features f32[1437, 64] in 0..1, labels int64[1437]; 360 others validate."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = (x / 16.0).astype("float32")
    x, x_val, y, y_val = train_test_split(x, y, test_size=360, stratify=y, random_state=0)
    return (x, y), (x_val, y_val)


# -- images ----------------------------------------------------------------------------------------


def example(file: str) -> Any:
    """Return a file in ``examples`` as a module."""
    path = EXAMPLES / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def example_build(file: str) -> Callable[[Any], Any]:
    """Return the ``build`` of a file in ``examples``."""
    return example(file).build


def example_data(file: str, needed: str, n: int, n_val: int) -> Pairs:
    """Return the data of a file in ``examples``: N examples to train on, V to validate on."""
    os.environ["PACELINE_DATA"] = str(data_file(needed).parent)
    module = example(file)
    return getattr(module, "prepared", module.data)(n, n_val)[:2]


def mnist() -> Pairs:
    """Return images uint8[60000, 28, 28], labels uint8[60000]; the 10,000 test images validate."""
    with np.load(data_file("mnist.npz")) as file:
        return (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])


def fashion(n: int = 2048, n_val: int = 512) -> Pairs:
    """Return the first N training images, uint8[N, 28, 28]; the first V test images validate."""
    with np.load(data_file("fashion_mnist.npz")) as file:
        return (
            (file["x_train"][:n], file["y_train"][:n]),
            (file["x_test"][:n_val], file["y_test"][:n_val]),
        )


def noise(n: int = 64, n_val: int = 32) -> Pairs:
    """Return random images in the shape of ``fashion``; nothing can be learned from them."""
    rng = np.random.default_rng(0)
    sizes = (n, n_val)
    x, x_val = (rng.integers(0, 256, (size, 28, 28), np.uint8) for size in sizes)
    y, y_val = (rng.integers(0, 10, size, np.uint8) for size in sizes)
    return (x, y), (x_val, y_val)


def conv_widths_build(hp: Any) -> Any:
    """Build a convolution of 16 to 64 filters and a dense layer of 32 to 256 units."""
    import keras
    from keras.layers import Conv2D, Dense, Flatten, MaxPooling2D, Rescaling

    filters = hp.Int("filters", 16, 64, step=16)
    model = keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            Rescaling(1 / 255),
            Conv2D(filters, 3, activation="relu"),
            MaxPooling2D(2),
            Flatten(),
            Dense(hp.Int("units", 32, 256, step=32), activation="relu"),
            Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def conv_widths_trials() -> list[dict[str, Any]]:
    """Return eight random configurations for all sides."""
    rng = random.Random(1)
    return [
        {
            "filters": 16 * rng.randint(1, 4),
            "units": 32 * rng.randint(1, 8),
            "lr": 10 ** rng.uniform(-4, -2),
        }
        for _ in range(8)
    ]


def fashion_with_channels() -> Pairs:
    """Return ``fashion()`` with an axis of one channel: uint8[2048, 28, 28, 1]; 512 validate."""
    (x, y), (x_val, y_val) = fashion()
    return (x[..., None], y), (x_val[..., None], y_val)


def fashion_grid() -> list[dict[str, Any]]:
    """Return the eight configurations of the grid."""
    names = ("activation", "conv_dropout", "dense1_neuron")
    grid = itertools.product(["relu", "elu"], [0.25, 0.4], [256, 512])
    return [dict(zip(names, values, strict=True)) for values in grid]


def fashion_trials() -> list[dict[str, Any]]:
    """Return four of the grid's eight configurations, the same ones for all sides.

    The four trials need three programs, as in most random draws; two or four programs are rarer.
    """
    return random.Random(1).sample(fashion_grid(), 4)


# -- sentences -------------------------------------------------------------------------------------

LENGTH = 40
N_SENTENCES = 8000
LETTERS = "abcdefghijklmnopqrstuvwxyzàâçèéêëîïôùûœ'-,.!?0 "


def sentences() -> Pairs:
    """Return sentences in French (1) and English (0): letters int32[6400, 40]; 1,600 validate.

    There are as many of each language, drawn from sentences of at most 40 letters. Every digit
    becomes 0 and every other sign a blank; the rest of a row is 0.
    """
    rng = np.random.default_rng(0)
    lines = data_file("fra_eng.tsv").read_text(encoding="utf-8").splitlines()
    columns = zip(*(line.split("\t")[:2] for line in lines), strict=True)
    number = {letter: i + 1 for i, letter in enumerate(LETTERS)}
    x = np.zeros((N_SENTENCES, LENGTH), dtype="int32")
    y = np.zeros((N_SENTENCES,), dtype="int32")
    row = 0
    for label, column in enumerate(columns):
        short = sorted({clean for text in column if len(clean := _clean(text)) <= LENGTH})
        for i in rng.permutation(len(short))[: N_SENTENCES // 2]:
            x[row, : len(short[i])] = [number[letter] for letter in short[i]]
            y[row] = label
            row += 1
    order = rng.permutation(N_SENTENCES)
    x, y = x[order], y[order]
    n_train = N_SENTENCES * 4 // 5
    return (x[:n_train], y[:n_train]), (x[n_train:], y[n_train:])


def _clean(text: str) -> str:
    text = unicodedata.normalize("NFC", text.strip().lower())
    return "".join(c if c in LETTERS else "0" if c.isdigit() else " " for c in text)


def gru_build(hp: Any) -> Any:
    """Build a GRU of 32 units over letters; learning rate and dropout are searched."""
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(len(LETTERS) + 1, 16, mask_zero=True),
            keras.layers.GRU(32),
            keras.layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("lr", 3e-4, 1e-2, sampling="log")),
        loss="binary_crossentropy",
        metrics=["accuracy"],
    )
    return model


def of_an_example(
    name: str,
    size: str,
    needed: str,
    n: tuple[int, int],
    *,
    epochs: int,
    batch_size: int,
    floor: tuple[float, float] = (2.5, 2.5),
    goal: tuple[float, float] = (5.0, 5.0),
    objective: str = "val_accuracy",
) -> Work:
    """Return the work of a file in ``examples``: eight trials, as ``examples.py`` runs them.

    Args:
        name: Name of the file without its ending, and of the work.
        size: Size of the search, for the title.
        needed: Name of the data file that the example reads.
        n: N and V.
        epochs: Epochs of each trial.
        batch_size: Examples per step.
        floor: The claimed ratios, as in ``Work``.
        goal: The ratios that are aimed at, as in ``Work``.
        objective: Name of the metric that counts.
    """
    file = f"{name}.py"
    return Work(
        name,
        f"examples/{file}, {size}, batch {batch_size}, 8 trials x {epochs} epochs",
        lambda: example_build(file),
        lambda: example_data(file, needed, *n),
        8,
        epochs,
        batch_size,
        floor=floor,
        goal=goal,
        rounds=1,
        of_examples=True,
        objective=objective,
    )


WORKS = {
    work.name: work
    for work in (
        Work(
            "digits16",
            "digits dense 64-64-10, batch 32, 16 trials x 10 epochs",
            lambda: digits_build,
            digits,
            16,
            10,
            32,
            floor=(8.0, 15.0),
            goal=(15.0, 30.0),
        ),
        Work(
            "digits64",
            "digits dense 64-64-10, batch 32, 64 trials x 20 epochs",
            lambda: digits_build,
            digits,
            64,
            20,
            32,
            floor=(20.0, 35.0),
            goal=(40.0, 60.0),
            rounds=1,
        ),
        Work(
            "structures",
            "digits over 8 structures, batch 32, 64 trials x 10 epochs",
            lambda: structures_build,
            digits,
            64,
            10,
            32,
            floor=(12.0, 18.0),
            goal=(25.0, 30.0),
            rounds=1,
            given=structures_trials,
        ),
        Work(
            "narrow",
            "digits, units 8..128 and 8..64, dropout, log lr, batch 32, 32 trials x 10 epochs",
            lambda: narrow_build,
            digits,
            32,
            10,
            32,
            floor=(4.0, 1.5),
            goal=(8.0, 3.0),
            rounds=1,
            given=narrow_trials,
        ),
        Work(
            "intro",
            "MNIST 12,000, units 32..512, activation, dropout, lr, batch 32, 16 trials x 2 epochs",
            lambda: widths_build(1),
            flat_mnist,
            16,
            2,
            32,
            floor=(4.0, 1.0),
            goal=(8.0, 1.0),
            rounds=1,
            given=lambda: widths_trials(16, 1),
        ),
        Work(
            "intro64",
            "as intro, 64 trials x 2 epochs",
            lambda: widths_build(1),
            flat_mnist,
            64,
            2,
            32,
            floor=(1.0, 1.0),
            goal=None,
            rounds=1,
            given=lambda: widths_trials(64, 1),
        ),
        Work(
            "layers",
            "the same with 1 to 3 layers, batch 64, 24 trials x 4 epochs",
            lambda: widths_build(3),
            flat_mnist,
            24,
            4,
            64,
            floor=(3.0, 1.0),
            goal=(5.0, 1.0),
            rounds=1,
            given=lambda: widths_trials(24, 3),
        ),
        Work(
            "conv_widths",
            "Fashion-MNIST, 2,048 images, filters 16..64, units 32..256, lr, 8 trials x 2 epochs",
            lambda: conv_widths_build,
            fashion_with_channels,
            8,
            2,
            32,
            floor=(1.0, 1.0),
            goal=None,
            rounds=1,
            given=conv_widths_trials,
        ),
        Work(
            "mnist",
            "MNIST dense 784-128-10, batch 128, 8 trials x 3 epochs",
            lambda: example_build("mnist_dense.py"),
            mnist,
            8,
            3,
            128,
            floor=(2.5, 3.0),
            goal=(5.0, 6.0),
        ),
        Work(
            "gru",
            "GRU, language of 8,000 sentences of 40 letters, batch 32, 8 trials x 3 epochs",
            lambda: gru_build,
            sentences,
            8,
            3,
            32,
            floor=(2.5, 3.0),
            goal=(5.0, 6.0),
        ),
        Work(
            "fashion",
            "Fashion CNN 64/128/256 5x5, 2,048 images, batch 32, 4 trials x 2 epochs",
            lambda: example_build("fashion_mnist_cnn.py"),
            fashion,
            4,
            2,
            32,
            floor=(1.8, 1.8),
            goal=(2.5, 2.5),
            rounds=1,
            given=fashion_trials,
        ),
        Work(
            "scan",
            "Fashion CNN 64/128/256 5x5, 60,000 images, batch 32, 8 trials x 10 epochs",
            lambda: example_build("fashion_mnist_cnn.py"),
            lambda: fashion(60_000, 10_000),
            8,
            10,
            32,
            floor=(8.0, 8.0),
            goal=None,
            rounds=1,
            given=fashion_grid,
            for_a_card=True,
        ),
        Work(
            "scan_tiny",
            "the same on noise, 64 images, 2 trials x 1 epoch: whether it works",
            lambda: example_build("fashion_mnist_cnn.py"),
            noise,
            2,
            1,
            32,
            floor=(0.0, 0.0),
            goal=None,
            rounds=1,
            given=lambda: fashion_grid()[:4:2],  # two trials of one structure
            for_a_card=True,
        ),
        of_an_example(
            "cifar10_cnn",
            "1,280 images",
            "cifar10.npz",
            (1280, 320),
            epochs=2,
            batch_size=64,
            floor=(1.0, 1.0),
            goal=(1.3, 1.3),
        ),
        of_an_example(
            "translation",
            "5,000 pairs",
            "fra_eng.tsv",
            (5000, 500),
            epochs=2,
            batch_size=64,
            objective="val_token_accuracy",
        ),
        of_an_example(
            "language_lstm",
            "8,000 sentences",
            "fra_eng.tsv",
            (8000, 2000),
            epochs=3,
            batch_size=32,
        ),
    )
}


def find(name: str) -> Work:
    """Return the work of a name; for ``NAME:FIRST:LAST``, with only these of its given trials.

    Raises:
        ValueError: There are no such trials.
    """
    name, *part = name.split(":")
    work = WORKS[name]
    if not part:
        return work
    first, last = map(int, part)  # raises ValueError too if these are no numbers
    if work.given is None or not 0 <= first < last <= work.n_trials:
        raise ValueError(f"{name}: no trials {first}:{last}; it has {work.n_trials}")
    trials = work.given()[first:last]
    title = f"{work.title}, trials {first} to {last - 1}"
    name = f"{name}:{first}:{last}"
    return replace(work, name=name, title=title, n_trials=len(trials), given=lambda: trials)
