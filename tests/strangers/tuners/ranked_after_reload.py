# A folder that is opened again; trials are sorted, their models loaded, JSON written.
import json
import keras_tuner as kt
import numpy as np
from tensorflow import keras

rng = np.random.RandomState(7)
x, y = rng.rand(100, 5), rng.rand(100, 1)
SETTINGS = {
    "max_epochs": 4,
    "factor": 2,
    "directory": "calibration",
    "project_name": "rmse",
    "seed": 3,
}


def build(hp):
    model = keras.Sequential([keras.layers.Input((5,))])
    model.add(
        keras.layers.Dense(
            hp.Int("units", 4, 12, step=4), activation=hp.Choice("act", ["relu", "tanh", "selu"])
        )
    )
    if hp.Boolean("batch_norm"):
        model.add(keras.layers.BatchNormalization())
    model.add(keras.layers.Dense(1))
    model.compile("adam", "mse", metrics=[keras.metrics.RootMeanSquaredError(name="rmse")])
    return model


first = kt.Hyperband(build, objective=kt.Objective("val_rmse", direction="min"), **SETTINGS)
first.search(x, y, epochs=4, validation_split=0.2, verbose=0)

tuner = kt.Hyperband(build, objective=kt.Objective("val_rmse", direction="min"), **SETTINGS)
tuner.reload()
all_trials = tuner.oracle.get_best_trials(num_trials=len(tuner.oracle.trials))
completed = [t for t in all_trials if t.status == "COMPLETED"]
completed.sort(key=lambda t: t.metrics.get_best_value("val_rmse"))
top = completed[: max(1, int(len(completed) * 0.5))]
for rank, trial in enumerate(top):
    with open(f"rank_{rank:03d}_trial_{trial.trial_id}.json", "w") as file:
        json.dump({**trial.hyperparameters.values, "score": trial.score}, file, indent=2)
model = tuner.load_model(top[0])
history = top[0].metrics.get_history("val_rmse")
last = [t.metrics.get_last_value("val_rmse") is not None for t in top]
for trial_id, trial in list(tuner.oracle.trials.items())[:2]:
    trial.summary()
print("RESULT", len(all_trials), len(completed), model.predict(x[:4], verbose=0).shape, all(last))
print(
    "RESULT",
    len(history) >= 1,
    len(first.oracle.trials) == len(tuner.oracle.trials),
    sorted(top[0].hyperparameters.values),
)
