# A folder for TensorBoard and checkpoints that every permutation names by the time.
import datetime
import os
import numpy as np
import talos
import tensorflow as tf
from tensorflow.keras.callbacks import EarlyStopping, ModelCheckpoint, TensorBoard

x = np.random.RandomState(0).rand(90, 8, 8, 1).astype("float32")
y = tf.keras.utils.to_categorical(np.random.RandomState(1).randint(0, 3, 90), 3)


def cnn(x_train, y_train, x_val, y_val, params):
    log_dir = os.path.join("logs", datetime.datetime.now().strftime("%Y%m%d-%H%M%S"))
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Input(shape=(8, 8, 1)))
    model.add(tf.keras.layers.Conv2D(params["filters"], 3, activation="relu"))
    model.add(tf.keras.layers.Flatten())
    model.add(tf.keras.layers.Dropout(params["dropout"]))
    model.add(tf.keras.layers.Dense(3, activation="softmax"))
    model.compile(params["optimizer"], "categorical_crossentropy", metrics=["acc"])
    history = model.fit(
        x_train,
        y_train,
        validation_data=(x_val, y_val),
        epochs=2,
        batch_size=30,
        verbose=0,
        callbacks=[
            TensorBoard(log_dir=log_dir),
            EarlyStopping(monitor="val_loss", patience=2),
        ],
    )
    return history, model


p = {"filters": [2, 4], "dropout": [0.1, 0.3], "optimizer": ["adam", "rmsprop"]}
scan = talos.Scan(x, y, p, cnn, "clock", round_limit=4, seed=1)
print("RESULT", len(scan.data), os.path.isdir("logs"))
