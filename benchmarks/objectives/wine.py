# Like Optuna's example keras_mlflow: a regression on few examples, and a callback that logs.
import csv
import os

import optuna

from keras.backend import clear_session
from keras.layers import Dense
from keras.models import Sequential
from keras.optimizers import SGD
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

N_TRIALS = int(os.environ.get("N_TRIALS", "24"))


def create_model(n_features, trial):
    model = Sequential()
    model.add(
        Dense(
            n_features,
            activation="relu",
            kernel_initializer="random_normal",
            input_shape=(n_features,),
        )
    )
    model.add(Dense(16, activation="relu", kernel_initializer="random_normal"))
    model.add(Dense(16, activation="relu", kernel_initializer="random_normal"))
    model.add(Dense(1, kernel_initializer="random_normal", activation="linear"))
    optimizer = SGD(
        learning_rate=trial.suggest_float("lr", 1e-5, 1e-1, log=True),
        momentum=trial.suggest_float("momentum", 0.0, 1.0),
    )
    model.compile(loss="mean_squared_error", optimizer=optimizer)
    return model


def log_trial(study, trial):
    with open("trials.csv", "a", newline="") as file:
        csv.writer(file).writerow([trial.number, trial.value, *trial.params.values()])


def objective(trial):
    clear_session()
    x, y = load_wine(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    x_train, x_valid, y_train, y_valid = train_test_split(x, y, test_size=0.25, random_state=42)
    model = create_model(x.shape[1], trial)
    model.fit(x_train, y_train, shuffle=True, batch_size=16, epochs=100, verbose=False)
    return model.evaluate(x_valid, y_valid, verbose=0)


if __name__ == "__main__":
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=N_TRIALS, timeout=600, callbacks=[log_trial])
    print("Number of finished trials:", len(study.trials))
    print("Best trial:", study.best_trial.value, study.best_trial.params)
