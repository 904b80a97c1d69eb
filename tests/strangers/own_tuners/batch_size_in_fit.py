# HyperModel.fit that tunes the batch size and shuffling, as Keras' guide shows it.
import keras_tuner
import numpy as np
import keras
from keras import layers

x_train = np.random.RandomState(0).rand(120, 10)
y_train = (x_train[:, :1] > 0.5).astype("float32")


class MyHyperModel(keras_tuner.HyperModel):
    def build(self, hp):
        model = keras.Sequential()
        model.add(layers.Flatten())
        model.add(layers.Dense(units=hp.Int("units", min_value=8, max_value=24, step=8)))
        model.add(layers.Dense(1))
        model.compile(optimizer="adam", loss="mse", metrics=["mean_absolute_error"])
        return model

    def fit(self, hp, model, *args, **kwargs):
        return model.fit(
            *args,
            batch_size=hp.Choice("batch_size", [16, 32]),
            shuffle=hp.Boolean("shuffle"),
            **kwargs,
        )


tuner = keras_tuner.RandomSearch(
    MyHyperModel(),
    objective="val_mean_absolute_error",
    max_trials=4,
    overwrite=True,
    directory="my_dir",
    project_name="tune_hypermodel",
    seed=8,
)
tuner.search(x_train, y_train, epochs=2, validation_data=(x_train, y_train))
best_hp = tuner.get_best_hyperparameters()[0]
hypermodel = MyHyperModel()
model = hypermodel.build(best_hp)
hypermodel.fit(best_hp, model, x_train, y_train, epochs=1, verbose=0)
print("RESULT", sorted(best_hp.values), len(tuner.oracle.trials))
