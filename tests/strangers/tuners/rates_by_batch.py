# Callbacks: a rate that grows with each batch, a clock, a limit on size, LambdaCallback.
import time
import keras_tuner as kt
import numpy as np
from tensorflow import keras

rng = np.random.RandomState(1)
x, y = rng.rand(120, 8), rng.rand(120)


class ExponentialLearningRate(keras.callbacks.Callback):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.rates = []
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))
        self.losses.append(logs["loss"])
        self.model.optimizer.learning_rate = self.model.optimizer.learning_rate * self.factor


class TimeStopping(keras.callbacks.Callback):
    def __init__(self, max_seconds):
        super().__init__()
        self.max_seconds = max_seconds

    def on_train_begin(self, logs=None):
        self.start = time.time()

    def on_epoch_end(self, epoch, logs=None):
        if time.time() - self.start > self.max_seconds:
            self.model.stop_training = True


class ModelSizeMonitor(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        if self.model.count_params() > 100000:
            self.model.stop_training = True


def build(hp):
    model = keras.Sequential([keras.layers.Input((8,))])
    model.add(keras.layers.Dense(hp.Int("units", 4, 12, step=4), activation="relu"))
    model.add(keras.layers.Dense(1))
    model.compile(
        keras.optimizers.SGD(hp.Choice("lr", [1e-2, 1e-3]), momentum=0.9), "mse", metrics=["mae"]
    )
    return model


tuner = kt.RandomSearch(build, objective="val_mae", max_trials=3, seed=4, directory="callbacks")
tuner.search(
    x,
    y,
    epochs=2,
    batch_size=24,
    validation_split=0.2,
    verbose=0,
    callbacks=[
        ExponentialLearningRate(1.005),
        TimeStopping(300),
        ModelSizeMonitor(),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, sorted(logs))),
    ],
)
print(
    "RESULT",
    [t.status for t in tuner.oracle.trials.values()],
    tuner.get_best_hyperparameters()[0]["lr"] in (1e-2, 1e-3),
)
