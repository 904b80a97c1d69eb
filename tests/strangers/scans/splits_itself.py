# val_split=0, because the function gives fit a share to validate on.
import numpy as np
import talos
from tensorflow import keras

x, y = np.random.RandomState(0).rand(90, 5), np.random.RandomState(1).rand(90, 2)
scores = []


def model_of(x_train, y_train, x_val, y_val, params):
    model = keras.Sequential([keras.layers.Dense(params["units"]), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(params["lr"], momentum=0.9), "mse", metrics=["mae"])
    out = model.fit(x_train, y_train, epochs=2, validation_split=0.2, verbose=0)
    return out, model


p = {"units": [2, 4], "lr": [0.1, 0.01]}
scan = talos.Scan(x, y, p, model_of, "splits", x_val=x[:20], y_val=y[:20], seed=1)
print("RESULT", len(scan.data), "val_mae" in scan.data)
