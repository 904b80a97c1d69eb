r"""How wide and how deep must a network for handwritten digits be, and how fast may it learn?

    python examples/gallery/digits.py

The digits ship with scikit-learn: nothing is downloaded.
"""

import paceline  # import it before keras, so that Keras uses JAX

import keras


def build(hp):
    model = keras.Sequential([keras.Input((64,))])
    for layer in range(hp.Int("layers", 1, 3)):
        units = hp.Choice(f"units_{layer}", [8, 16, 32, 64, 128])
        model.add(keras.layers.Dense(units, activation="relu"))
        model.add(keras.layers.Dropout(hp.Float("dropout", 0.05, 0.5)))
    model.add(keras.layers.Dense(10, activation="softmax"))
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-1, sampling="log")),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def search(n_trials=96, epochs=20):
    (x, y), validation_data = paceline.datasets.digits()
    tuner = paceline.Tuner(build, objective="val_accuracy", study="digits", sampler="tpe", seed=0)
    tuner.search(
        x, y, validation_data=validation_data, epochs=epochs, batch_size=32, n_trials=n_trials
    )
    return tuner


def outcome(tuner):
    """Return what the best model does: name -> text."""
    _, (x_val, y_val) = paceline.datasets.digits()
    model = tuner.best_model()
    wrong = int((model.predict(x_val, verbose=0).argmax(axis=1) != y_val).sum())
    return {
        "weights of the best model": f"{model.count_params():,}",
        "validation images that it names wrong": f"{wrong} of {len(y_val)}",
    }


if __name__ == "__main__":
    tuner = search()
    print(tuner.best_trial.hparams, outcome(tuner), tuner.report("digits.html"), sep="\n")
