# Segmentation: a small U-Net, weights of pixels as third part of a data set, a dice metric alone.
import numpy as np
import tensorflow as tf
from tensorflow import keras
import keras_tuner

rng = np.random.default_rng(2)
images = rng.random((40, 16, 16, 1)).astype("float32")
masks = (images > 0.7).astype("float32")
weights = np.where(masks == 1.0, 3.0, 1.0).astype("float32")


def dataset_of(part, batch_size):
    base = tf.data.Dataset.from_tensor_slices((images[part], masks[part], weights[part]))
    return base.shuffle(40, seed=1).batch(batch_size).prefetch(buffer_size=1)


def _dice_metric(y_true, y_pred):
    intersection = tf.reduce_sum(y_true * y_pred)
    return (2.0 * intersection + 1.0) / (tf.reduce_sum(y_true) + tf.reduce_sum(y_pred) + 1.0)


class MyHyperModel(keras_tuner.HyperModel):
    def build(self, hp: keras_tuner.HyperParameters):
        inputs = keras.Input(shape=(16, 16, 1))
        x = inputs
        if hp.Boolean("clip input", default=False):
            x = keras.layers.ReLU(max_value=0.9)(x)
        filters = hp.Choice("filters", [2, 4])
        skip = keras.layers.Conv2D(filters, 3, activation="relu", padding="same")(x)
        x = keras.layers.MaxPooling2D()(skip)
        x = keras.layers.Conv2D(filters * 2, 3, activation="relu", padding="same")(x)
        x = keras.layers.Conv2DTranspose(filters, 2, strides=2, padding="same")(x)
        x = keras.layers.Concatenate()([x, skip])
        outputs = keras.layers.Conv2D(1, 1, activation="sigmoid")(x)
        model = keras.Model(inputs, outputs)
        model.compile(
            optimizer=tf.keras.optimizers.Adam(
                learning_rate=hp.Float("learning_rate", 1e-4, 1e-2, sampling="log", default=1e-3)
            ),
            loss="binary_crossentropy",
            metrics=[_dice_metric],
            weighted_metrics=[],
        )
        return model

    def fit(self, hp, model, *args, **kwargs):
        size = hp.Int("batch_size", 8, 16, step=8)
        return model.fit(
            dataset_of(slice(0, 30), size),
            *args,
            validation_data=dataset_of(slice(30, 40), size),
            **kwargs,
        )


tuner = keras_tuner.RandomSearch(
    MyHyperModel(),
    objective=keras_tuner.Objective("val__dice_metric", "max"),
    max_trials=3,
    seed=3,
    overwrite=True,
    directory="segmentation",
    project_name="dice",
)
tuner.search_space_summary()
tuner.search(epochs=2, verbose=0)
best = tuner.get_best_models(num_models=1)[0]
print("RESULT", best.output_shape, sorted(tuner.get_best_hyperparameters()[0].values))
