# on_epoch_end of a tuner that stops the model at a goal, and on_trial_end that writes a table.
import csv
import os
import numpy as np
import keras_tuner as kt
from tensorflow import keras

rng = np.random.RandomState(3)
x = rng.rand(100, 6)
y = (x.sum(axis=1) > 3).astype("float32")


class GoalTuner(kt.RandomSearch):
    def __init__(self, hypermodel, goal, **kwargs):
        super().__init__(hypermodel, **kwargs)
        self.goal = goal
        self.reached = []

    def on_epoch_end(self, trial, model, epoch, logs=None):
        super().on_epoch_end(trial, model, epoch, logs)
        if logs["val_loss"] < self.goal:
            self.reached.append(trial.trial_id)
            model.stop_training = True

    def on_trial_end(self, trial):
        with open(os.path.join(self.project_dir, "table.csv"), "a") as file:
            csv.writer(file).writerow([trial.trial_id, trial.hyperparameters.get("units")])
        super().on_trial_end(trial)


def build(hp):
    model = keras.Sequential(
        [
            keras.layers.Dense(hp.Int("units", 4, 16, step=4), activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(hp.Choice("lr", [0.01, 0.001])),
        "binary_crossentropy",
        metrics=["acc"],
    )
    return model


tuner = GoalTuner(
    build, 100.0, objective="val_acc", max_trials=4, seed=2, directory="goal", project_name="one"
)
tuner.search(x, y, epochs=5, validation_split=0.2, verbose=0)
rows = list(csv.reader(open(os.path.join(tuner.project_dir, "table.csv"))))
steps = {trial.best_step for trial in tuner.oracle.trials.values()}
print("RESULT", len(tuner.reached), sorted(row[0] for row in rows), steps)
