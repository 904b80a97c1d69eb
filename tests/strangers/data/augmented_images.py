# tf.data with batch, cache and prefetch, layers that augment, a convolutional network.
import tensorflow as tf
from tensorflow.keras import layers, models
import keras_tuner as kt
import numpy as np

AUTOTUNE = tf.data.AUTOTUNE
rng = np.random.default_rng(0)
images = rng.integers(0, 255, size=(96, 16, 16, 3)).astype("uint8")
classes = rng.integers(0, 3, size=96)
train_ds = (
    tf.data.Dataset.from_tensor_slices((images[:64], classes[:64]))
    .shuffle(64, seed=1)
    .batch(16)
    .cache()
    .prefetch(buffer_size=AUTOTUNE)
)
val_ds = tf.data.Dataset.from_tensor_slices((images[64:], classes[64:])).batch(16)


def build_cnn(hp):
    model = models.Sequential(
        [
            layers.Input(shape=(16, 16, 3)),
            layers.Rescaling(1.0 / 255),
            layers.RandomFlip("horizontal"),
            layers.RandomRotation(0.1),
            layers.Conv2D(
                filters=hp.Choice("filters", [4, 8]),
                kernel_size=hp.Choice("kernel", [3, 5]),
                activation="relu",
                padding="same",
            ),
            layers.MaxPooling2D(),
            layers.Conv2D(8, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(hp.Float("dropout", 0.2, 0.5)),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


tuner = kt.RandomSearch(build_cnn, "val_accuracy", max_trials=3, seed=3, directory="cnn")
tuner.search(train_ds, validation_data=val_ds, epochs=2, verbose=0)
best_model = tuner.get_best_models()[0]
print("RESULT", best_model.predict(val_ds, verbose=0).shape, len(tuner.oracle.trials))
