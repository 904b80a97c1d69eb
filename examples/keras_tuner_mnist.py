"""The first search in KerasTuner's documentation, with only its import changed.

    KERAS_BACKEND=jax python examples/keras_tuner_mnist.py

The search draws three widths and learning rates at random, and trains each twice. Its weights,
metrics and state are in my_dir/intro_to_kt, in KerasTuner's own files.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras

from paceline.compat import keras_tuner  # it was: import keras_tuner


def build_model(hp):
    model = keras.Sequential()
    model.add(keras.layers.Flatten())
    model.add(
        keras.layers.Dense(
            units=hp.Int("units", min_value=32, max_value=512, step=32), activation="relu"
        )
    )
    model.add(keras.layers.Dense(10, activation="softmax"))
    model.compile(
        optimizer=keras.optimizers.Adam(
            learning_rate=hp.Choice("learning_rate", values=[1e-2, 1e-3, 1e-4])
        ),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def search(max_trials=3, epochs=2, verbose=1):
    (x, y), (x_test, y_test) = keras.datasets.mnist.load_data()
    x, x_test = x.astype("float32") / 255, x_test.astype("float32") / 255
    x_train, x_val, y_train, y_val = x[:-10000], x[-10000:], y[:-10000], y[-10000:]

    tuner = keras_tuner.RandomSearch(
        build_model,
        objective="val_accuracy",
        max_trials=max_trials,
        executions_per_trial=2,
        seed=1,
        overwrite=True,
        directory="my_dir",
        project_name="intro_to_kt",
    )
    tuner.search(x_train, y_train, epochs=epochs, validation_data=(x_val, y_val), verbose=verbose)
    return tuner, (x_test, y_test)


if __name__ == "__main__":
    tuner, (x_test, y_test) = search()
    tuner.search_space_summary()
    tuner.results_summary()
    best_model = tuner.get_best_models()[0]
    best_model.summary()
    print(best_model.evaluate(x_test, y_test, verbose=0))
