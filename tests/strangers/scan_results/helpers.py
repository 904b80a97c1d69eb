# Talos' small helpers by themselves: val_split, metrics, generators, ExperimentLog, rescaling.
import numpy as np
import talos
from tensorflow.keras.layers import Dense, Input
from tensorflow.keras.models import Sequential

x, y = talos.templates.datasets.breast_cancer()
x, y = x[:80], y[:80]
x = talos.utils.rescale_meanzero(x)
x_train, y_train, x_val, y_val = talos.utils.val_split(x, y, 0.2)
metrics = [
    talos.utils.metrics.f1score,
    talos.utils.metrics.fbeta,
    talos.utils.metrics.matthews,
    talos.utils.metrics.precision,
    talos.utils.metrics.recall,
    talos.utils.metrics.rmse,
]


def model_of(x_train, y_train, x_val, y_val, params):
    model = Sequential([Input((x_train.shape[1],))])
    model.add(Dense(params["first_neuron"], activation=params["activation"]))
    talos.utils.hidden_layers(model, params, 1)
    model.add(Dense(1, activation="sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["acc", *metrics])
    out = model.fit(
        x_train,
        y_train,
        validation_data=(x_val, y_val),
        epochs=params["epochs"],
        verbose=0,
        callbacks=[
            talos.utils.early_stopper(params["epochs"]),
            talos.callbacks.ExperimentLog("test", params),
        ],
    )
    return out, model


p = talos.templates.params.breast_cancer()
p = {
    **p,
    "first_neuron": [4, 8],
    "hidden_layers": [0, 1],
    "shapes": ["brick"],
    "dropout": [0.1],
    "activation": ["relu"],
    "epochs": [2],
}
scan = talos.Scan(
    x_train,
    y_train,
    params=p,
    model=model_of,
    experiment_name="helpers",
    x_val=x_val,
    y_val=y_val,
    round_limit=3,
)
model = Sequential([Input((x.shape[1],)), Dense(4), Dense(1)])
model.compile("adam", "mse")
model.fit(talos.utils.SequenceGenerator(x, y, 10), epochs=1, verbose=0)
model.fit(talos.utils.generator(x, y, 10), steps_per_epoch=4, epochs=1, verbose=0)
print("RESULT", len(scan.data), sorted(c for c in scan.data.columns if c.startswith("val_")))
print("RESULT", scan.details is not None, len(scan.learning_entropy), np.shape(x_val)[1])
