# keras.utils.Sequence of TensorFlow's Keras, and on_epoch_end of a tuner.
import math
import numpy as np
import tensorflow as tf
import keras_tuner as kt

x, y = np.random.RandomState(0).rand(96, 6), np.random.RandomState(1).randint(0, 2, 96)


class Batches(tf.keras.utils.Sequence):
    def __init__(self, x_set, y_set, batch_size):
        super().__init__()
        self.x, self.y, self.batch_size = x_set, y_set, batch_size

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, idx):
        low = idx * self.batch_size
        high = min(low + self.batch_size, len(self.x))
        return self.x[low:high], self.y[low:high]


def build(hp):
    model = tf.keras.Sequential([tf.keras.layers.Dense(hp.Int("units", 4, 12, 4), "relu")])
    model.add(tf.keras.layers.Dense(1, "sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


tuner = kt.RandomSearch(build, "val_accuracy", max_trials=3, seed=2, directory="sequences")
tuner.search(Batches(x[:64], y[:64], 16), validation_data=Batches(x[64:], y[64:], 16), epochs=2)
print("RESULT", len(tuner.oracle.trials), tuner.get_best_models()[0].predict(x, verbose=0).shape)
