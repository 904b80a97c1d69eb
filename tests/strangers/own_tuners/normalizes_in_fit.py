# HyperModel.fit that may normalize its data; TensorBoard in the folder of the project.
from pathlib import Path
import keras_tuner
import tensorflow
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

full_data, full_labels = load_digits(return_X_y=True)
full_data, full_labels = full_data[:240].reshape(-1, 8, 8) / 16.0, full_labels[:240]
data, validation_data, labels, validation_labels = train_test_split(
    full_data, full_labels, random_state=0
)
tensorflow.random.set_seed(0)


def build_model(hp):
    n_hidden = hp.Int("n_hidden", min_value=0, max_value=2, default=1)
    n_neurons = hp.Int("n_neurons", min_value=8, max_value=24)
    learning_rate = hp.Float("learning_rate", min_value=1e-4, max_value=1e-2, sampling="log")
    optimizer = hp.Choice("optimizer", values=["sgd", "adam"])
    if optimizer == "sgd":
        optimizer = tensorflow.keras.optimizers.SGD(learning_rate=learning_rate)
    else:
        optimizer = tensorflow.keras.optimizers.Adam(learning_rate=learning_rate)
    model = tensorflow.keras.Sequential()
    model.add(tensorflow.keras.layers.Flatten())
    for _ in range(n_hidden):
        model.add(tensorflow.keras.layers.Dense(n_neurons, activation="relu"))
    model.add(tensorflow.keras.layers.Dense(10, activation="softmax"))
    model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
    return model


class MyClassificationHyperModel(keras_tuner.HyperModel):
    def build(self, hp):
        return build_model(hp)

    def fit(self, hp, model, X, y, **kwargs):
        if hp.Boolean("normalize"):
            norm_layer = tensorflow.keras.layers.Normalization()
            X = norm_layer(X)
        return model.fit(X, y, **kwargs)


tuner = keras_tuner.Hyperband(
    MyClassificationHyperModel(),
    objective="val_accuracy",
    seed=0,
    max_epochs=3,
    factor=3,
    hyperband_iterations=1,
    overwrite=True,
    directory="logs/my_digits",
    project_name="hyperband",
)
root_logdir = Path(tuner.project_dir) / "tensorboard"
tensorboard_cb = tensorflow.keras.callbacks.TensorBoard(root_logdir)
early_stopping_cb = tensorflow.keras.callbacks.EarlyStopping(patience=2)
tuner.search(
    data,
    labels,
    epochs=3,
    validation_data=(validation_data, validation_labels),
    callbacks=[early_stopping_cb, tensorboard_cb],
)
top3_models = tuner.get_best_models(num_models=3)
best_model = top3_models[0]
best_model.fit(full_data, full_labels, epochs=1, verbose=0)
scores = best_model.evaluate(validation_data, validation_labels, verbose=0)
print(
    "RESULT",
    len(top3_models),
    len(scores),
    sorted(tuner.get_best_hyperparameters()[0].values)[:5],
    root_logdir.exists(),
)
