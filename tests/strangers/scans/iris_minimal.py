# The smallest scan of Talos' manual.
import talos
from tensorflow.keras.models import Sequential
from tensorflow.keras.layers import Dense
from sklearn.datasets import load_iris
from tensorflow.keras.utils import to_categorical

x, y = load_iris(return_X_y=True)
y = to_categorical(y)


def iris_model(x_train, y_train, x_val, y_val, params):
    model = Sequential()
    model.add(Dense(params["first_neuron"], input_dim=4, activation=params["activation"]))
    model.add(Dense(3, activation="softmax"))
    model.compile(
        optimizer=params["optimizer"], loss="categorical_crossentropy", metrics=["accuracy"]
    )
    out = model.fit(
        x_train,
        y_train,
        batch_size=params["batch_size"],
        epochs=params["epochs"],
        validation_data=(x_val, y_val),
        verbose=0,
    )
    return out, model


p = {
    "first_neuron": [8, 12],
    "activation": ["relu", "elu"],
    "optimizer": ["Nadam", "Adam"],
    "batch_size": (16, 48, 2),
    "epochs": [2],
}
scan_object = talos.Scan(
    x, y, model=iris_model, params=p, experiment_name="iris", fraction_limit=0.5
)
print("RESULT", scan_object.data.shape[0], "experiment_name" in scan_object.details.index)
