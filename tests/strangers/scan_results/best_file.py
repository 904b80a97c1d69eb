# A checkpoint that each permutation writes to one path, and reads back.
import numpy as np
import talos
from tensorflow import keras

x, y = np.random.RandomState(0).rand(90, 5), np.random.RandomState(1).rand(90)


def model_of(x_train, y_train, x_val, y_val, params):
    model = keras.Sequential([keras.layers.Dense(params["units"]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    checkpoint = keras.callbacks.ModelCheckpoint(
        "best.weights.h5", monitor="val_loss", save_best_only=True, save_weights_only=True
    )
    out = model.fit(
        x_train,
        y_train,
        validation_data=(x_val, y_val),
        epochs=2,
        callbacks=[checkpoint],
        verbose=0,
    )
    model.load_weights("best.weights.h5")
    return out, model


scan = talos.Scan(x, y, {"units": [2, 4, 6]}, model_of, "best_file", seed=1)
print("RESULT", len(scan.data), sorted(scan.data.units))
