# A reduction by trees, the results' file read by Reporting, Deploy, Restore, Evaluate by number.
import os
import shutil
import numpy as np
import pandas as pd
import talos
from tensorflow.keras import layers, models

rng = np.random.RandomState(0)
X = pd.DataFrame(rng.rand(120, 4))
y = X.sum(axis=1)
X_train, X_val, y_train, y_val = X[:90], X[90:], y[:90], y[90:]
path = "TalosTest/"


def fcmodel(x_train, y_train, x_val, y_val, params):
    model = models.Sequential()
    model.add(layers.Input((x_train.shape[1],)))
    for _ in range(params["layers"]):
        model.add(layers.Dense(params["neurons"], activation=params["activation"]))
    model.add(layers.Dense(1))
    model.compile(
        optimizer=params["optimizer"], loss="mean_absolute_error", metrics=["mean_absolute_error"]
    )
    out = model.fit(
        x=x_train,
        y=y_train,
        validation_data=(x_val, y_val),
        epochs=params["epochs"],
        batch_size=params["batch"],
        verbose=0,
    )
    return out, model


p = {
    "layers": [1, 2],
    "neurons": [4, 8],
    "activation": ["relu", "tanh"],
    "optimizer": ["adam", "sgd"],
    "epochs": [2],
    "batch": [16, 32],
}
t = talos.Scan(
    x=X_train.values,
    y=y_train.values,
    model=fcmodel,
    params=p,
    x_val=X_val.values,
    y_val=y_val.values,
    seed=11,
    experiment_name=path + "LeNA",
    print_params=True,
    round_limit=6,
    reduction_method="trees",
    reduction_interval=3,
    reduction_window=3,
    reduction_threshold=0.2,
    reduction_metric="mean_absolute_error",
    minimize_loss=True,
)
files = [
    os.path.join(folder, name)
    for folder, _, names in os.walk(path)
    for name in names
    if name.endswith(".csv")
]
r = talos.Reporting(files[0])
ranked = r.data.sort_values("val_mean_absolute_error")
if os.path.exists("LeNA_dep"):
    shutil.rmtree("LeNA_dep")
td = talos.Deploy(t, "LeNA_dep", metric="val_mean_absolute_error", asc=True)
tr = talos.Restore("LeNA_dep.zip")
e = talos.Evaluate(t)
a = e.evaluate(
    X_val.values,
    y_val.values,
    metric="mae",
    task="continuous",
    folds=2,
    model_id=ranked.val_mean_absolute_error.idxmin(),
)
print("RESULT", len(ranked) <= 6, tr.model.predict(X_val.values, verbose=0).shape, len(a))
