# All trials share one EarlyStopping and one list of metrics. Functions of Optuna 2, and a database.
import os

import keras
import optuna
from keras.layers import BatchNormalization, Dense, Dropout
from keras.models import Sequential
from keras_pruning import KerasPruningCallback
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler

N_TRIALS = int(os.environ.get("N_TRIALS", "24"))
x, y = load_breast_cancer(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    MinMaxScaler().fit_transform(x), y, test_size=0.3, random_state=1
)
METRICS = [keras.metrics.AUC(name="AUC")]
early_stopping = keras.callbacks.EarlyStopping(
    monitor="val_AUC", patience=5, mode="max", restore_best_weights=True
)


def objective(trial):
    params = {
        "dropout": trial.suggest_float("dropout", 0.0, 0.5),
        "hidden": trial.suggest_int("hidden", 1, 2),
        "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
    }
    model = Sequential()
    model.add(Dense(units=x_train.shape[1], activation="relu"))
    for i in range(params["hidden"]):
        model.add(BatchNormalization(epsilon=0.01))
        model.add(Dropout(params["dropout"]))
        model.add(Dense(units=trial.suggest_int(f"units_{i}", 20, 100), activation="relu"))
    model.add(Dense(units=1, activation="sigmoid"))
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=params["lr"], clipnorm=1.0),
        loss="binary_crossentropy",
        metrics=METRICS,
    )
    model.fit(
        x_train,
        y_train,
        batch_size=trial.suggest_categorical("batch_size", [32, 64, 128]),
        epochs=20,
        callbacks=[early_stopping, KerasPruningCallback(trial, "val_AUC")],
        validation_data=(x_test, y_test),
        verbose=0,
    )
    return roc_auc_score(y_test, model.predict(x_test, verbose=0))


def main():
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_warmup_steps=1, n_min_trials=5),
        study_name="networks",
        storage="sqlite:///networks.db",
        load_if_exists=True,
    )
    study.optimize(objective, n_trials=N_TRIALS, n_jobs=1)
    return study


if __name__ == "__main__":
    study = main()
    print("best:", study.best_value)
