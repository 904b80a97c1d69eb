# A loss that is a lambda of TensorFlow's, LeakyReLU layers, an output that is reshaped.
import keras_tuner as kt
import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, models, regularizers
from tensorflow.keras.layers import LeakyReLU

rng = np.random.default_rng(8)
T = rng.random((90, 1)).astype("float32")
spec = (T[:, :, None, None] * np.ones((1, 4, 3, 2))).astype("float32")


def model_builder(hp, output_shape):
    l2 = hp.Float("l2_reg", 1e-6, 1e-2, sampling="log")
    slope = hp.Float("alpha", 0.01, 0.4, sampling="linear")
    units = [
        hp.Int(f"units_{k}", min_value=8, max_value=16, step=8)
        for k in range(hp.Int("n_hidden", 1, 2))
    ]
    inp = layers.Input(shape=(1,), name="T_input")
    x = inp
    for u in units:
        x = layers.Dense(u, kernel_regularizer=regularizers.l2(l2))(x)
        x = LeakyReLU(negative_slope=slope)(x)
    x = layers.Dense(hp.Choice("latent_units", [4, 8]), kernel_regularizer=regularizers.l2(l2))(x)
    x = LeakyReLU(negative_slope=slope)(x)
    out = layers.Dense(int(np.prod(output_shape)), activation="linear")(x)
    out = layers.Reshape(output_shape)(out)
    model = models.Model(inp, out)
    model.compile(
        optimizer=tf.keras.optimizers.Adam(),
        loss=lambda y, t: tf.reduce_mean(tf.abs(t - y)),
        metrics=["mae"],
    )
    return model


def _build(hp):
    return model_builder(hp, (4, 3, 2))


tuner = kt.BayesianOptimization(
    hypermodel=_build,
    objective=kt.Objective("val_loss", direction="min"),
    max_trials=3,
    executions_per_trial=1,
    seed=9,
    directory="tuner_runs",
    project_name="spec_MLP",
)
tuner.search(T[:70], spec[:70], validation_data=(T[70:], spec[70:]), epochs=2, verbose=0)
print("RESULT", tuner.get_best_models()[0].output_shape, len(tuner.oracle.trials))
print("RESULT", sorted(tuner.get_best_hyperparameters()[0].values)[:3])
