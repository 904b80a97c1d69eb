# The three tuners in one loop, made by a function, with the best trial of each in a table.
import keras_tuner as kt
import numpy as np
from tensorflow import keras

keras.utils.set_random_seed(0)
rng = np.random.RandomState(0)
x_train = rng.rand(120, 16).astype("float32")
y_train = keras.utils.to_categorical(rng.randint(0, 3, 120), 3)


def build_model(hp):
    model = keras.Sequential()
    model.add(
        keras.layers.Dense(
            units=hp.Int("units", 8, 24, step=8), activation="relu", input_shape=(16,)
        )
    )
    model.add(keras.layers.Dropout(hp.Float("rate", 0.0, 0.5, step=0.25)))
    model.add(keras.layers.Dense(3, activation="softmax"))
    model.compile(
        optimizer=hp.Choice("optimizer", ["adam", "rmsprop", "sgd", "adagrad"]),
        loss="categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def initiate_tuner(tuner_name, model, seed, hyperband_iterations, max_trials, objective):
    if tuner_name == "Hyperband":
        return kt.Hyperband(
            model,
            objective=objective,
            hyperband_iterations=hyperband_iterations,
            max_epochs=3,
            seed=seed,
            project_name=tuner_name,
        )
    if tuner_name == "RandomSearch":
        return kt.RandomSearch(
            model, objective=objective, max_trials=max_trials, seed=seed, project_name=tuner_name
        )
    return kt.BayesianOptimization(
        model, objective=objective, max_trials=max_trials, seed=seed, project_name=tuner_name
    )


results = []
for tuner_name in ["Hyperband", "RandomSearch", "BayesianOptimization"]:
    tuner = initiate_tuner(tuner_name, build_model, 0, 1, 3, "val_accuracy")
    tuner.search(x_train, y_train, epochs=2, validation_split=0.2, verbose=1)
    best_trial = tuner.oracle.get_best_trials(num_trials=1)[0]
    results.append(
        {
            "Tuner": tuner_name,
            "Best Accuracy": best_trial.score,
            "Values": best_trial.hyperparameters.values,
        }
    )
print("RESULT", [row["Tuner"] for row in results], [sorted(row["Values"])[:3] for row in results])
print(
    "RESULT", [0.0 <= row["Best Accuracy"] <= 1.0 for row in results], tuner.oracle.objective.name
)
