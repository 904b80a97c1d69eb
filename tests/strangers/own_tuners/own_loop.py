# HyperModel.fit with a loop on GradientTape, callbacks called by hand; it returns a number.
import keras_tuner
import numpy as np
import tensorflow as tf
from tensorflow import keras

x_train = np.random.RandomState(0).rand(80, 6).astype("float32")
y_train = x_train[:, :1] * 2


class MyHyperModel(keras_tuner.HyperModel):
    def build(self, hp):
        inputs = keras.Input(shape=(6,))
        outputs = keras.layers.Dense(hp.Int("units", 4, 12, step=4), activation="relu")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(outputs))

    def fit(self, hp, model, x, y, validation_data, callbacks=None, **kwargs):
        batch_size = hp.Int("batch_size", 16, 32, step=16)
        train_ds = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
        validation = tf.data.Dataset.from_tensor_slices(validation_data).batch(batch_size)
        optimizer = keras.optimizers.Adam(hp.Float("learning_rate", 1e-4, 1e-2, sampling="log"))
        loss_fn = keras.losses.MeanSquaredError()
        metric = keras.metrics.Mean()

        @tf.function
        def run_train_step(images, labels):
            with tf.GradientTape() as tape:
                loss = loss_fn(labels, model(images))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

        for callback in callbacks:
            callback.set_model(model)
        best = float("inf")
        for epoch in range(2):
            for images, labels in train_ds:
                run_train_step(images, labels)
            for images, labels in validation:
                metric.update_state(loss_fn(labels, model(images)))
            epoch_loss = float(metric.result().numpy())
            for callback in callbacks:
                callback.on_epoch_end(epoch, logs={"my_metric": epoch_loss})
            metric.reset_state()
            best = min(best, epoch_loss)
        return best


tuner = keras_tuner.RandomSearch(
    objective=keras_tuner.Objective("my_metric", "min"),
    max_trials=2,
    hypermodel=MyHyperModel(),
    directory="results",
    project_name="custom_training",
    overwrite=True,
    seed=3,
)
tuner.search(x=x_train, y=y_train, validation_data=(x_train, y_train))
print("RESULT", sorted(tuner.get_best_hyperparameters()[0].values))
