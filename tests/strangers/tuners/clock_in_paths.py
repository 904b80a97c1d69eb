# TensorBoard and checkpoints below a folder that the time names, a CSV log, a lambda.
import datetime
import os
import numpy as np
import tensorflow as tf
import keras_tuner as kt

log_dir = "logs/fit/" + datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
os.makedirs(log_dir, exist_ok=True)
x, y = np.random.RandomState(0).rand(100, 5), np.random.RandomState(1).randint(0, 2, 100)


class LossHistory(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])


def build(hp):
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Dense(hp.Int("units", 4, 12, 4), activation="relu"))
    model.add(tf.keras.layers.Dense(1, activation="sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir=log_dir, histogram_freq=1),
    tf.keras.callbacks.ModelCheckpoint(
        os.path.join(log_dir, "best.keras"), monitor="val_loss", save_best_only=True
    ),
    tf.keras.callbacks.CSVLogger(os.path.join(log_dir, "log.csv")),
    tf.keras.callbacks.TerminateOnNaN(),
    LossHistory(),
]
tuner = kt.RandomSearch(build, "val_accuracy", max_trials=3, seed=6, directory=log_dir)
tuner.search(x, y, epochs=2, validation_split=0.25, callbacks=callbacks)
written = sorted(os.listdir(log_dir))
print("RESULT", "best.keras" in written, "log.csv" in written)
