# Volumes from a keras.utils.Sequence with workers, Conv3D, objects for losses and metrics.
import math
import numpy as np
from tensorflow import keras
import keras_tuner as kt


class Volumes(keras.utils.Sequence):
    def __init__(self, count, batch_size, seed, **kwargs):
        super().__init__(**kwargs)
        rng = np.random.default_rng(seed)
        self.x = rng.random((count, 6, 6, 6, 1)).astype("float32")
        self.y = self.x * 2.0
        self.batch_size = batch_size

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, idx):
        part = slice(idx * self.batch_size, (idx + 1) * self.batch_size)
        return self.x[part], self.y[part]


def model_initializer(hp):
    model = keras.Sequential()
    model.add(keras.layers.Input((6, 6, 6, 1)))
    for i in range(hp.Int("conv_layers", 1, 2)):
        model.add(
            keras.layers.Conv3D(
                filters=hp.Int(f"filters_{i}", min_value=2, max_value=4, step=2),
                kernel_size=hp.Choice(f"kernel_{i}", values=[1, 3]),
                activation="relu",
                padding="same",
            )
        )
    model.add(keras.layers.Conv3D(1, kernel_size=(1, 1, 1), activation="linear", padding="same"))
    model.compile(
        loss=keras.losses.MeanSquaredError(),
        optimizer=keras.optimizers.Adam(
            learning_rate=hp.Float("learning_rate", min_value=1e-4, max_value=1e-2, sampling="LOG")
        ),
        metrics=[keras.metrics.MeanAbsoluteError()],
    )
    return model


tuner = kt.Hyperband(
    model_initializer,
    objective="val_loss",
    max_epochs=2,
    factor=2,
    seed=11,
    directory="kt_tuning",
    project_name="hyperparameter_tuning",
)
train = Volumes(20, 5, 0, workers=1, use_multiprocessing=False, max_queue_size=10)
tuner.search(train, epochs=2, validation_data=Volumes(8, 4, 1), verbose=2)
best = tuner.get_best_hyperparameters(num_trials=1)[0]
model = tuner.hypermodel.build(best)
history = model.fit(train, validation_data=Volumes(8, 4, 1), epochs=1, verbose=0)
print("RESULT", sorted(history.history), len(tuner.oracle.trials), "filters_0" in best.values)
