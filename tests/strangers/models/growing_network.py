# The name of the package before 1.0, layers in a loop, three executions, both summaries.
from tensorflow import keras
from tensorflow.keras import layers
from kerastuner.tuners import RandomSearch
import numpy as np

x = np.random.RandomState(1).rand(200, 20)
y = (x.sum(axis=1) > 10).astype(int)


def build_model(hp):
    model = keras.Sequential()
    for i in range(hp.Int("num_layers", 1, 3)):
        model.add(
            layers.Dense(
                units=hp.Int("units_" + str(i), min_value=8, max_value=24, step=8),
                activation=hp.Choice("act_" + str(i), ["relu", "sigmoid"]),
            )
        )
    model.add(layers.Dense(1, activation="sigmoid"))
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Choice("learning_rate", [1e-2, 1e-3, 1e-4])),
        loss="binary_crossentropy",
        metrics=["accuracy"],
    )
    return model


tuner = RandomSearch(
    build_model,
    objective="val_accuracy",
    max_trials=4,
    executions_per_trial=3,
    seed=7,
    directory="project",
    project_name="helloworld",
)
tuner.search_space_summary()
tuner.search(x[:150], y[:150], epochs=2, validation_data=(x[150:], y[150:]))
tuner.results_summary()
models = tuner.get_best_models(num_models=2)
models[0].summary()
tried = [trial.hyperparameters.values for trial in tuner.oracle.trials.values()]
print("RESULT", len(models), tried)
