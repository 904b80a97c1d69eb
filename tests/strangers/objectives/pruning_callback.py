# TFKerasPruningCallback, early stopping and a lower rate; class weights; F1 of scikit-learn.
import numpy as np
import optuna
import tensorflow as tf
from sklearn.metrics import f1_score

rng = np.random.RandomState(3)
X, y = rng.rand(160, 6).astype("float32"), rng.randint(0, 2, 160)
X_train, X_val, y_train, y_val = X[:120], X[120:], y[:120], y[120:]
optuna.logging.set_verbosity(optuna.logging.WARNING)


def objective(trial):
    model = tf.keras.Sequential([tf.keras.layers.Input(shape=(6,))])
    for i in range(trial.suggest_int("n_layers", 1, 2)):
        model.add(tf.keras.layers.Dense(trial.suggest_int(f"units_{i}", 4, 12), activation="relu"))
        model.add(tf.keras.layers.Dropout(trial.suggest_float("dropout", 0.1, 0.4)))
    model.add(tf.keras.layers.Dense(1, activation="sigmoid"))
    model.compile(
        optimizer=tf.keras.optimizers.Adam(trial.suggest_float("lr", 1e-4, 1e-2, log=True)),
        loss="binary_crossentropy",
        metrics=["accuracy"],
    )
    counts = np.bincount(y_train)
    weights = {0: len(y_train) / (2 * counts[0]), 1: len(y_train) / (2 * counts[1])}
    callbacks = [
        tf.keras.callbacks.EarlyStopping(
            monitor="val_accuracy", patience=5, restore_best_weights=True
        ),
        tf.keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=3),
        optuna.integration.TFKerasPruningCallback(trial, "val_accuracy"),
    ]
    model.fit(
        X_train,
        y_train,
        epochs=4,
        batch_size=trial.suggest_categorical("batch_size", [16, 32]),
        validation_data=(X_val, y_val),
        class_weight=weights,
        callbacks=callbacks,
        verbose=0,
    )
    loss, accuracy = model.evaluate(X_val, y_val, verbose=0)
    f1 = f1_score(y_val, (model.predict(X_val) > 0.5).astype(int), zero_division=0)
    trial.set_user_attr("val_loss", float(loss))
    return 0.5 * accuracy + 0.5 * f1


study = optuna.create_study(
    direction="maximize",
    sampler=optuna.samplers.TPESampler(seed=1),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=1),
)
study.optimize(objective, n_trials=5)
done = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
print("RESULT", len(study.trials), len(done) >= 1, 0.0 <= study.best_value <= 1.0)
print("RESULT", sorted(set(study.best_params) - {"units_1"}), "val_loss" in done[0].user_attrs)
