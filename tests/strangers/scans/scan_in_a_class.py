# A scan in a method whose model function is a closure: lr_normalizer, classes, a report, an order.
import numpy as np
import talos
from tensorflow.keras.layers import BatchNormalization, Dense, Dropout
from tensorflow.keras.losses import logcosh
from tensorflow.keras.models import Sequential
from tensorflow.keras.optimizers import Adam, RMSprop

from talos.utils import hidden_layers, lr_normalizer

rng = np.random.RandomState(1)


class Hyper:
    def __init__(self, x, y, params=None, seed=None):
        if params is None:
            raise ValueError("`params` cannot be `None`.")
        self.x, self.y, self.params, self.seed, self.scan = x, y, params, seed, None

    def optimize(self, limit):
        n_features = self.x.shape[1]

        def model(x_train, y_train, x_val, y_val, params):
            net = Sequential()
            net.add(Dense(params["first_neuron"], input_dim=n_features, activation="relu"))
            net.add(BatchNormalization())
            net.add(Dropout(params["dropout"]))
            hidden_layers(net, params, 1)
            net.add(Dense(1, activation=params["last_activation"]))
            net.compile(
                optimizer=params["optimizer"](
                    learning_rate=lr_normalizer(params["lr"], params["optimizer"])
                ),
                loss=params["losses"],
                metrics=["mae"],
            )
            out = net.fit(
                x_train,
                y_train,
                validation_data=(x_val, y_val),
                batch_size=params["batch_size"],
                epochs=params["epochs"],
                verbose=0,
            )
            return out, net

        self.scan = talos.Scan(
            x=self.x,
            y=self.y,
            params=self.params,
            model=model,
            experiment_name="votes",
            val_split=0.3,
            round_limit=limit,
            seed=self.seed,
        )
        return self.scan


params = {
    "lr": (0.5, 2, 3),
    "first_neuron": [4, 8],
    "hidden_layers": [0, 1],
    "shapes": ["brick", "funnel"],
    "activation": ["relu"],
    "dropout": [0, 0.2],
    "batch_size": [16, 32],
    "epochs": [3],
    "optimizer": [Adam, RMSprop],
    "losses": ["mse", logcosh],
    "last_activation": ["linear"],
}
hyper = Hyper(rng.rand(80, 6), rng.rand(80, 1), params, seed=3)
scan = hyper.optimize(4)
report = talos.Reporting(scan)
best = scan.best_model("val_mae", asc=True)
print("RESULT", len(scan.data), report.rounds(), sorted(set(scan.data["losses"].map(str)))[:0])
print("RESULT", report.low("val_mae") <= report.high("val_mae"), best.predict(rng.rand(3, 6)).shape)
print("RESULT", {"val_loss", "val_mae", "lr", "first_neuron"} <= set(scan.data.columns))
