# Limits: a lambda on the permutations, a target, a time, and the older names of arguments.
import datetime
import numpy as np
import talos
from tensorflow import keras

x, y = np.random.RandomState(0).rand(90, 5), np.random.RandomState(1).randint(0, 2, 90)


def model_of(x_train, y_train, x_val, y_val, params):
    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(params["a"])])
    model.add(keras.layers.Dense(params["b"], activation="relu"))
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["acc"])
    out = model.fit(x_train, y_train, validation_data=(x_val, y_val), epochs=1, verbose=0)
    return out, model


later = datetime.datetime.now() + datetime.timedelta(minutes=30)
scan = talos.Scan(
    x,
    y,
    {"a": [2, 4, 8], "b": [2, 4, 8]},
    model_of,
    "limited",
    x_val=x[:30],
    y_val=y[:30],
    boolean_limit=lambda p: p["a"] >= p["b"],
    performance_target=["val_acc", 0.999, False],
    time_limit=later.strftime("%Y-%m-%d %H:%M"),
    save_weights=False,
    clear_session=True,
)
print("RESULT", sorted(zip(scan.data.a, scan.data.b)))
