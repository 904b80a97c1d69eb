# A GRU with two outputs and labels in a dictionary. Each trial saves its model.
import os

import keras
import numpy as np
import optuna

N_TRIALS = int(os.environ.get("N_TRIALS", "24"))
rng = np.random.default_rng(0)
X = rng.normal(size=(600, 10, 4)).astype("float32")
y_value = X[:, -3:, 0].mean(axis=1)
y_goal = (X[:, :, 1].sum(axis=1) > 1).astype("float32")


def build_model(shape, units, dropout, dense_units, activation, rate):
    inputs = keras.layers.Input(shape)
    hidden = keras.layers.GRU(units, dropout=dropout)(inputs)
    hidden = keras.layers.Dense(dense_units, activation=activation)(hidden)
    goal = keras.layers.Dense(1, activation="sigmoid", name="goal")(hidden)
    value = keras.layers.Dense(1, name="value")(hidden)
    model = keras.Model(inputs, {"goal": goal, "value": value})
    model.compile(
        keras.optimizers.Adam(rate),
        loss={"goal": "binary_crossentropy", "value": "mse"},
        loss_weights={"goal": 0.5, "value": 1.0},
        metrics={"goal": ["accuracy"], "value": ["mse"]},
    )
    return model


def objective(trial):
    model = build_model(
        X.shape[1:],
        trial.suggest_categorical("units", [16, 32]),
        trial.suggest_float("dropout", 0.0, 0.4),
        trial.suggest_int("dense_units", 8, 24, step=8),
        trial.suggest_categorical("activation", ["relu", "tanh"]),
        trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
    )
    history = model.fit(
        X[:450],
        {"goal": y_goal[:450], "value": y_value[:450]},
        validation_data=(X[450:], {"goal": y_goal[450:], "value": y_value[450:]}),
        epochs=10,
        batch_size=32,
        verbose=0,
    )
    os.makedirs("saved", exist_ok=True)
    model.save(f"saved/trial_{trial.number}.keras")
    trial.set_user_attr("model_name", f"trial_{trial.number}")
    return np.sqrt(history.history["val_value_mse"][-1])


study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(objective, n_trials=N_TRIALS)
print("best:", study.best_value)
