# Talos' own helpers: hidden layers, normalized rates, an early stopper, its metrics.
import talos as ta
from tensorflow.keras.models import Sequential
from tensorflow.keras.layers import Dense, Dropout
from tensorflow.keras.optimizers import Adam, Nadam
from tensorflow.keras.activations import relu, elu
from talos.utils import hidden_layers, lr_normalizer, early_stopper
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

x, y = load_breast_cancer(return_X_y=True)
x = scale(x)[:200]
y = y[:200]


def cancer(x_train, y_train, x_val, y_val, params):
    model = Sequential()
    model.add(Dense(params["first_neuron"], input_dim=x_train.shape[1], activation="relu"))
    model.add(Dropout(params["dropout"]))
    hidden_layers(model, params, 1)
    model.add(Dense(1, activation=params["last_activation"]))
    model.compile(
        optimizer=params["optimizer"](
            learning_rate=lr_normalizer(params["lr"], params["optimizer"])
        ),
        loss=params["losses"],
        metrics=["acc", ta.utils.metrics.f1score],
    )
    history = model.fit(
        x_train,
        y_train,
        validation_data=(x_val, y_val),
        batch_size=params["batch_size"],
        epochs=params["epochs"],
        callbacks=[early_stopper(params["epochs"], mode="strict")],
        verbose=0,
    )
    return history, model


p = {
    "lr": (0.5, 5, 2),
    "first_neuron": [4, 8],
    "hidden_layers": [0, 1],
    "batch_size": [32],
    "epochs": [3],
    "dropout": [0, 0.2],
    "shapes": ["brick"],
    "activation": [relu, elu],
    "optimizer": [Adam, Nadam],
    "losses": ["binary_crossentropy"],
    "last_activation": ["sigmoid"],
}
t = ta.Scan(x, y, p, cancer, "cancer", round_limit=4, seed=3, disable_progress_bar=True)
r = ta.Reporting(t)
print("RESULT", len(r.data), r.rounds(), "f1score" in r.data.columns)
