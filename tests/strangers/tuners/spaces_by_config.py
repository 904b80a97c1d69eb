# A space that is read by its configuration, changed and built again; some values are held fixed.
import keras_tuner
from keras_tuner import HyperParameters
import numpy as np
import tensorflow as tf

rng = np.random.RandomState(0)
x, y = rng.rand(90, 4), rng.randint(0, 2, 90)


def model_builder(hp):
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Dense(hp.Int("units", 4, 16, 4, default=8), activation="relu"))
    model.add(tf.keras.layers.Dropout(hp.Float("dropout", 0.0, 0.5, step=0.1)))
    model.add(tf.keras.layers.Dense(1, activation="sigmoid"))
    lr = hp.Float("learning_rate", 1e-4, 1e-2, sampling="log")
    model.compile(
        tf.keras.optimizers.Adam(lr),
        "binary_crossentropy",
        metrics=[tf.keras.metrics.AUC(name="auroc")],
    )
    return model


hp = HyperParameters()
hp.Fixed("learning_rate", value=1e-3)
hp.Int("units", 4, 8, 4)
tuner = keras_tuner.RandomSearch(
    model_builder,
    hyperparameters=hp,
    tune_new_entries=False,
    objective=keras_tuner.Objective("val_auroc", "max"),
    max_trials=3,
    seed=1,
    overwrite=True,
    directory="my_dir",
    project_name="fixed",
)
tuner.search(x[:60], y[:60], epochs=1, validation_data=(x[60:], y[60:]))
space = tuner.oracle.get_space()
for parameter in space.space:
    config = parameter.get_config()
    print(config.pop("name"), config)
best = tuner.get_best_hyperparameters()[0]
config = best.get_config()
config["values"]["dropout"] = 0.3
changed = HyperParameters.from_config(config)
model = tuner.hypermodel.build(changed)
model.fit(x, y, epochs=1, verbose=0)
print(
    "RESULT",
    sorted(best.values.items())[1:2],
    changed.get("dropout"),
    len(tuner.oracle.trials),
    sorted(config),
)
print("RESULT", [type(p).__name__ for p in space.space], "dropout" in hp, best.is_active("units"))
