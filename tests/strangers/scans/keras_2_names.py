# A script for Keras 2 that stops in Keras 3: lr=, and fit's use_multiprocessing.
import numpy as np
import talos
from tensorflow.keras.models import Sequential
from tensorflow.keras.layers import Dense
from tensorflow.keras.optimizers import Adam

x, y = np.random.RandomState(0).rand(60, 5), np.random.RandomState(1).randint(0, 2, 60)


def model_of(x_train, y_train, x_val, y_val, params):
    model = Sequential()
    model.add(Dense(params["units"], input_dim=5, activation="relu"))
    model.add(Dense(1, activation="sigmoid"))
    model.compile(Adam(lr=params["lr"]), loss="binary_crossentropy", metrics=["acc"])
    out = model.fit(
        x_train, y_train, epochs=1, validation_data=(x_val, y_val), use_multiprocessing=True
    )
    return out, model


scan = talos.Scan(x, y, {"units": [4, 8], "lr": [0.1, 0.01]}, model_of, "keras_2")
print("RESULT", len(scan.data))
