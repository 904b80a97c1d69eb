# Conditional scopes, fixed values, a space that is declared before the search.
import numpy as np
import keras_tuner
from tensorflow import keras

x, y = np.random.RandomState(0).rand(100, 6), np.random.RandomState(1).rand(100, 1)


def build(hp):
    model = keras.Sequential([keras.Input((6,))])
    model_type = hp.Choice("model_type", ["deep", "wide"])
    if model_type == "deep":
        with hp.conditional_scope("model_type", ["deep"]):
            for i in range(hp.Int("layers", 2, 3)):
                model.add(keras.layers.Dense(hp.Int(f"deep_{i}", 4, 8, 4), activation="relu"))
    if model_type == "wide":
        with hp.conditional_scope("model_type", ["wide"]):
            model.add(keras.layers.Dense(hp.Int("wide", 16, 32, 16), activation="relu"))
    if hp.Boolean("dropout"):
        model.add(keras.layers.Dropout(hp.Fixed("rate", 0.25)))
    rate = hp.Float("learning_rate", 1e-4, 1e-2, sampling="log", default=1e-3)
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(rate), "mse")
    return model


hp = keras_tuner.HyperParameters()
hp.Float("learning_rate", 1e-3, 1e-2, sampling="log")
hp.Fixed("dropout", value=True)
tuner = keras_tuner.RandomSearch(
    build,
    hyperparameters=hp,
    tune_new_entries=True,
    objective="val_loss",
    max_trials=5,
    seed=4,
    overwrite=True,
    directory="scopes",
)
tuner.search(x, y, epochs=2, validation_split=0.2)
spaces = [sorted(t.hyperparameters.values.items()) for t in tuner.oracle.trials.values()]
print("RESULT", spaces)
