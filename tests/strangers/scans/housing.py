# None among the values, an early stopper of Talos, columns that are added to the results, Deploy.
import numpy as np
import pandas as pd
from keras.layers import Dense, Dropout, Input
from keras.models import Sequential
from sklearn.preprocessing import StandardScaler
from talos.model import early_stopper
from talos import Evaluate
from talos import Deploy
import talos

rng = np.random.RandomState(0)
frame = pd.DataFrame(rng.rand(160, 5), columns=list("abcde"))
frame["price"] = frame.sum(axis=1)
scaler = StandardScaler()
values = scaler.fit_transform(frame)
train_x, train_y = values[:100, 1:], values[:100, 0]
val_x, val_y = values[100:130, 1:], values[100:130, 0]
test_x, test_y = values[130:, 1:], values[130:, 0]

parameters = {
    "activation_1": ["relu", "elu", "tanh"],
    "optimizer": ["Adam", "RMSprop", "sgd"],
    "loss-functions": ["mse"],
    "neurons_HL1": [5, 10],
    "neurons_HL2": [5, None],
    "dropout1": [0.1, 0.2],
    "batch_size": [25, 50],
    "epochs": [3],
}


def inverse_transform(value):
    row = np.zeros((1, scaler.scale_.shape[0]))
    row[0, 0] = value
    return scaler.inverse_transform(row)[:, 0]


def network(x_train, y_train, x_val, y_val, parameters):
    model = Sequential()
    model.add(Input((train_x.shape[1],)))
    model.add(
        Dense(parameters["neurons_HL1"], activation=parameters["activation_1"], use_bias=True)
    )
    model.add(Dropout(parameters["dropout1"]))
    if parameters["neurons_HL2"]:
        model.add(Dense(parameters["neurons_HL2"], activation=parameters["activation_1"]))
    model.add(Dense(1, activation="linear"))
    model.compile(
        optimizer=parameters["optimizer"], loss=parameters["loss-functions"], metrics=["mse", "mae"]
    )
    history = model.fit(
        x_train,
        y_train,
        batch_size=parameters["batch_size"],
        epochs=parameters["epochs"],
        verbose=0,
        validation_data=(x_val, y_val),
        callbacks=[
            early_stopper(
                epochs=parameters["epochs"], mode="moderate", monitor="val_loss", patience=40
            )
        ],
    )
    return history, model


t = talos.Scan(
    x=np.array(train_x),
    y=np.array(train_y),
    x_val=np.array(val_x),
    y_val=np.array(val_y),
    model=network,
    params=parameters,
    experiment_name="talos_training",
    round_limit=4,
)
Deploy(t, "features_1", metric="val_mae", asc=True)
for index in t.data.index:
    t.data.at[index, "real_error"] = inverse_transform(t.data.at[index, "val_mae"])[0]
ranked = t.data.sort_values(by=["real_error"])
e = Evaluate(t)
scores = e.evaluate(test_x, test_y, task="continuous", metric="val_mae", folds=3, asc=True)
print(
    "RESULT",
    len(ranked),
    sorted(c for c in t.data.columns if c in parameters or "val" in c),
    len(scores),
)
