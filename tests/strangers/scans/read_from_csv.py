# Results of a scan that are read back by name and drawn in bars; the best model found again by it.
import glob
import os
import numpy as np
import talos
from talos.utils.recover_best_model import recover_best_model
from tensorflow.keras.layers import GRU, Dense, Dropout, Input
from tensorflow.keras.models import Sequential

series = np.sin(np.arange(130) / 5.0)
x = np.array([series[i : i + 8] for i in range(110)])[:, :, None]
y = np.array([series[i + 8 : i + 10] for i in range(110)])
x_train, y_train, x_val, y_val = x[:80], y[:80], x[80:], y[80:]


def gru_model(x_train, y_train, x_val, y_val, params):
    model = Sequential([Input((8, 1))])
    model.add(GRU(params["units"], dropout=params["drop"]))
    model.add(Dropout(params["drop"]))
    model.add(Dense(2))
    model.compile(loss="mse", optimizer="adam", metrics=["mae"])
    out = model.fit(
        x_train,
        y_train,
        epochs=int(params["epochs"]),
        batch_size=int(params["batch"]),
        validation_data=(x_val, y_val),
        verbose=0,
    )
    return out, model


p = {"units": [3, 6], "drop": [0.0, 0.2], "epochs": [2], "batch": [20]}
talos.Scan(
    x_train,
    y_train,
    p,
    gru_model,
    "gru",
    x_val=x_val,
    y_val=y_val,
    disable_progress_bar=True,
    clear_session=True,
)
file = glob.glob("gru/**/*.csv", recursive=True)[0]
gru_res = talos.Analyze(file)
top = gru_res.table("val_loss", sort_by="val_loss", ascending=True)[:2]
gru_res.plot_bars("units", "val_loss", "drop", "batch")
gru_res.plot_box("units", "val_loss")
gru_res.plot_regs("val_mae", "val_loss")
results, models = recover_best_model(
    x_train=x_train,
    y_train=y_train,
    x_val=x_val,
    y_val=y_val,
    experiment_log=file,
    input_model=gru_model,
    metric="val_loss",
    n_models=1,
    task="continuous",
    folds=2,
)
print(
    "RESULT",
    len(top),
    gru_res.rounds(),
    len(results),
    models[0].predict(x_val, verbose=0).shape,
    os.path.isfile(file),
)
