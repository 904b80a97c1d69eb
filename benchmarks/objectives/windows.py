# A forecast by an LSTM. The length of the window varies, and the objective scores predictions.
import os

import numpy as np
import optuna
from keras.callbacks import EarlyStopping
from keras.layers import LSTM, Dense, Dropout, Input
from keras.models import Sequential
from keras.optimizers import Adam
from sklearn.metrics import mean_squared_error
from sklearn.preprocessing import MinMaxScaler

N_TRIALS = int(os.environ.get("N_TRIALS", "24"))
rng = np.random.default_rng(0)
series = np.sin(np.arange(700) / 9) + np.arange(700) / 500 + 0.05 * rng.normal(size=700)


def windows(values, look_back):
    x = np.array([values[i : i + look_back] for i in range(len(values) - look_back)])
    return x, values[look_back:, 0]


def objective(trial, series):
    look_back = trial.suggest_categorical("look_back", [6, 12])
    scaler = MinMaxScaler()
    scaled = scaler.fit_transform(series.reshape(-1, 1))
    x, y = windows(scaled, look_back)
    x_train, y_train, x_test, y_test = x[:500], y[:500], x[500:], y[500:]

    model = Sequential()
    model.add(Input((look_back, 1)))
    model.add(LSTM(trial.suggest_categorical("units", [16, 32])))
    model.add(Dropout(trial.suggest_float("dropout", 0.05, 0.5)))
    model.add(Dense(1))
    model.compile(Adam(learning_rate=trial.suggest_float("lr", 1e-4, 1e-2, log=True)), loss="mse")
    model.fit(
        x_train,
        y_train,
        validation_split=0.2,
        epochs=trial.suggest_int("epochs", 10, 30, step=10),
        batch_size=32,
        callbacks=[EarlyStopping(monitor="val_loss", patience=5, restore_best_weights=True)],
        verbose=0,
    )
    predicted = scaler.inverse_transform(model.predict(x_test, verbose=0))
    actual = scaler.inverse_transform(y_test.reshape(-1, 1))
    return np.sqrt(mean_squared_error(actual, predicted))


study = optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=0))
study.optimize(lambda trial: objective(trial, series), n_trials=N_TRIALS)
print("Best RMSE:", study.best_value, "with", study.best_params)
