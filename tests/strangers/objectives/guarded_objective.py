# An objective that returns infinity for errors, keeps its best model in a global, and clears.
import gc
import logging
import numpy as np
import optuna
import tensorflow as tf
from tensorflow import keras

rng = np.random.RandomState(0)
x = rng.rand(160, 6, 2)
y = (x.mean(axis=(1, 2)) > 0.5).astype(int)
best_auc, best_model = -1.0, None
logger = logging.getLogger("optuna")
logger.addHandler(logging.FileHandler("study.log", "w"))


def objective(trial, ratio, epochs):
    global best_auc, best_model
    keras.backend.clear_session()
    try:
        layers = trial.suggest_int("cnn_layers_num", 1, 3)
        if layers == 3 and trial.suggest_int("kernel_size", 2, 3) == 3:
            raise ValueError("too small for that")
        model = keras.Sequential([keras.layers.Input((6, 2))])
        for _ in range(layers):
            model.add(keras.layers.Conv1D(4, 2, activation="relu"))
        model.add(keras.layers.Flatten())
        model.add(keras.layers.Dense(1, activation="sigmoid"))
        lr = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
        model.compile(
            keras.optimizers.Adam(lr),
            "binary_crossentropy",
            metrics=[keras.metrics.AUC(curve="PR", name="auc")],
        )
        history = model.fit(
            x,
            y,
            validation_split=0.25,
            epochs=epochs,
            batch_size=trial.suggest_categorical("batch_size", [16, 32]),
            class_weight={0: 1, 1: ratio},
            callbacks=[keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)],
            verbose=0,
        )
        val_auc = history.history["val_auc"][np.argmax(history.history["val_auc"])]
        if val_auc > best_auc:
            best_auc, best_model = val_auc, model
            model.save("best_model.keras")
        trial.set_user_attr("epochs", len(history.history["val_auc"]))
        return val_auc
    except ValueError as error:
        print(f"Trial failed: {error}")
        return float("-inf")
    finally:
        gc.collect()


study = optuna.create_study(
    direction="maximize", sampler=optuna.samplers.TPESampler(seed=7, n_startup_trials=3)
)
study.enqueue_trial({"cnn_layers_num": 3, "kernel_size": 3})
study.optimize(lambda trial: objective(trial, 3, 2), n_trials=5)
frame = study.trials_dataframe()
print(
    "RESULT",
    len(frame),
    study.trials[0].value,
    best_model.predict(x[:2], verbose=0).shape,
    sorted(study.best_params)[:2],
)
