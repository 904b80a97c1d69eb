# LSTM; a parameter has the name of a metric: loss.
import numpy as np
import talos as ta
from tensorflow.keras.models import Sequential
from tensorflow.keras.layers import LSTM, Dense, Dropout

series = np.sin(np.arange(150) / 5.0)
x = np.array([series[i : i + 8] for i in range(140)]).reshape(-1, 8, 1)
y = series[8:148]


def lstm(x_train, y_train, x_val, y_val, params):
    model = Sequential()
    model.add(LSTM(params["units"], input_shape=(x_train.shape[1], x_train.shape[2])))
    model.add(Dropout(params["dropout"]))
    model.add(Dense(1))
    model.compile(optimizer="adam", loss=params["loss"], metrics=["mae"])
    out = model.fit(
        x_train,
        y_train,
        validation_data=(x_val, y_val),
        epochs=params["epochs"],
        batch_size=32,
        shuffle=False,
        verbose=0,
    )
    return out, model


p = {"units": [4, 8], "dropout": (0, 0.4, 2), "loss": ["mse", "mae"], "epochs": [2]}
scan = ta.Scan(x, y, params=p, model=lstm, experiment_name="lstm", seed=0)
r = ta.Analyze(scan)
best = r.best_params("val_mae", ["val_loss", "mae", "loss", "round_epochs"], ascending=True, n=2)
print("RESULT", sorted(scan.data["param__loss"].unique()), len(best))
