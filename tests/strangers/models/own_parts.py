# A layer, a loss and metrics of the user's own, all in TensorFlow's functions.
import numpy as np
import tensorflow as tf
from tensorflow import keras
import keras_tuner as kt

rng = np.random.RandomState(4)
X = rng.rand(160, 6).astype("float32")
Y = (X @ rng.rand(6, 1)).astype("float32")


class Scale(keras.layers.Layer):
    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, input_shape):
        self.gain = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="gain")

    def call(self, inputs):
        return tf.nn.relu(inputs * self.gain) * self.factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


def rmsle(y_true, y_pred):
    difference = tf.math.log1p(tf.nn.relu(y_pred)) - tf.math.log1p(y_true)
    return tf.sqrt(tf.reduce_mean(tf.square(difference)) + 1e-8)


def r_square(y_true, y_pred):
    residual = tf.reduce_sum(tf.square(y_true - y_pred))
    total = tf.reduce_sum(tf.square(y_true - tf.reduce_mean(y_true)))
    return 1 - residual / (total + 1e-7)


def build(hp):
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(hp.Choice("units", [8, 16])),
            Scale(hp.Float("factor", 0.5, 2.0)),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-2), loss=rmsle, metrics=[r_square])
    return model


tuner = kt.RandomSearch(build, kt.Objective("val_r_square", "max"), max_trials=3, seed=1)
tuner.search(X, Y, epochs=2, validation_split=0.2)
print("RESULT", sorted(tuner.oracle.get_best_trials()[0].metrics.metrics))
