# A subclassed autoencoder that is given noisy images and compared with clean ones.
import numpy as np
import tensorflow as tf
from tensorflow.keras import layers, losses
from tensorflow.keras.models import Model
import keras_tuner as kt
from sklearn.datasets import load_digits

x = load_digits().data[:240].astype("float32") / 16.0
x_train, x_test = x[:180], x[180:]
noise = 0.2 * np.random.RandomState(0).normal(size=x.shape).astype("float32")
noisy_train, noisy_test = x_train + noise[:180], x_test + noise[180:]


class Autoencoder(Model):
    def __init__(self, latent_dim, activation):
        super(Autoencoder, self).__init__()
        self.encoder = tf.keras.Sequential(
            [layers.Dense(32, activation=activation), layers.Dense(latent_dim)]
        )
        self.decoder = tf.keras.Sequential(
            [layers.Dense(32, activation=activation), layers.Dense(64, activation="sigmoid")]
        )

    def call(self, x):
        return self.decoder(self.encoder(x))


def build(hp):
    autoencoder = Autoencoder(
        hp.Int("latent_dim", 2, 10, step=4), hp.Choice("activation", ["relu", "tanh"])
    )
    autoencoder.compile(optimizer="adam", loss=losses.MeanSquaredError())
    return autoencoder


tuner = kt.Hyperband(build, objective="val_loss", max_epochs=3, seed=11, directory="ae")
tuner.search(noisy_train, x_train, shuffle=True, validation_data=(noisy_test, x_test), verbose=0)
best = tuner.hypermodel.build(tuner.get_best_hyperparameters()[0])
best.fit(noisy_train, x_train, epochs=1, verbose=0)
print("RESULT", best.encoder(x_test).numpy().ndim, best(x_test).numpy().shape)
