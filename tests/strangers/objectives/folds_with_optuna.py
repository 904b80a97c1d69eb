# An objective that trains on folds and returns their mean, kept in a database.
import numpy as np
import optuna
from tensorflow import keras
from sklearn.model_selection import KFold

rng = np.random.RandomState(0)
X = rng.rand(90, 6)
Y = X @ rng.rand(6)


def create_model(trial):
    model = keras.Sequential()
    model.add(keras.layers.Dense(trial.suggest_int("units", 4, 12, step=4), activation="relu"))
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(trial.suggest_float("lr", 1e-3, 1e-1, log=True)), "mse")
    return model


def objective(trial):
    errors = []
    for train, test in KFold(3, shuffle=True, random_state=0).split(X):
        model = create_model(trial)
        model.fit(X[train], Y[train], epochs=2, batch_size=16, verbose=0)
        errors.append(model.evaluate(X[test], Y[test], verbose=0))
    return np.mean(errors)


study = optuna.create_study(
    study_name="folds",
    storage="sqlite:///folds.db",
    load_if_exists=True,
    sampler=optuna.samplers.TPESampler(seed=2),
)
study.optimize(objective, n_trials=3, show_progress_bar=False)
loaded = optuna.load_study(study_name="folds", storage="sqlite:///folds.db")
print("RESULT", len(loaded.trials), sorted(loaded.best_params))
