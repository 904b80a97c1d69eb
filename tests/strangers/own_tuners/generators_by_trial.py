# A subclass that makes generators with values of the trial, and gives them to its parent.
import numpy as np
import keras_tuner
from tensorflow import keras

rng = np.random.RandomState(6)
videos = rng.rand(60, 4, 5, 5, 1).astype("float32")


class ShuffledFrames(keras.utils.Sequence):
    def __init__(self, ids, batch_size, shuffle, step_swaps):
        super().__init__()
        self.ids, self.batch_size, self.shuffle, self.swaps = (
            np.array(ids),
            batch_size,
            shuffle,
            step_swaps,
        )
        self.on_epoch_end()

    def __len__(self):
        return int(np.floor(len(self.ids) / self.batch_size))

    def on_epoch_end(self):
        if self.shuffle:
            np.random.shuffle(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index * self.batch_size : (index + 1) * self.batch_size]
        y = (ids % 2).astype("float32")
        x = videos[ids].copy()
        x[y == 1] = x[y == 1][:, ::-1]
        return x, y


class TunerBayesianShuffle(keras_tuner.tuners.BayesianOptimization):
    def run_trial(self, trial, train_ids, validation_ids, verbose, epochs, callbacks):
        hp = trial.hyperparameters
        params = {
            "batch_size": hp.Choice("batch_size", values=[8, 10], default=10),
            "shuffle": hp.Boolean("shuffle", default=True),
            "step_swaps": hp.Int("step_swaps", min_value=1, max_value=3, default=2, step=1),
        }
        train_generator = ShuffledFrames(train_ids, **params)
        validation_generator = ShuffledFrames(validation_ids, **params)
        return super(TunerBayesianShuffle, self).run_trial(
            trial,
            train_generator,
            validation_data=validation_generator,
            verbose=verbose,
            epochs=epochs,
            callbacks=callbacks,
        )


def build(hp):
    model = keras.Sequential()
    model.add(keras.layers.Input((4, 5, 5, 1)))
    model.add(keras.layers.TimeDistributed(keras.layers.Conv2D(hp.Choice("filters", [2, 4]), 3)))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dropout(hp.Float("dropout", 0.0, 0.4, step=0.2)))
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


tuner = TunerBayesianShuffle(
    build,
    objective=keras_tuner.Objective("val_accuracy", direction="max"),
    max_trials=3,
    seed=1,
    directory="shuffled",
    project_name="frames",
    overwrite=True,
)
stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2)
tuner.search(list(range(40)), list(range(40, 60)), verbose=0, epochs=2, callbacks=[stop])
found = tuner.get_best_hyperparameters()[0].values
print("RESULT", sorted(found), found["batch_size"] in (8, 10), len(tuner.oracle.trials))
