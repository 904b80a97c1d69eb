# A GAN: a model with two optimizers, its own compile and train_step, no validation data.
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
import keras_tuner
from keras_tuner import HyperParameters

real = np.random.RandomState(0).normal(3.0, 0.5, (96, 2)).astype("float32")


class GAN(keras.Model):
    def __init__(self, discriminator, generator, latent_dim):
        super().__init__()
        self.discriminator = discriminator
        self.generator = generator
        self.latent_dim = latent_dim
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def train_step(self, data):
        size = tf.shape(data)[0]
        noise = tf.random.normal(shape=(size, self.latent_dim))
        both = tf.concat([self.generator(noise), data], axis=0)
        labels = tf.concat([tf.ones((size, 1)), tf.zeros((size, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights))
        noise = tf.random.normal(shape=(size, self.latent_dim))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(tf.zeros((size, 1)), self.discriminator(self.generator(noise)))
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}


def build(hp: HyperParameters):
    latent_dim = hp.Int("noise_dimension", 2, 4, step=2)
    generator = keras.Sequential(
        [
            keras.Input((latent_dim,)),
            layers.Dense(hp.Int("g_units", 4, 8, 4)),
            layers.LeakyReLU(),
            layers.Dense(2),
        ]
    )
    discriminator = keras.Sequential(
        [keras.Input((2,)), layers.Dense(8), layers.LeakyReLU(), layers.Dense(1)]
    )
    gan = GAN(discriminator, generator, latent_dim)
    gan.compile(
        d_optimizer=keras.optimizers.Adam(hp.Float("lr_discriminator", 1e-4, 1e-2, sampling="log")),
        g_optimizer=keras.optimizers.Adam(hp.Float("lr_generator", 1e-4, 1e-2, sampling="log")),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return gan


tuner = keras_tuner.RandomSearch(
    build, objective=keras_tuner.Objective("g_loss", "min"), max_trials=2, seed=1, directory="gan"
)
tuner.search(tf.data.Dataset.from_tensor_slices(real).batch(32), epochs=2, verbose=0)
print("RESULT", len(tuner.oracle.trials), sorted(tuner.get_best_hyperparameters()[0].values))
