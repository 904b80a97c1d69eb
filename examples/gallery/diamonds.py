r"""What does a diamond cost? A table with numbers and categories.

    pip install plotnine
    python examples/gallery/diamonds.py

The package plotnine contains the table: 53,940 diamonds with carat, cut, color and clarity. Nothing
is downloaded.
"""

import paceline  # import it before keras, so that Keras uses JAX

import keras
import numpy as np
from plotnine.data import diamonds

NUMBERS = ["carat", "depth", "table", "x", "y", "z"]
CATEGORIES = ["cut", "color", "clarity"]


def build(hp):
    numbers = keras.Input((len(NUMBERS),), name="numbers")
    inputs, parts = [numbers], [numbers]
    for name in CATEGORIES:
        one = keras.Input((1,), dtype="int32", name=name)
        width = hp.Choice("embedding", [1, 2, 4])
        embedded = keras.layers.Embedding(diamonds[name].nunique(), width)(one)
        inputs.append(one)
        parts.append(keras.layers.Flatten()(embedded))
    hidden = keras.layers.Concatenate()(parts)
    for layer in range(hp.Int("layers", 1, 2)):
        units = hp.Choice(f"units_{layer}", [16, 32, 64])
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    model = keras.Model({each.name: each for each in inputs}, keras.layers.Dense(1)(hidden))
    adam = keras.optimizers.Adam(hp.Float("lr", 1e-4, 3e-2, sampling="log"))
    model.compile(adam, loss=hp.Choice("loss", ["mse", "mae"]), metrics=["mae"])
    return model


def data(n=10_000, n_val=3000):
    """Return (x, y) three times: to train, validate and test; y is log10 of the price."""
    table = diamonds.sample(frac=1, random_state=0)
    numbers = table[NUMBERS].to_numpy("float32")
    numbers = (numbers - numbers[:n].mean(axis=0)) / numbers[:n].std(axis=0)
    columns = {"numbers": numbers}
    for name in CATEGORIES:
        columns[name] = table[name].cat.codes.to_numpy("int32")[:, None]
    y = np.log10(table["price"].to_numpy("float32"))
    cuts = slice(0, n), slice(n, n + n_val), slice(n + n_val, None)
    return [({name: column[cut] for name, column in columns.items()}, y[cut]) for cut in cuts]


def search(n_trials=24, epochs=10):
    (x, y), validation_data, _ = data()
    tuner = paceline.Tuner(build, objective="val_mae", study="diamonds", sampler="tpe", seed=0)
    tuner.search(
        x, y, validation_data=validation_data, epochs=epochs, batch_size=64, n_trials=n_trials
    )
    return tuner


def outcome(tuner):
    """Return what the best model does: name -> text."""
    (_, y), _, (x_test, y_test) = data()
    found = tuner.best_model().predict(x_test, batch_size=1024, verbose=0)[:, 0]
    # A line through the logarithms of carat and price, from the training rows.
    carat = diamonds.sample(frac=1, random_state=0)["carat"].to_numpy()
    line = np.polyfit(np.log10(carat[: len(y)]), y, 1)
    guess = np.polyval(line, np.log10(carat[-len(y_test) :]))
    off = [np.median(np.abs(10 ** (one - y_test) - 1)) for one in (found, guess)]
    return {
        f"median error on {len(y_test):,} other diamonds": f"{off[0]:.1%} of the price",
        "the same, by a line through carat and price": f"{off[1]:.1%} of the price",
    }


if __name__ == "__main__":
    tuner = search()
    print(tuner.best_trial.hparams, outcome(tuner), tuner.report("diamonds.html"), sep="\n")
