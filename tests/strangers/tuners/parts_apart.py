# kt.Tuner with an oracle, and optimizer, loss and metrics given to the tuner.
import numpy as np
from tensorflow import keras
import keras_tuner as kt
from keras_tuner.oracles import RandomSearchOracle

x, y = np.random.RandomState(0).rand(90, 8), np.random.RandomState(1).randint(0, 4, 90)


def build(hp):
    return keras.Sequential(
        [
            keras.layers.Dense(hp.Int("units", 4, 16, step=4), activation="elu"),
            keras.layers.Dense(4, activation="softmax"),
        ]
    )


tuner = kt.Tuner(
    oracle=RandomSearchOracle(objective="val_accuracy", max_trials=3, seed=9),
    hypermodel=build,
    optimizer=keras.optimizers.Adam(1e-2),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
    max_model_size=10_000,
    project_name="apart",
)
tuner.search(x, y, epochs=2, validation_split=0.2)
print("RESULT", [t.hyperparameters.values["units"] for t in tuner.oracle.trials.values()])
