# Like Optuna's example keras_integration: one to three layers, one-hot labels, pruning callback.
import os

import optuna

import keras
from keras.layers import Dense, Dropout
from keras.models import Sequential
from keras.utils import to_categorical
from mnist import load_data
from keras_pruning import KerasPruningCallback

N_TRIALS = int(os.environ.get("N_TRIALS", "24"))


def create_model(trial):
    model = Sequential()
    for i in range(trial.suggest_int("n_layers", 1, 3)):
        units = trial.suggest_int(f"n_units_l{i}", 4, 128, log=True)
        model.add(Dense(units, activation="relu"))
        model.add(Dropout(rate=trial.suggest_float(f"dropout_l{i}", 0.2, 0.5)))
    model.add(Dense(10, activation="softmax"))
    rate = trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True)
    model.compile(
        loss="categorical_crossentropy",
        optimizer=keras.optimizers.RMSprop(learning_rate=rate),
        metrics=["accuracy"],
    )
    return model


def objective(trial):
    keras.backend.clear_session()
    (x_train, y_train), (x_valid, y_valid) = load_data()
    x_train = x_train.reshape(60000, 784)[:3000].astype("float32") / 255
    x_valid = x_valid.reshape(10000, 784)[:1000].astype("float32") / 255
    y_train = to_categorical(y_train[:3000], 10)
    y_valid = to_categorical(y_valid[:1000], 10)

    model = create_model(trial)
    model.fit(
        x_train,
        y_train,
        batch_size=128,
        callbacks=[KerasPruningCallback(trial, "val_accuracy")],
        epochs=20,
        validation_data=(x_valid, y_valid),
        verbose=1,
    )
    score = model.evaluate(x_valid, y_valid, verbose=0)
    return score[1]


if __name__ == "__main__":
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(),
    )
    study.optimize(objective, n_trials=N_TRIALS)
    pruned = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.PRUNED])
    print("pruned:", len(pruned), "best:", study.best_trial.value)
