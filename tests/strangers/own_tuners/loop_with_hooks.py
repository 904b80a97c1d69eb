# Keras' guide to own tuners: a loop on GradientTape in run_trial that calls the hooks of the tuner.
import keras_tuner as kt
import numpy as np
import tensorflow as tf

x_train = np.random.RandomState(0).rand(60, 6, 6, 1).astype("float32")
y_train = np.random.RandomState(1).randint(0, 3, 60).astype(np.int64)


def build_model(hp):
    inputs = tf.keras.Input(shape=(6, 6, 1))
    x = inputs
    for i in range(hp.Int("conv_layers", 1, 2, default=1)):
        x = tf.keras.layers.Conv2D(
            hp.Int("filters_" + str(i), 2, 4, step=2), 3, padding="same", activation="relu"
        )(x)
        if hp.Choice("pooling" + str(i), ["max", "avg"]) == "max":
            x = tf.keras.layers.MaxPooling2D()(x)
        else:
            x = tf.keras.layers.AveragePooling2D()(x)
    x = tf.keras.layers.Flatten()(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(3)(x))


class MyTuner(kt.Tuner):
    def run_trial(self, trial, train_ds, *args, **kwargs):
        hp = trial.hyperparameters
        train_ds = train_ds.batch(hp.Int("batch_size", 20, 30, step=10, default=20))
        model = self.hypermodel.build(hp)
        optimizer = tf.keras.optimizers.Adam(
            hp.Float("learning_rate", 1e-4, 1e-2, sampling="log", default=1e-3)
        )
        epoch_loss_metric = tf.keras.metrics.Mean()

        @tf.function
        def run_train_step(data):
            images, labels = data
            with tf.GradientTape() as tape:
                logits = model(images)
                loss = tf.keras.losses.sparse_categorical_crossentropy(
                    labels, logits, from_logits=True
                )
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            epoch_loss_metric.update_state(loss)
            return tf.reduce_mean(loss)

        for epoch in range(2):
            self.on_epoch_begin(trial, model, epoch, logs={})
            for batch, data in enumerate(train_ds):
                self.on_batch_begin(trial, model, batch, logs={})
                batch_loss = float(run_train_step(data))
                self.on_batch_end(trial, model, batch, logs={"loss": batch_loss})
            epoch_loss = epoch_loss_metric.result().numpy()
            self.on_epoch_end(trial, model, epoch, logs={"loss": epoch_loss})
            epoch_loss_metric.reset_state()
        return {"loss": float(epoch_loss)}


tuner = MyTuner(
    oracle=kt.oracles.BayesianOptimizationOracle(
        objective=kt.Objective("loss", "min"), max_trials=2, seed=1
    ),
    hypermodel=build_model,
    directory="results",
    project_name="custom_training",
)
tuner.search(train_ds=tf.data.Dataset.from_tensor_slices((x_train, y_train)))
best_hps = tuner.get_best_hyperparameters()[0]
print("RESULT", sorted(best_hps.values)[:3], len(tuner.oracle.trials))
