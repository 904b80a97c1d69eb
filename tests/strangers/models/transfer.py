# A network that was trained before, frozen, made once outside of the builder.
import numpy as np
import tensorflow as tf
from tensorflow import keras
import keras_tuner as kt

rng = np.random.RandomState(0)
images = rng.rand(60, 32, 32, 3).astype("float32")
labels = rng.randint(0, 2, 60)
base_model = keras.Sequential(
    [keras.Input((32, 32, 3)), keras.layers.Conv2D(4, 3, strides=4), keras.layers.ReLU()]
)
base_model.trainable = False


def build_model(hp):
    inputs = tf.keras.Input(shape=(32, 32, 3))
    x = base_model(inputs, training=False)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dense(hp.Int("units", 4, 8, step=4), activation="relu")(x)
    x = keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5, step=0.2))(x)
    outputs = keras.layers.Dense(1)(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Choice("learning_rate", [1e-3, 1e-4])),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)],
    )
    return model


before = [w.copy() for w in base_model.get_weights()]
tuner = kt.RandomSearch(build_model, "val_accuracy", max_trials=3, directory="tl", seed=0)
tuner.search(images, labels, epochs=2, validation_split=0.2)
kept = all(np.array_equal(a, b) for a, b in zip(before, base_model.get_weights()))
print("RESULT", kept, len(tuner.get_best_models()[0].layers))
