# ask and tell by hand, in a database, in a loop over months; then it is loaded again.
import numpy as np
import optuna
from tensorflow.keras.callbacks import EarlyStopping, ReduceLROnPlateau
from tensorflow.keras.layers import LSTM, Dense, Dropout, Input
from tensorflow.keras.models import Sequential
from tensorflow.keras.optimizers import Adam, Nadam

rng = np.random.RandomState(0)
X, y = rng.rand(100, 5, 2), rng.rand(100)


def build_lstm(shape, hyperparams):
    model = Sequential([Input(shape)])
    for layer in range(hyperparams["num_lstm_layers"]):
        last = layer == hyperparams["num_lstm_layers"] - 1
        model.add(LSTM(hyperparams["lstm_units"], return_sequences=not last))
        model.add(Dropout(hyperparams["dropout_rate"]))
    model.add(Dense(1))
    optimizer = {"Adam": Adam, "Nadam": Nadam}[hyperparams["optimizer"]]
    model.compile(
        optimizer(learning_rate=hyperparams["learning_rate"]), loss="mse", metrics=["mae"]
    )
    return model


study = optuna.create_study(
    study_name="lstm",
    direction="minimize",
    storage="sqlite:///lstm.db",
    load_if_exists=True,
    sampler=optuna.samplers.TPESampler(seed=5),
)
for month in range(3):
    trial = study.ask()
    hyperparams = {
        "num_lstm_layers": trial.suggest_int("num_lstm_layers", 1, 2),
        "lstm_units": trial.suggest_categorical("lstm_units", [3, 6]),
        "dropout_rate": trial.suggest_float("dropout_rate", 0.1, 0.5),
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        "optimizer": trial.suggest_categorical("optimizer", ["Adam", "Nadam"]),
    }
    model = build_lstm((5, 2), hyperparams)
    history = model.fit(
        X,
        y,
        epochs=2,
        batch_size=20,
        validation_split=0.2,
        callbacks=[
            EarlyStopping(patience=10, restore_best_weights=True),
            ReduceLROnPlateau(factor=0.5, patience=5, min_lr=1e-6),
        ],
        verbose=0,
    )
    study.tell(trial, min(history.history["val_mae"]))
loaded = optuna.load_study(study_name="lstm", storage="sqlite:///lstm.db")
importance = [t.state.name for t in loaded.trials]
print("RESULT", importance, sorted(loaded.best_params), loaded.best_value == study.best_value)
