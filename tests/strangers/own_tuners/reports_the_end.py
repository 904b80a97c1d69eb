# Hyperband by its oracle; run_trial trains once, reports the last accuracy and saves nothing.
import numpy as np
import kerastuner as kt
import tensorflow as tf
from tensorflow.keras.callbacks import EarlyStopping, ReduceLROnPlateau

rng = np.random.RandomState(0)
x = rng.rand(120, 10, 3).astype("float32")
y = tf.keras.utils.to_categorical((x[:, :, 0].mean(1) > 0.5).astype(int), 2)


class Model_Tuner(kt.Tuner):
    def run_trial(self, trial, trainX, trainY, testX, testY, hyperparameters, objective):
        if "batch_size" in hyperparameters.keys() and len(hyperparameters) > 0:
            bs = hyperparameters["batch_size"]
            batch_size = trial.hyperparameters.Int(
                "batch_size",
                min_value=bs["min_value"],
                max_value=bs["max_value"],
                step=bs["step"],
                default=bs["default"],
            )
        hp = trial.hyperparameters
        model = self.hypermodel.build(hp)
        callbacks = [
            EarlyStopping(monitor="val_accuracy", patience=15, verbose=1),
            ReduceLROnPlateau(
                monitor="val_accuracy", patience=10, verbose=1, factor=0.5, min_lr=1e-4
            ),
        ]
        history = model.fit(
            trainX,
            trainY,
            batch_size=batch_size,
            epochs=hyperparameters["epochs"],
            validation_data=(testX, testY),
            callbacks=callbacks,
            verbose=0,
        )
        val_acc = history.history["val_accuracy"][-1]
        self.oracle.update_trial(trial.trial_id, {objective: val_acc})


def create_model(hp):
    model = tf.keras.Sequential([tf.keras.layers.Input((10, 3))])
    for i in range(hp.Int("conv_layers", 1, 2)):
        model.add(
            tf.keras.layers.Conv1D(hp.Int("filters_" + str(i), 4, 8, step=4), 3, activation="relu")
        )
    model.add(tf.keras.layers.Flatten())
    model.add(tf.keras.layers.Dense(2, activation="softmax"))
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    return model


settings = {
    "name": "tuning",
    "epochs": 2,
    "batch_size": {"min_value": 16, "max_value": 48, "step": 16, "default": 32},
}
tuner = Model_Tuner(
    oracle=kt.oracles.Hyperband(
        objective=kt.Objective("val_accuracy", "max"), max_epochs=3, hyperband_iterations=1, seed=5
    ),
    hypermodel=create_model,
    directory="runs",
)
tuner.search_space_summary()
tuner.search(x[:90], y[:90], x[90:], y[90:], hyperparameters=settings, objective="val_accuracy")
best = tuner.get_best_hyperparameters(1)[0]
model = tuner.hypermodel.build(best)
model.fit(x, y, epochs=1, verbose=0)
print("RESULT", "batch_size" in best.values, model.count_params() > 0, len(tuner.oracle.trials) > 2)
