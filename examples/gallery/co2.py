r"""How much carbon dioxide will be in the air of Mauna Loa in half a year?

    pip install statsmodels
    python examples/gallery/co2.py

The package statsmodels contains the series: weekly means from 1958 to 2001, in parts per million
(Keeling and Whorf, public domain). Nothing is downloaded.
"""

import paceline  # import it before keras, so that Keras uses JAX

import keras
import numpy as np
import statsmodels.api as sm

WINDOW, AHEAD, YEAR = 104, 26, 52  # weeks


def build(hp):
    inputs = keras.Input((WINDOW,))
    window = inputs[:, WINDOW - hp.Choice("look_back", [26, 52, 104]) :]
    if hp.Choice("model", ["linear", "hidden"]) == "hidden":
        window = keras.layers.Dense(hp.Choice("units", [16, 64]), activation="relu")(window)
        window = keras.layers.Dropout(hp.Float("dropout", 0.01, 0.3))(window)
    model = keras.Model(inputs, keras.layers.Dense(1)(window))
    adam = keras.optimizers.Adam(hp.Float("lr", 1e-4, 3e-2, sampling="log"))
    model.compile(adam, loss="mse", metrics=[keras.metrics.RootMeanSquaredError(name="rmse")])
    return model


def series():
    """Return the weekly series, f32[weeks] in ppm; the few missing weeks are interpolated."""
    return sm.datasets.co2.load_pandas().data["co2"].interpolate().to_numpy("float32")


def data(n=1400, n_val=300):
    """Return (x, y) three times, one after another in time: to train, validate and test.

    x are the last two years and y is the value half a year ahead, both from today's value on.
    """
    weeks = series()
    windows = np.lib.stride_tricks.sliding_window_view(weeks, WINDOW)[:-AHEAD]
    today = windows[:, -1]
    x, y = windows - today[:, None], weeks[WINDOW + AHEAD - 1 :] - today
    gap = AHEAD  # the value to forecast from the last window of a part is before the next part
    cuts = slice(0, n - gap), slice(n, n + n_val - gap), slice(n + n_val, None)
    return [(x[cut], y[cut, None]) for cut in cuts]


def search(n_trials=32, epochs=20):
    (x, y), validation_data, _ = data()
    tuner = paceline.Tuner(build, objective="val_rmse", study="co2", sampler="tpe", seed=0)
    tuner.search(
        x, y, validation_data=validation_data, epochs=epochs, batch_size=32, n_trials=n_trials
    )
    return tuner


def outcome(tuner):
    """Return what the best model does: name -> text."""
    *_, (x_test, y_test) = data()
    guesses = {
        "the best model": tuner.best_model().predict(x_test, verbose=0)[:, 0],
        "the same change as a year ago": x_test[:, -1 - YEAR + AHEAD] - x_test[:, -1 - YEAR],
        "no change": np.zeros(len(y_test)),
    }
    squares = {name: np.mean((guess - y_test[:, 0]) ** 2) for name, guess in guesses.items()}
    return {f"error on the test years, {k}": f"{v**0.5:.2f} ppm" for k, v in squares.items()}


if __name__ == "__main__":
    tuner = search()
    print(tuner.best_trial.hparams, outcome(tuner), tuner.report("co2.html"), sep="\n")
