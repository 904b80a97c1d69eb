# fit of a hypermodel in two stages: the head alone, then all with a smaller rate; a log in itself.
import keras_tuner as kt
import numpy as np
import tensorflow as tf
from tensorflow import keras

rng = np.random.default_rng(11)
images = rng.random((120, 10, 10, 3)).astype("float32")
labels = (images.mean(axis=(1, 2, 3)) > 0.5).astype("float32")


def dataset(x, y, batch_size, training):
    ds = tf.data.Dataset.from_tensor_slices((x, y))
    if training:
        ds = ds.shuffle(len(x), seed=2)
    return ds.batch(batch_size).prefetch(tf.data.AUTOTUNE)


class TwoStages(kt.HyperModel):
    def __init__(self):
        super().__init__()
        self.finished = []

    def build(self, hp):
        base = keras.Sequential(
            [
                keras.layers.Input((10, 10, 3)),
                keras.layers.Conv2D(4, 3, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.GlobalAveragePooling2D(),
            ],
            name="base",
        )
        base.trainable = False
        inputs = keras.Input((10, 10, 3))
        x = base(inputs, training=False)
        x = keras.layers.Dense(hp.Int("units", 4, 8, step=4), activation="relu")(x)
        x = keras.layers.Dropout(hp.Float("dropout", 0.1, 0.3, step=0.1))(x)
        model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))
        model.compile(
            keras.optimizers.Adam(hp.Choice("lr", [1e-2, 1e-3])),
            loss="binary_crossentropy",
            metrics=["accuracy"],
        )
        return model

    def fit(self, hp, model, x, y, validation_data, **kwargs):
        batch_size = hp.Choice("batch_size", [16, 32])
        train = dataset(x, y, batch_size, True)
        val = dataset(*validation_data, batch_size, False)
        model.fit(train, validation_data=val, epochs=2, verbose=0)
        model.get_layer("base").trainable = True
        model.compile(
            keras.optimizers.Adam(hp.get("lr") / 10),
            loss="binary_crossentropy",
            metrics=["accuracy"],
        )
        history = model.fit(train, validation_data=val, **kwargs)
        self.finished.append(max(history.history["val_accuracy"]))
        return history


hypermodel = TwoStages()
tuner = kt.RandomSearch(
    hypermodel,
    objective="val_accuracy",
    max_trials=4,
    seed=5,
    directory="stages",
    project_name="finetune",
    overwrite=True,
)
tuner.search(
    images[:90],
    labels[:90],
    validation_data=(images[90:], labels[90:]),
    epochs=2,
    callbacks=[keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1)],
    verbose=0,
)
best = tuner.get_best_models(1)[0]
print("RESULT", len(hypermodel.finished), best.output_shape, best.get_layer("base").trainable)
print("RESULT", sorted(tuner.get_best_hyperparameters()[0].values))
