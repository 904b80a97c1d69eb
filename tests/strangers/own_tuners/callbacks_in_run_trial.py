# A run_trial that sets callbacks for its parent, plots of all scores, a model saved and read again.
import os
import keras_tuner as kt
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tensorflow as tf

rng = np.random.RandomState(5)
x = {"signal": rng.rand(100, 12, 1), "position": rng.rand(100, 2)}
y = rng.randint(0, 4, 100)


class EarlyStoppingTuner(kt.RandomSearch):
    def run_trial(self, trial, *args, **kwargs):
        kwargs["callbacks"] = [
            tf.keras.callbacks.EarlyStopping(
                monitor="val_accuracy", patience=5, restore_best_weights=True
            ),
            tf.keras.callbacks.ReduceLROnPlateau(
                monitor="val_loss", factor=0.5, patience=3, min_lr=1e-6
            ),
        ]
        return super(EarlyStoppingTuner, self).run_trial(trial, *args, **kwargs)


def build(hp):
    signal = tf.keras.Input((12, 1), name="signal")
    position = tf.keras.Input((2,), name="position")
    h = tf.keras.layers.Conv1D(hp.Int("filters", 4, 8, step=4), 3, activation="relu")(signal)
    h = tf.keras.layers.GlobalAveragePooling1D()(h)
    h = tf.keras.layers.Concatenate()([h, position])
    h = tf.keras.layers.Dense(hp.Int("dense", 4, 12, step=4), activation="relu")(h)
    model = tf.keras.Model([signal, position], tf.keras.layers.Dense(4, activation="softmax")(h))
    model.compile(
        tf.keras.optimizers.Adam(hp.Choice("lr", [1e-2, 1e-3])),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


tuner = EarlyStoppingTuner(
    build,
    objective="val_accuracy",
    max_trials=3,
    executions_per_trial=1,
    seed=6,
    directory="live",
    project_name="poi",
)
weights = np.where(y == 0, 2.0, 1.0)
tuner.search(x, y, sample_weight=weights, epochs=2, batch_size=20, validation_split=0.2, verbose=0)
trials = tuner.oracle.get_best_trials(num_trials=80)
table = pd.DataFrame([{**t.hyperparameters.values, "score": t.score} for t in trials])
plt.plot(table["score"], marker="o")
plt.savefig("scores.png")
best = tuner.get_best_models(num_models=1)[0]
best.save("best.keras")
again = tf.keras.models.load_model("best.keras")
same = np.allclose(again.predict(x, verbose=0), best.predict(x, verbose=0), atol=1e-5)
print("RESULT", sorted(table.columns), len(table), same, os.path.exists("scores.png"))
