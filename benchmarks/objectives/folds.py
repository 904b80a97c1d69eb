# Each trial trains three folds and returns their mean. The script sets seeds and trial attributes.
import os

import keras
import numpy as np
import optuna
from optuna.samplers import TPESampler
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold

N_TRIALS = int(os.environ.get("N_TRIALS", "24"))


def build_model(trial):
    inputs = keras.layers.Input((64,), name="x")
    hidden = keras.layers.Dense(trial.suggest_categorical("units", [32, 64]))(inputs)
    if trial.suggest_categorical("act", ["relu", "leaky_relu"]) == "relu":
        hidden = keras.layers.ReLU()(hidden)
    else:
        hidden = keras.layers.LeakyReLU(0.1)(hidden)
    hidden = keras.layers.Dropout(trial.suggest_float("dropout", 0.05, 0.5))(hidden)
    outputs = keras.layers.Dense(10, activation="softmax")(hidden)
    model = keras.Model(inputs, outputs)
    rate = trial.suggest_float("lr", 1e-4, 1e-2, log=True)
    model.compile(
        keras.optimizers.Adam(rate, beta_1=trial.suggest_float("mom", 0.85, 0.99)),
        loss="categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def objective(trial):
    keras.utils.set_random_seed(trial.number)
    x, y = load_digits(return_X_y=True)
    x = x.astype("float32") / 16
    losses, accuracies = [], []
    for train, valid in StratifiedKFold(3, shuffle=True, random_state=0).split(x, y):
        keras.backend.clear_session()
        model = build_model(trial)
        history = model.fit(
            x[train],
            keras.utils.to_categorical(y[train], 10),
            validation_data=(x[valid], keras.utils.to_categorical(y[valid], 10)),
            epochs=15,
            batch_size=32,
            callbacks=[
                keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True)
            ],
            verbose=0,
        )
        best = np.argmin(history.history["val_loss"])
        losses.append(history.history["val_loss"][best])
        accuracies.append(history.history["val_accuracy"][best])
    trial.set_user_attr("mean_val_accuracy", float(np.mean(accuracies)))
    return float(np.mean(losses))


study = optuna.create_study(
    study_name="folds",
    direction="minimize",
    sampler=TPESampler(seed=42, n_startup_trials=10, multivariate=True),
    storage="sqlite:///folds.db",
    load_if_exists=True,
)
study.optimize(objective, n_trials=N_TRIALS)
print("best:", study.best_value, study.best_trial.user_attrs["mean_val_accuracy"])
