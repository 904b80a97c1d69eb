# Lists as values, ranges as tuples, a scan for each part of the data, one archive a scan.
import os
from keras.activations import elu, relu, sigmoid
from keras.layers import Dense, Dropout
from keras.losses import binary_crossentropy
from keras.models import Sequential
from keras.optimizers import Adam, Nadam
from sklearn.model_selection import train_test_split
from talos import Deploy
from talos.model import lr_normalizer
import numpy as np
import talos as ta

rng = np.random.RandomState(3)
x_all, score = rng.rand(140, 6), rng.rand(140)
y_all = 1.0 * (score >= 0.5)
p = {
    "lr": (0.05, 0.5, 5),
    "neuron_tuple": [[8, 6, 4], [6, 4], [4]],
    "batch_size": (8, 24, 2),
    "epochs": [1, 2],
    "dropout": (0, 0.5, 5),
    "optimizer": [Adam, Nadam],
    "losses": [binary_crossentropy],
    "activation": [relu, elu],
    "last_activation": [sigmoid],
}


def fp_model(x_train, y_train, x_val, y_val, params):
    model = Sequential()
    layers = params["neuron_tuple"]
    for i in range(len(layers)):
        model.add(Dense(layers[i], activation=params["activation"]))
        model.add(Dropout(params["dropout"]))
    model.add(Dense(1, activation=params["last_activation"]))
    rate = lr_normalizer(params["lr"], params["optimizer"])
    model.compile(
        optimizer=params["optimizer"](learning_rate=rate),
        loss=params["losses"],
        metrics=["accuracy"],
    )
    history = model.fit(
        x_train,
        y_train,
        epochs=params["epochs"],
        batch_size=int(params["batch_size"]),
        verbose=0,
        validation_data=(x_val, y_val),
    )
    return history, model


x_train, x_valid, y_train, y_valid = train_test_split(x_all, y_all, test_size=0.3, random_state=0)
rows = []
for i in range(2):
    count = int(len(x_train) * (i + 1) / 2)
    t = ta.Scan(
        x=x_train[:count],
        y=y_train[:count],
        model=fp_model,
        fraction_limit=0.01,
        params=p,
        experiment_name="comp_edu" + str(i),
        x_val=x_valid,
        y_val=y_valid,
    )
    name = "dnn_" + str(i) + ".md"
    Deploy(scan_object=t, model_name=name, metric="val_loss", asc=True)
    rows.append((len(t.data), os.path.exists(name + ".zip"), sorted(t.data.columns)[:3]))
print("RESULT", rows)
