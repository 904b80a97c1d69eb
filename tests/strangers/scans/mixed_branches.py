# A branch for numbers and one for images, joined; layers as classes and functions among the values.
import numpy as np
import talos as ta
from sklearn.metrics import r2_score
from tensorflow.keras.activations import elu, relu
from tensorflow.keras.callbacks import EarlyStopping
from tensorflow.keras.layers import (
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    Input,
    MaxPooling2D,
    concatenate,
)
from tensorflow.keras.losses import MeanAbsolutePercentageError, MeanSquaredError
from tensorflow.keras.models import Model, Sequential
from tensorflow.keras.optimizers import Adam, Nadam

rng = np.random.RandomState(4)
numbers = rng.rand(90, 3)
pictures = rng.rand(90, 8, 8, 1)
target = numbers.sum(axis=1) + pictures.mean(axis=(1, 2, 3)) + 1.0


def create_mlp(dim):
    model = Sequential()
    model.add(Input((dim,)))
    model.add(Dense(4, activation="relu"))
    model.add(Dense(2, activation="relu"))
    return model


def create_cnn(width, height, depth, parameters, filters=(2, 4)):
    inputs = Input(shape=(width, height, depth))
    for i, f in enumerate(filters):
        x = inputs if i == 0 else x
        x = Conv2D(f, parameters["conv"], padding="same")(x)
        x = Activation(parameters["activation"])(x)
        x = BatchNormalization(axis=-1)(x)
        x = MaxPooling2D(pool_size=(2, 2))(x)
    x = Flatten()(x)
    x = Dropout(parameters["dropout"])(Dense(4)(x))
    return Model(inputs, x)


def both(x_train, y_train, x_val, y_val, parameters):
    mlp, cnn = create_mlp(3), create_cnn(8, 8, 1, parameters)
    joined = concatenate([mlp.output, cnn.output])
    x = Dense(1, activation="linear")(Dense(4, activation="relu")(joined))
    model = Model(inputs=[mlp.input, cnn.input], outputs=x)
    model.compile(loss=parameters["loss"], optimizer=parameters["optimizer"](learning_rate=1e-3))
    es = EarlyStopping(monitor="val_loss", mode="min", verbose=0, patience=5)
    out = model.fit(
        x=x_train,
        y=y_train,
        validation_data=(x_val, y_val),
        epochs=parameters["epochs"],
        batch_size=parameters["batch_size"],
        callbacks=[es],
        verbose=0,
    )
    pred = model.predict(x_val, verbose=0)
    print("r2", r2_score(y_val, pred))
    return out, model


p = {
    "conv": [(3, 3), (2, 2)],
    "activation": [relu, elu],
    "dropout": [0.0, 0.25],
    "loss": ["logcosh", MeanSquaredError(), MeanAbsolutePercentageError()],
    "optimizer": [Adam, Nadam],
    "epochs": [1],
    "batch_size": [16, 32],
}
scan = ta.Scan(
    x=[numbers[:70], pictures[:70]],
    y=target[:70],
    x_val=[numbers[70:], pictures[70:]],
    y_val=target[70:],
    params=p,
    model=both,
    experiment_name="mixed",
    fraction_limit=0.05,
    multi_input=True,
)
print("RESULT", len(scan.data), "val_loss" in scan.data.columns, sorted(scan.params))
