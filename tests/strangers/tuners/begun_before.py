# A search that goes on in its folder: overwrite=False, reload, more trials, the trials' files.
import json
import os
import numpy as np
import tensorflow as tf
import keras_tuner as kt

x, y = np.random.RandomState(0).rand(100, 5), np.random.RandomState(1).randint(0, 3, 100)


def build(hp):
    model = tf.keras.Sequential([tf.keras.layers.Input((5,))])
    model.add(tf.keras.layers.Dense(hp.Int("units", 4, 32, 4), "relu"))
    model.add(tf.keras.layers.Dense(3, "softmax"))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def tuner_of(max_trials):
    return kt.RandomSearch(
        build, "val_accuracy", max_trials=max_trials, seed=3, directory="on", project_name="going"
    )


first = tuner_of(2)
first.search(x, y, epochs=1, validation_split=0.2, verbose=0)
second = tuner_of(4)
second.search(x, y, epochs=1, validation_split=0.2, verbose=0)
third = tuner_of(4)
third.reload()
model = third.get_best_models()[0]
folders = sorted(name for name in os.listdir("on/going") if name.startswith("trial_"))
with open(f"on/going/{folders[0]}/trial.json") as file:
    trial = json.load(file)
print("RESULT", len(third.oracle.trials), folders, sorted(trial), model.input_shape)
