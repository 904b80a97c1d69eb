# An objective that writes each trial to a list and a CSV file, and keeps the best network so far.
import csv
import os
import time

import numpy as np
import optuna
import pandas as pd
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from tensorflow.keras import layers, models

digits = load_digits()
X = (digits.images / 16.0).astype("float32")[:400, ..., None]
X_train, X_test, y_train, y_test = train_test_split(
    X, digits.target[:400], test_size=0.25, random_state=42, stratify=digits.target[:400]
)
results = []
best_f1 = 0.0
best_model = None
EPOCHS = 3


def create_model(trial):
    model = models.Sequential()
    model.add(layers.Input(shape=(8, 8, 1)))
    for i in range(trial.suggest_int("n_conv", 1, 2)):
        filters = trial.suggest_categorical(f"filters_{i}", [4, 8])
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D(2))
    model.add(layers.Flatten())
    model.add(layers.Dropout(trial.suggest_float("dropout", 0.0, 0.4)))
    model.add(layers.Dense(10, activation="softmax"))
    model.compile(
        optimizer=tf.keras.optimizers.Adam(trial.suggest_float("lr", 1e-4, 1e-2, log=True)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def objective(trial):
    global best_f1, best_model
    tf.keras.backend.clear_session()
    start = time.time()
    model = create_model(trial)
    early_stopping = tf.keras.callbacks.EarlyStopping(
        monitor="val_loss", patience=2, restore_best_weights=True
    )
    history = model.fit(
        X_train,
        y_train,
        validation_split=0.2,
        epochs=EPOCHS,
        batch_size=trial.suggest_categorical("batch_size", [32, 64]),
        callbacks=[early_stopping],
        verbose=0,
    )
    y_pred = np.argmax(model.predict(X_test, verbose=0), axis=1)
    f1 = f1_score(y_test, y_pred, average="macro")
    row = {"trial": trial.number, **trial.params, "f1": f1, "seconds": time.time() - start}
    row["epochs"] = len(history.history["loss"])
    results.append(row)
    with open("trials.csv", "a", newline="") as file:
        csv.writer(file).writerow([trial.number, f"{f1:.4f}"])
    if f1 > best_f1:
        best_f1 = f1
        best_model = model
        best_model.save("best_cnn.keras")
    return f1


study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=42))
study.optimize(objective, n_trials=6)
table = pd.DataFrame(results).sort_values("f1", ascending=False)
with open("trials.csv") as file:
    written = [int(row[0]) for row in csv.reader(file)]
print(
    "RESULT",
    len(table),
    [row["trial"] for row in results],
    written,
    os.path.exists("best_cnn.keras"),
)
print("RESULT", abs(best_f1 - study.best_value) < 1e-12, best_model.output_shape)
