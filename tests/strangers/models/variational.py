# A variational autoencoder whose sampling layer adds the loss; the model is compiled without one.
import keras
import keras_tuner
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

x = load_digits().data[:240].astype("float32") / 16.0


class Sampling(layers.Layer):
    def __init__(self, kl_weight, **kwargs):
        super().__init__(**kwargs)
        self.kl_weight = kl_weight
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_var = inputs
        kl = -0.5 * ops.mean(1 + log_var - ops.square(mean) - ops.exp(log_var))
        self.add_loss(self.kl_weight * kl)
        epsilon = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * epsilon


class HyperVAE(keras_tuner.HyperModel):
    def build(self, hp):
        latent = hp.Int("latent_dim", 2, 6, step=2)
        inputs = keras.Input((64,))
        h = layers.Dense(hp.Choice("hidden", [16, 32]), activation="relu")(inputs)
        mean, log_var = layers.Dense(latent, name="mean")(h), layers.Dense(latent, name="var")(h)
        z = Sampling(hp.Float("kl_weight", 1e-3, 1e-1, sampling="log"))([mean, log_var])
        h = layers.Dense(hp.Choice("hidden", [16, 32]), activation="relu")(z)
        vae = keras.Model(inputs, layers.Dense(64, activation="sigmoid")(h), name="vae")
        vae.compile(optimizer=keras.optimizers.Adam(hp.Choice("lr", [1e-2, 1e-3])), loss="mse")
        return vae


tuner = keras_tuner.RandomSearch(HyperVAE(), "val_loss", max_trials=4, seed=6, overwrite=True)
tuner.search(
    x[:200], x[:200], epochs=2, batch_size=40, validation_data=(x[200:], x[200:]), shuffle=True
)
best = tuner.get_best_models(2)
encoder = keras.Model(best[0].input, best[0].get_layer("mean").output)
codes = encoder.predict(x[200:], verbose=0)
print(
    "RESULT",
    len(best),
    codes.shape[0],
    codes.shape[1] == tuner.get_best_hyperparameters()[0]["latent_dim"],
)
