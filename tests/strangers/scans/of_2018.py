# Names of 2018: datasets, dataset_name, experiment_no, grid_downsample, Keras 2's lr.
import talos as ta
from keras.models import Sequential
from keras.layers import Dense
from keras.optimizers import Adam
from talos.model.normalizers import lr_normalizer

x, y = ta.datasets.iris()
p = {"lr": (0.1, 10, 4), "first_neuron": [4, 8], "batch_size": [20], "epochs": [2]}


def iris_model(x_train, y_train, x_val, y_val, params):
    model = Sequential()
    model.add(Dense(params["first_neuron"], input_dim=x_train.shape[1], activation="relu"))
    model.add(Dense(y_train.shape[1], activation="softmax"))
    rate = lr_normalizer(params["lr"], Adam)
    model.compile(optimizer=Adam(rate), loss="categorical_crossentropy", metrics=["acc"])
    out = model.fit(
        x_train,
        y_train,
        batch_size=params["batch_size"],
        epochs=params["epochs"],
        verbose=0,
        validation_data=[x_val, y_val],
    )
    return out, model


h = ta.Scan(
    x,
    y,
    params=p,
    dataset_name="first_test",
    experiment_no="2",
    model=iris_model,
    grid_downsample=0.5,
)
r = ta.Reporting("first_test_2.csv")
print("RESULT", len(r.data), h.best_model().count_params() > 0)
