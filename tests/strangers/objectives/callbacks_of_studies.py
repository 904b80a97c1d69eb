# Callbacks of the study, a grid, several jobs, results in a file, then the best is trained.
import json
import numpy as np
import optuna
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from tensorflow import keras

optuna.logging.set_verbosity(optuna.logging.WARNING)
X, y = load_iris(return_X_y=True)
X_train, X_val, y_train, y_val = train_test_split(X, y, stratify=y, random_state=1)
space = {"units": [4, 8], "optimizer": ["adam", "rmsprop"], "epochs": [1]}
seen = []


def save_best(study, trial):
    seen.append(trial.number)
    if study.best_trial.number == trial.number:
        open("best.json", "w").write(json.dumps(study.best_params))


def objective(trial):
    model = keras.Sequential()
    model.add(
        keras.layers.Dense(trial.suggest_categorical("units", space["units"]), activation="relu")
    )
    model.add(keras.layers.Dense(3, activation="softmax"))
    model.compile(
        trial.suggest_categorical("optimizer", space["optimizer"]),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(
        X_train,
        y_train,
        epochs=trial.suggest_categorical("epochs", space["epochs"]),
        batch_size=16,
        verbose=0,
    )
    loss, accuracy = model.evaluate(X_val, y_val, verbose=0)
    predicted = model.predict(X_val, verbose=0).argmax(axis=1)
    trial.set_user_attr("right", int((predicted == y_val).sum()))
    return accuracy


study = optuna.create_study(
    study_name="iris", direction="maximize", sampler=optuna.samplers.GridSampler(space, seed=1)
)
study.optimize(objective, n_trials=4, n_jobs=2, callbacks=[save_best], show_progress_bar=False)
model = keras.Sequential(
    [
        keras.layers.Dense(study.best_params["units"], activation="relu"),
        keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile(study.best_params["optimizer"], "sparse_categorical_crossentropy")
model.fit(X_train, y_train, verbose=0)
print(
    "RESULT",
    sorted(seen),
    sorted(json.load(open("best.json"))),
    all("right" in t.user_attrs for t in study.trials),
)
print("RESULT", len({tuple(sorted(t.params.items())) for t in study.trials}))
