# Three scans in one script, one a network, each with Analyze, Predict and Deploy; f1score of Talos.
import numpy as np
import talos
from tensorflow.keras import layers, losses, models
from tensorflow.keras.activations import elu, relu

rng = np.random.RandomState(1)
X = rng.rand(120, 10, 1)
labels = np.eye(3)[rng.randint(0, 3, 120)]
x_t, y_t = X[100:], labels[100:]
written = []


def cnn_optimization(x_train, y_train, x_test, y_test, params):
    model = models.Sequential()
    model.add(layers.Input((10, 1)))
    model.add(layers.Conv1D(params["filters"], 3, activation=params["conv_activation"]))
    model.add(layers.GlobalMaxPooling1D())
    model.add(layers.Dense(params["dense"], activation=relu))
    model.add(layers.Dense(3, activation="softmax"))
    model.compile(
        optimizer=params["optimizer"],
        loss=losses.CategoricalCrossentropy(),
        metrics=["accuracy", talos.utils.metrics.f1score],
    )
    out = model.fit(
        x_train, y_train, validation_data=(x_test, y_test), epochs=params["epoch"], verbose=0
    )
    return out, model


def lstm_optimization(x_train, y_train, x_test, y_test, params):
    model = models.Sequential()
    model.add(layers.LSTM(params["units"], return_sequences=True))
    model.add(layers.LSTM(params["units"], return_sequences=False))
    model.add(layers.Dropout(0.5))
    model.add(layers.Dense(params["dense"], activation=relu))
    model.add(layers.Dense(3, activation="softmax"))
    model.compile(
        optimizer=params["optimizer"],
        loss=losses.CategoricalCrossentropy(),
        metrics=["accuracy", talos.utils.metrics.f1score],
    )
    out = model.fit(
        x_train, y_train, validation_data=(x_test, y_test), epochs=params["epoch"], verbose=0
    )
    return out, model


spaces = {
    "cnn": (
        cnn_optimization,
        {
            "filters": [2, 4],
            "conv_activation": [relu, elu],
            "dense": [4, 8],
            "optimizer": ["Adam"],
            "epoch": [1, 2],
        },
    ),
    "lstm": (
        lstm_optimization,
        {"units": [2, 4], "dense": [4], "optimizer": ["Adam", "RMSprop"], "epoch": [1]},
    ),
}
for name, (model, params) in spaces.items():
    scan = talos.Scan(
        x=X[:100],
        y=labels[:100],
        model=model,
        params=params,
        experiment_name=name + "_opt",
        round_limit=3,
    )
    analyze = talos.Analyze(scan)
    best = analyze.best_params("accuracy", ["accuracy", "loss", "val_loss"])
    pred = talos.Predict(scan).predict(x_t, metric="val_f1score", asc=False)
    talos.Deploy(scan, "model_" + name, metric="val_accuracy", asc=False)
    written.append((name, len(best), pred.shape, len(scan.data), analyze.high("accuracy") <= 1.0))
print("RESULT", written)
