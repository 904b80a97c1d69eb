# Like Optuna's example keras_simple: a convolution over raw images, which each trial loads.
import os

import optuna

from keras.backend import clear_session
from keras.layers import Conv2D, Dense, Flatten, Input
from keras.models import Sequential
from keras.optimizers import RMSprop
from mnist import load_data

N_TRIALS = int(os.environ.get("N_TRIALS", "24"))


def objective(trial):
    clear_session()
    (x_train, y_train), (x_valid, y_valid) = load_data()
    x_train = x_train.reshape(-1, 28, 28, 1)[:3000].astype("float32") / 255
    x_valid = x_valid.reshape(-1, 28, 28, 1)[:1000].astype("float32") / 255
    y_train, y_valid = y_train[:3000], y_valid[:1000]

    model = Sequential()
    model.add(Input(shape=(28, 28, 1)))
    model.add(
        Conv2D(
            filters=trial.suggest_categorical("filters", [32, 64]),
            kernel_size=trial.suggest_categorical("kernel_size", [3, 5]),
            strides=trial.suggest_categorical("strides", [1, 2]),
            activation=trial.suggest_categorical("activation", ["relu", "linear"]),
        )
    )
    model.add(Flatten())
    model.add(Dense(10, activation="softmax"))
    rate = trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True)
    model.compile(
        loss="sparse_categorical_crossentropy",
        optimizer=RMSprop(learning_rate=rate),
        metrics=["accuracy"],
    )
    model.fit(
        x_train,
        y_train,
        validation_data=(x_valid, y_valid),
        shuffle=True,
        batch_size=128,
        epochs=10,
        verbose=False,
    )
    return model.evaluate(x_valid, y_valid, verbose=0)[1]


if __name__ == "__main__":
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=N_TRIALS, timeout=600)
    print("Best trial:", study.best_trial.value, study.best_trial.params)
