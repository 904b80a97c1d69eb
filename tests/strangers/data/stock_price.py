# Windows of a series, stacked LSTM, an objective that is an error.
import numpy as np
import tensorflow as tf
from tensorflow.keras.models import Sequential
from tensorflow.keras.layers import LSTM, Dense, Dropout
from tensorflow.keras.callbacks import EarlyStopping
import keras_tuner as kt
from sklearn.preprocessing import MinMaxScaler

prices = np.cumsum(np.random.RandomState(3).randn(220)).reshape(-1, 1)
scaled = MinMaxScaler(feature_range=(0, 1)).fit_transform(prices)
look_back = 10
X, y = [], []
for i in range(look_back, len(scaled)):
    X.append(scaled[i - look_back : i, 0])
    y.append(scaled[i, 0])
X, y = np.array(X), np.array(y)
X = np.reshape(X, (X.shape[0], X.shape[1], 1))
split = int(len(X) * 0.8)


def build_lstm_model(hp):
    model = Sequential()
    n = hp.Int("num_layers", 1, 2)
    for i in range(n):
        model.add(
            LSTM(
                units=hp.Int(f"units_{i}", min_value=4, max_value=8, step=4),
                return_sequences=i < n - 1,
            )
        )
        model.add(Dropout(rate=hp.Float(f"dropout_{i}", 0.0, 0.4, step=0.2)))
    model.add(Dense(units=1))
    model.compile(
        optimizer=hp.Choice("optimizer", ["adam", "rmsprop"]),
        loss="mean_squared_error",
        metrics=[tf.keras.metrics.RootMeanSquaredError(), "mae"],
    )
    return model


tuner = kt.RandomSearch(
    build_lstm_model,
    objective=kt.Objective("val_root_mean_squared_error", direction="min"),
    max_trials=4,
    executions_per_trial=1,
    directory="lstm_tuning",
    project_name="stock_price",
    seed=0,
)
tuner.search(
    X[:split],
    y[:split],
    epochs=2,
    batch_size=16,
    validation_data=(X[split:], y[split:]),
    callbacks=[EarlyStopping("val_loss", patience=3)],
    shuffle=False,
)
best_hps = tuner.get_best_hyperparameters(num_trials=1)[0]
model = build_lstm_model(best_hps)
history = model.fit(X[:split], y[:split], epochs=1, verbose=0)
rmse = np.sqrt(np.mean((model.predict(X[split:], verbose=0)[:, 0] - y[split:]) ** 2))
print("RESULT", sorted(history.history), rmse.shape, best_hps.space[0].name)
