# An autoencoder with its own loss function. Each trial saves its best model to its own file.
import os

import keras
import numpy as np
import optuna
from keras import layers, ops, optimizers
from keras_pruning import KerasPruningCallback
from sklearn.datasets import load_digits

N_TRIALS = int(os.environ.get("N_TRIALS", "24"))
x = load_digits().data.astype("float32") / 16
x_train, x_val = x[:1300], x[1300:]
os.makedirs("models", exist_ok=True)


def norm_error(y_true, y_pred):
    return ops.mean(ops.norm(y_true - y_pred, axis=-1))


def create_model(units, dropout, l2):
    inputs = keras.Input((64,))
    hidden = layers.Dense(units, "relu", kernel_regularizer=keras.regularizers.L2(l2))(inputs)
    hidden = layers.Dropout(dropout)(hidden)
    code = layers.Dense(8, name="code")(hidden)
    hidden = layers.Dense(units, "relu", kernel_regularizer=keras.regularizers.L2(l2))(code)
    return keras.Model(inputs, layers.Dense(64, "sigmoid")(hidden))


def objective(trial, x_train, x_val):
    units = trial.suggest_int("n_units", 16, 64, step=16)
    dropout = trial.suggest_float("dropout_rate", 0.1, 0.5, step=0.05)
    l2 = trial.suggest_float("l2", 1e-6, 1e-3, log=True)
    path = f"models/model_{trial.number}.keras"
    trial.set_user_attr("model_path", path)
    callbacks = [
        keras.callbacks.ModelCheckpoint(path, save_best_only=True, monitor="val_loss"),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.8, patience=5, min_lr=1e-5),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=8),
        KerasPruningCallback(trial, "val_loss"),
    ]
    model = create_model(units, dropout, l2)
    model.compile(optimizer=optimizers.Adam(learning_rate=1e-3), loss="mse", metrics=[norm_error])
    model.fit(
        x_train,
        x_train,
        validation_data=(x_val, x_val),
        epochs=20,
        batch_size=64,
        shuffle=True,
        callbacks=callbacks,
        verbose=0,
    )
    return model.evaluate(x_val, x_val, verbose=0)[0]


if __name__ == "__main__":
    np.random.seed(50)
    study = optuna.create_study(
        direction="minimize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(),
    )
    study.optimize(lambda trial: objective(trial, x_train, x_val), n_trials=N_TRIALS)
    best = keras.models.load_model(
        study.best_trial.user_attrs["model_path"], custom_objects={"norm_error": norm_error}
    )
    print("best:", study.best_value, best.count_params())
