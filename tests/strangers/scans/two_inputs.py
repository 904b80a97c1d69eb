# A list of arrays as x: multi_input.
import numpy as np
import talos
from tensorflow import keras
from tensorflow.keras import layers

rng = np.random.RandomState(0)
x = [rng.rand(100, 4), rng.rand(100, 3)]
y = rng.randint(0, 2, 100)


def model_of(x_train, y_train, x_val, y_val, params):
    left, right = keras.Input((4,)), keras.Input((3,))
    both = layers.concatenate(
        [layers.Dense(params["left"])(left), layers.Dense(params["right"])(right)]
    )
    model = keras.Model([left, right], layers.Dense(1, activation="sigmoid")(both))
    model.compile("adam", "binary_crossentropy", metrics=["acc"])
    out = model.fit(
        x_train,
        y_train,
        validation_data=(x_val, y_val),
        epochs=2,
        batch_size=25,
        verbose=0,
        class_weight=params["weights"],
    )
    return out, model


p = {"left": [2, 4], "right": [2, 4], "weights": [{0: 1, 1: 0.5}, {0: 1, 1: 2}]}
scan = talos.Scan(x, y, p, model_of, "two_inputs", multi_input=True, val_split=0.2, seed=3)
print("RESULT", len(scan.data), sorted(set(map(str, scan.data.weights))))
