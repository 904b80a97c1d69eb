# Every combination, values that are read back, and a table of all trials made by hand.
import numpy as np
import pandas as pd
import keras_tuner as kt
from tensorflow import keras
from sklearn.datasets import load_iris

x, y = load_iris(return_X_y=True)


def build(hp):
    model = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(
                hp.Choice("units", [4, 8]),
                activation=hp.Choice("activation", ["relu", "tanh"]),
                kernel_initializer="he_uniform",
            ),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    sgd = keras.optimizers.SGD(hp.Choice("lr", [0.1, 0.01]), momentum=0.9, nesterov=True)
    model.compile(sgd, loss="sparse_categorical_crossentropy", metrics=["acc"])
    return model


tuner = kt.GridSearch(build, objective="val_acc", directory="grid", project_name="iris")
tuner.search(x, y, epochs=2, validation_split=0.3, batch_size=32)
rows = []
for trial in tuner.oracle.get_best_trials(num_trials=100):
    rows.append({**trial.hyperparameters.values, "score": trial.score, "step": trial.best_step})
frame = pd.DataFrame(rows).drop(columns=["score", "step"])
frame = frame.sort_values(list(frame.columns)).reset_index(drop=True)
print("RESULT", frame.to_csv(index=False).splitlines())
