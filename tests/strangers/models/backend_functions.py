# Metrics that are written with `keras.backend`, as almost all were before Keras 3.
import numpy as np
from tensorflow import keras
from tensorflow.keras import backend as K
import keras_tuner as kt

x = np.random.RandomState(0).rand(150, 4)
y = (x[:, 0] > 0.5).astype("float32")


def recall_m(y_true, y_pred):
    true_positives = K.sum(K.round(K.clip(y_true * y_pred, 0, 1)))
    possible_positives = K.sum(K.round(K.clip(y_true, 0, 1)))
    return true_positives / (possible_positives + K.epsilon())


def precision_m(y_true, y_pred):
    true_positives = K.sum(K.round(K.clip(y_true * y_pred, 0, 1)))
    predicted_positives = K.sum(K.round(K.clip(y_pred, 0, 1)))
    return true_positives / (predicted_positives + K.epsilon())


def f1_m(y_true, y_pred):
    precision, recall = precision_m(y_true, y_pred), recall_m(y_true, y_pred)
    return 2 * ((precision * recall) / (precision + recall + K.epsilon()))


def build_model(hp):
    model = keras.models.Sequential()
    model.add(keras.layers.Dense(hp.Int("units", 4, 12, step=4), activation="relu"))
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", f1_m])
    return model


tuner = kt.RandomSearch(
    build_model, kt.Objective("val_f1_m", direction="max"), max_trials=3, seed=2
)
tuner.search(x, y.reshape(-1, 1), epochs=2, validation_split=0.3, verbose=0)
print("RESULT", len(tuner.get_best_models()[0].metrics_names) > 0, len(tuner.oracle.trials))
