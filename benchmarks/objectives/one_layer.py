# Like Optuna's example tfkeras_integration: wide layers, two callbacks, the last epoch's value.
import os

import optuna

import keras
from mnist import load_data
from keras_pruning import KerasPruningCallback

N_TRIALS = int(os.environ.get("N_TRIALS", "24"))
(x_train, y_train), (x_eval, y_eval) = load_data()


def create_model(trial):
    rate = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    momentum = trial.suggest_float("momentum", 0.0, 1.0)
    units = trial.suggest_categorical("units", [32, 64, 128, 256, 512])
    model = keras.Sequential()
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(units=units, activation=keras.activations.relu))
    model.add(keras.layers.Dense(10, activation=keras.activations.softmax))
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=rate, momentum=momentum, nesterov=True),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def objective(trial):
    keras.backend.clear_session()
    monitor = "val_accuracy"
    model = create_model(trial)
    callbacks = [
        keras.callbacks.EarlyStopping(patience=3),
        KerasPruningCallback(trial, monitor),
    ]
    history = model.fit(
        x_train[:3000].astype("float32") / 255,
        y_train[:3000],
        batch_size=128,
        epochs=20,
        validation_data=(x_eval[:1000].astype("float32") / 255, y_eval[:1000]),
        callbacks=callbacks,
    )
    return history.history[monitor][-1]


def main():
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
    )
    study.optimize(objective, n_trials=N_TRIALS, timeout=600)
    print("Best trial:", study.best_trial.value, study.best_trial.params)
    return study


if __name__ == "__main__":
    study = main()
