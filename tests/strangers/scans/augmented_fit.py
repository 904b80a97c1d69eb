# A generator of images inside the function, steps by the batch size, class weights, a seed.
import numpy as np
import talos
from tensorflow.keras import layers, models
from tensorflow.keras.optimizers import Adam, RMSprop
from tensorflow.keras.preprocessing.image import ImageDataGenerator

rng = np.random.RandomState(0)
x = rng.rand(72, 8, 8, 3).astype("float32")
y = rng.randint(0, 2, 72)
trainX, valX, trainY, valY = x[:48], x[48:], y[:48], y[48:]
weights = {0: 1.0, 1: 2.0}


def transferlearn_model(x_train, y_train, x_val, y_val, params):
    aug = ImageDataGenerator(rotation_range=15, horizontal_flip=True, fill_mode="nearest")
    model = models.Sequential()
    model.add(layers.Input((8, 8, 3)))
    model.add(layers.Conv2D(params["filters"], 3, activation="relu"))
    model.add(layers.AveragePooling2D(pool_size=(2, 2)))
    model.add(layers.Flatten(name="flatten"))
    model.add(layers.Dense(params["head"], activation="relu"))
    model.add(layers.Dense(1, activation="sigmoid"))
    model.compile(
        loss="binary_crossentropy",
        optimizer=params["optimizer"](learning_rate=params["lr"]),
        metrics=["accuracy"],
    )
    out = model.fit(
        aug.flow(trainX, trainY, batch_size=params["batch_size"]),
        steps_per_epoch=len(trainX) // params["batch_size"],
        validation_data=(valX, valY),
        validation_steps=len(valX) // params["batch_size"],
        epochs=params["epochs"],
        class_weight=weights,
        verbose=0,
    )
    return out, model


p = {
    "filters": [2, 4],
    "head": [4, 8],
    "optimizer": [Adam, RMSprop],
    "lr": (0.001, 0.01, 3),
    "batch_size": [8, 12],
    "epochs": [2],
}
scan_object = talos.Scan(
    trainX,
    trainY,
    params=p,
    x_val=valX,
    y_val=valY,
    model=transferlearn_model,
    experiment_name="drive/imagenetscan_adam",
    seed=42,
    round_limit=3,
)
print(
    "RESULT",
    len(scan_object.data),
    sorted(scan_object.data.columns)[:4],
    len(scan_object.saved_models),
)
