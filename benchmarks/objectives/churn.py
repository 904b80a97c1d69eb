# A table with rare positives: class weights, four metrics, three callbacks, a method as objective.
import os

import keras
import numpy as np
import optuna
from keras.callbacks import EarlyStopping, ReduceLROnPlateau
from keras.layers import BatchNormalization, Dense, Dropout, Input
from keras.models import Sequential
from keras.regularizers import l1_l2
from keras_pruning import KerasPruningCallback
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_class_weight

N_TRIALS = int(os.environ.get("N_TRIALS", "24"))


class Tuning:
    def __init__(self):
        x, y = load_breast_cancer(return_X_y=True)
        parts = train_test_split(x, 1 - y, test_size=0.3, random_state=42, stratify=y)
        self.x_train, self.x_val, self.y_train, self.y_val = parts
        scaler = StandardScaler().fit(self.x_train)
        self.x_train, self.x_val = scaler.transform(self.x_train), scaler.transform(self.x_val)

    def create_model(self, trial):
        dropout = trial.suggest_float("dropout_rate", 0.1, 0.6)
        l1 = trial.suggest_float("l1_reg", 1e-6, 1e-2, log=True)
        l2 = trial.suggest_float("l2_reg", 1e-6, 1e-2, log=True)
        model = Sequential([Input(shape=(self.x_train.shape[1],))])
        before = 128
        for i in range(trial.suggest_int("n_layers", 1, 2)):
            before = trial.suggest_int(f"units_{i}", 32, min(before, 128), step=32)
            model.add(Dense(before, activation="relu", kernel_regularizer=l1_l2(l1=l1, l2=l2)))
            model.add(BatchNormalization())
            model.add(Dropout(dropout * 0.8**i))
        model.add(Dense(1, activation="sigmoid"))
        rate = trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
        if trial.suggest_categorical("optimizer", ["adam", "rmsprop"]) == "adam":
            optimizer = keras.optimizers.Adam(learning_rate=rate)
        else:
            optimizer = keras.optimizers.RMSprop(learning_rate=rate)
        model.compile(
            optimizer=optimizer,
            loss="binary_crossentropy",
            metrics=[
                "accuracy",
                keras.metrics.AUC(name="auc"),
                keras.metrics.Recall(name="recall"),
                keras.metrics.Precision(name="precision"),
            ],
        )
        return model

    def objective(self, trial):
        model = self.create_model(trial)
        classes = np.unique(self.y_train)
        weights = compute_class_weight("balanced", classes=classes, y=self.y_train)
        weights[1] *= trial.suggest_float("recall_boost", 1.0, 3.0)
        history = model.fit(
            self.x_train,
            self.y_train,
            validation_data=(self.x_val, self.y_val),
            epochs=30,
            batch_size=trial.suggest_categorical("batch_size", [32, 64]),
            callbacks=[
                EarlyStopping("val_recall", patience=10, mode="max", restore_best_weights=True),
                ReduceLROnPlateau("val_loss", factor=0.5, patience=5, min_lr=1e-7),
                KerasPruningCallback(trial, "val_recall"),
            ],
            class_weight=dict(zip(classes, weights)),
            verbose=0,
        )
        recall = max(history.history["val_recall"])
        precision = max(history.history.get("val_precision", [0]))
        return max(recall - 2 * max(0.0, 0.4 - precision), 0.0)


tuning = Tuning()
study = optuna.create_study(
    direction="maximize",
    sampler=optuna.samplers.TPESampler(seed=42),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=10, interval_steps=5),
)
study.optimize(tuning.objective, n_trials=N_TRIALS, timeout=3600, show_progress_bar=True)
print("best recall:", study.best_value, study.best_params)
