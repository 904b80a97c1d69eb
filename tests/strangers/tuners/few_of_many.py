# A space that is given searches one value and holds the others: tune_new_entries, override a kind.
import keras_tuner
import numpy as np
from tensorflow import keras
from tensorflow.keras import layers

x_train, y_train = np.random.rand(64, 7, 7, 1), np.random.randint(0, 4, (64, 1))
x_val, y_val = np.random.rand(16, 7, 7, 1), np.random.randint(0, 4, (16, 1))


def build_model(hp):
    model = keras.Sequential()
    model.add(layers.Flatten())
    for i in range(hp.Int("num_layers", 1, 3)):
        model.add(layers.Dense(units=hp.Int(f"units_{i}", 4, 16, 4), activation="relu"))
    if hp.Boolean("dropout"):
        model.add(layers.Dropout(rate=0.25))
    model.add(layers.Dense(units=4, activation="softmax"))
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Choice("learning_rate", values=[1e-2, 1e-3, 1e-4])),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


hp = keras_tuner.HyperParameters()
hp.Float("learning_rate", min_value=1e-4, max_value=1e-2, sampling="log")
few = keras_tuner.RandomSearch(
    hypermodel=build_model,
    hyperparameters=hp,
    tune_new_entries=False,
    objective="val_accuracy",
    max_trials=3,
    overwrite=True,
    directory="my_dir",
    project_name="search_a_few",
)
few.search(x_train, y_train, epochs=1, validation_data=(x_val, y_val))
held = keras_tuner.HyperParameters()
held.Fixed("learning_rate", value=1e-4)
rest = keras_tuner.RandomSearch(
    build_model,
    hyperparameters=held,
    tune_new_entries=True,
    objective="val_accuracy",
    max_trials=3,
    overwrite=True,
    directory="my_dir",
    project_name="fix_a_few",
)
rest.search(x_train, y_train, epochs=1, validation_data=(x_val, y_val))
rates = [t.hyperparameters.get("learning_rate") for t in few.oracle.get_best_trials(3)]
print("RESULT", len(set(rates)), all(1e-4 <= rate <= 1e-2 for rate in rates))
print("RESULT", [(p.name, type(p).__name__) for p in few.oracle.get_space().space])
print("RESULT", {t.hyperparameters.get("learning_rate") for t in rest.oracle.trials.values()})
print("RESULT", sorted(p.name for p in rest.oracle.get_space().space)[:3])
best = few.get_best_models(1)[0]
print("RESULT", best.predict(x_val, verbose=0).shape)
