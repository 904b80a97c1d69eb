# A reduction by correlation, with limits on the rounds.
import numpy as np
import talos
from tensorflow.keras import layers, models

rng = np.random.RandomState(0)
x, y = rng.rand(100, 5), rng.randint(0, 2, 100)


def model_of(x_train, y_train, x_val, y_val, params):
    model = models.Sequential([layers.Input((5,))])
    for _ in range(params["depth"]):
        model.add(layers.Dense(params["units"], activation=params["activation"]))
    model.add(layers.Dense(1, activation="sigmoid"))
    model.compile("adam", loss="binary_crossentropy", metrics=["acc"])
    out = model.fit(
        x_train,
        y_train,
        validation_data=(x_val, y_val),
        epochs=1,
        verbose=0,
        batch_size=params["batch_size"],
    )
    return out, model


p = {
    "depth": [1, 2],
    "units": [4, 8],
    "activation": ["relu", "tanh"],
    "batch_size": [16, 32],
}
scan = talos.Scan(
    x=x,
    y=y,
    params=p,
    model=model_of,
    experiment_name="reduced",
    random_method="latin_improved",
    reduction_method="correlation",
    reduction_interval=4,
    reduction_window=4,
    reduction_threshold=0.2,
    reduction_metric="val_loss",
    minimize_loss=True,
    round_limit=8,
    print_params=True,
)
print("RESULT", len(scan.data) <= 8, sorted(p) == sorted(c for c in scan.data.columns if c in p))
