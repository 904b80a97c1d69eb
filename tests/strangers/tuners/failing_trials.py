# Some models are too large or cannot be built: retries and failed trials.
import numpy as np
from tensorflow import keras
import keras_tuner as kt

x, y = np.random.RandomState(0).rand(80, 10, 1), np.random.RandomState(1).rand(80)


def build(hp):
    kernel = hp.Choice("kernel", [3, 5, 40])
    if kernel == 40:
        raise kt.errors.FailedTrialError("the kernel is wider than the series")
    model = keras.Sequential(
        [
            keras.layers.Conv1D(4, kernel, activation="relu", input_shape=(10, 1)),
            keras.layers.GlobalMaxPooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model


tuner = kt.GridSearch(
    build,
    objective="val_loss",
    max_retries_per_trial=1,
    max_consecutive_failed_trials=5,
    directory="failing",
)
tuner.search(x, y, epochs=1, validation_split=0.2)
print("RESULT", sorted(trial.status for trial in tuner.oracle.trials.values()))
