# Several labels a text: given vectors in the Embedding, rates by hand with K, three executions.
import keras_tuner
import numpy as np
from keras_tuner import RandomSearch
from tensorflow import keras
from tensorflow.keras import backend as K
from tensorflow.keras.layers import Activation, Conv1D, Dense, Dropout, Embedding, GlobalMaxPool1D
from tensorflow.keras.models import Sequential

rng = np.random.RandomState(9)
X = rng.randint(1, 50, (120, 15))
y = (rng.rand(120, 4) > 0.6).astype("float32")
vectors = rng.rand(50, 8)


def recall(y_true, y_pred):
    hits = K.sum(K.round(K.clip(y_true * y_pred, 0, 1)))
    return hits / (K.sum(K.round(K.clip(y_true, 0, 1))) + K.epsilon())


def precision(y_true, y_pred):
    hits = K.sum(K.round(K.clip(y_true * y_pred, 0, 1)))
    return hits / (K.sum(K.round(K.clip(y_pred, 0, 1))) + K.epsilon())


def c_f1(y_true, y_pred):
    p, r = precision(y_true, y_pred), recall(y_true, y_pred)
    return 2 * ((p * r) / (p + r + K.epsilon()))


def tuner_model(hp):
    model = Sequential()
    model.add(Embedding(50, 8, weights=[vectors]))
    model.add(Dropout(0.3))
    model.add(
        Conv1D(
            filters=hp.Int("filters", min_value=4, max_value=12, step=4),
            kernel_size=hp.Int("kernel_size", min_value=3, max_value=5, step=2),
            padding="same",
            activation="relu",
        )
    )
    model.add(GlobalMaxPool1D())
    model.add(Dense(4))
    model.add(Activation("sigmoid"))
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Choice("learning_rate", values=[1e-2, 1e-3])),
        loss="binary_crossentropy",
        metrics=[precision, recall, c_f1],
    )
    return model


tuner = RandomSearch(
    tuner_model,
    objective=keras_tuner.Objective("val_c_f1", direction="max"),
    max_trials=2,
    executions_per_trial=2,
    seed=5,
    overwrite=True,
)
tuner.search_space_summary()
tuner.search(X, y, epochs=2, validation_data=(X[:40], y[:40]))
best_models = tuner.get_best_models(num_models=2)
model = tuner.hypermodel.build(tuner.get_best_hyperparameters(num_trials=1)[0])
history = model.fit(X, y, epochs=2, validation_split=0.2, verbose=0)
print("RESULT", len(best_models), sorted(history.history), len(history.history["val_c_f1"]))
