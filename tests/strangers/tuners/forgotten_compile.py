# A script that stops: the builder compiles nothing, so nothing says what the loss is.
import numpy as np
from tensorflow import keras
import keras_tuner as kt

x, y = np.random.RandomState(0).rand(80, 4), np.random.RandomState(1).rand(80)


def build(hp):
    return keras.Sequential([keras.layers.Dense(hp.Int("units", 2, 8)), keras.layers.Dense(1)])


tuner = kt.RandomSearch(build, objective="val_loss", max_trials=3, directory="none")
tuner.search(x, y, epochs=1, validation_split=0.2)
print("RESULT", len(tuner.oracle.trials))
