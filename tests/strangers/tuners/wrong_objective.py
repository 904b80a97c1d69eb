# A script that stops: the objective is no metric of the model.
import numpy as np
from tensorflow import keras
import keras_tuner as kt

x, y = np.random.RandomState(0).rand(80, 4), np.random.RandomState(1).rand(80)


def build(hp):
    model = keras.Sequential([keras.layers.Dense(hp.Int("units", 2, 8)), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mean_squared_error")
    return model


tuner = kt.RandomSearch(build, objective="val_accuracy", max_trials=3, directory="lstm_tuning")
tuner.search(x, y, epochs=1, validation_data=(x, y))
print("RESULT", len(tuner.oracle.trials))
