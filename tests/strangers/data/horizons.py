# Several steps ahead: timeseries_dataset_from_array, a loss that is chosen, an f-string without f.
import keras_tuner as kt
import numpy as np
import tensorflow as tf
from tensorflow.keras import activations, layers

values = np.cumsum(np.random.RandomState(2).rand(150, 2), axis=0).astype("float32")
values = (values - values.mean(0)) / values.std(0)
horizon, width = 3, 8


def split_window(window):
    inputs, labels = window[:, :width, :], window[:, width:, :1]
    inputs.set_shape([None, width, 2])
    labels.set_shape([None, horizon, 1])
    return inputs, labels


def windows_of(data):
    ds = tf.keras.utils.timeseries_dataset_from_array(
        data=data,
        targets=None,
        sequence_length=width + horizon,
        shuffle=True,
        batch_size=16,
        seed=0,
    )
    return ds.map(split_window)


def build_model_tuning(hp):
    model = tf.keras.Sequential()
    model.add(layers.Lambda(lambda x: x[:, -5:, :]))
    for i in range(hp.Int("num_layers", 1, 2)):
        model.add(
            layers.Conv1D(
                hp.Int("units_{i}", min_value=4, max_value=8, step=4),
                kernel_size=2,
                padding="causal",
                activation=activations.relu,
            )
        )
    model.add(layers.LSTM(6, return_sequences=False))
    model.add(layers.RepeatVector(horizon))
    model.add(layers.LSTM(6, return_sequences=True))
    model.add(layers.TimeDistributed(layers.Dense(1, activation=activations.linear)))
    model.compile(
        optimizer=tf.keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")),
        loss=hp.Choice("loss", ["mse", "mae"]),
        metrics=["mse", tf.keras.metrics.RootMeanSquaredError(), "mae"],
    )
    return model


tuner = kt.BayesianOptimization(
    hypermodel=build_model_tuning,
    objective=kt.Objective("val_root_mean_squared_error", direction="min"),
    max_trials=3,
    executions_per_trial=2,
    overwrite=True,
    seed=3,
    directory="hpo",
    project_name="sales_predictions",
)
tuner.search(
    windows_of(values[:110]), epochs=1, validation_data=windows_of(values[110:]), verbose=2
)
best_model = tuner.get_best_models(num_models=1)[0]
best_model.summary()
found = best_model.predict(windows_of(values[110:]), verbose=0)
print("RESULT", found.shape, sorted(tuner.get_best_hyperparameters()[0].values))
