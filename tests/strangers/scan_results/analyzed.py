# Analyze after a scan of a regression: what is high, low, correlated, and a table.
import numpy as np
import talos
from tensorflow import keras

rng = np.random.RandomState(0)
x = rng.rand(120, 6)
y = x @ rng.rand(6)


def regression(x_train, y_train, x_val, y_val, params):
    model = keras.Sequential()
    model.add(keras.layers.Dense(params["units"], activation=params["activation"]))
    model.add(keras.layers.Dense(1))
    model.compile(loss="mse", optimizer=keras.optimizers.Adam(params["lr"]), metrics=["mae"])
    history = model.fit(
        x_train, y_train, validation_data=(x_val, y_val), epochs=2, batch_size=20, verbose=0
    )
    return history, model


p = {"units": [4, 8, 12], "activation": ["relu", "elu"], "lr": [0.01, 0.001]}
scan = talos.Scan(x, y, p, regression, "analyzed", val_split=0.25, seed=1)
analyze = talos.Analyze(scan)
others = [c for c in analyze.data.columns if c not in [*p, "val_loss"]]
table = analyze.table("val_loss", exclude=others, sort_by="val_loss", ascending=True)
correlation = analyze.correlate("val_loss", exclude=[*others, "activation"])
best = analyze.best_params("val_loss", exclude=others, n=3, ascending=True)
assert analyze.low("val_loss") <= analyze.high("val_loss")
analyze.plot_hist("val_loss")
analyze.plot_line("val_loss")
print("RESULT", len(table), sorted(correlation.index), len(best), analyze.rounds())
