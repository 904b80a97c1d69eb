# A notebook's callback that clears the output, and LearningRateScheduler.
import IPython.display
import numpy as np
import tensorflow as tf
import kerastuner as kt

x, y = np.random.RandomState(0).rand(100, 5), np.random.RandomState(1).rand(100)


class ClearTrainingOutput(tf.keras.callbacks.Callback):
    def on_train_end(*args, **kwargs):
        IPython.display.clear_output(wait=True)


def scheduler(epoch, lr):
    return lr if epoch < 1 else lr * float(tf.math.exp(-0.1))


def build(hp):
    model = tf.keras.Sequential([tf.keras.layers.Input((5,))])
    model.add(tf.keras.layers.Dense(hp.Int("units", 4, 12, 4)))
    model.add(tf.keras.layers.LeakyReLU())
    model.add(tf.keras.layers.Dense(1))
    model.compile(tf.keras.optimizers.RMSprop(hp.Choice("lr", [1e-2, 1e-3])), "mae")
    return model


tuner = kt.RandomSearch(build, "val_loss", 3, seed=1, directory="clear", overwrite=True)
tuner.search(
    x,
    y,
    epochs=3,
    validation_data=(x, y),
    callbacks=[ClearTrainingOutput(), tf.keras.callbacks.LearningRateScheduler(scheduler)],
)
print("RESULT", len(tuner.oracle.trials))
