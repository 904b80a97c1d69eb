# distribution_strategy=, which many scripts pass on a machine with one device.
import numpy as np
import tensorflow as tf
import keras_tuner as kt

x, y = np.random.RandomState(0).rand(80, 6), np.random.RandomState(1).rand(80)


def build(hp):
    model = tf.keras.Sequential([tf.keras.layers.Dense(hp.Int("units", 4, 8, 4), "relu")])
    model.add(tf.keras.layers.Dense(1))
    model.compile(tf.keras.optimizers.Adam(1e-2), "mse")
    return model


tuner = kt.RandomSearch(
    build,
    objective="val_loss",
    max_trials=2,
    seed=2,
    directory="mirrored",
    distribution_strategy=tf.distribute.MirroredStrategy(),
)
tuner.search(x, y, validation_split=0.2, epochs=1, batch_size=16)
print("RESULT", len(tuner.oracle.trials))
