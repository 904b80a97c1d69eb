# A Normalization layer that was adapted before the search, GRUs, a loss of logarithms, frames.
import numpy as np
import pandas as pd
import keras_tuner as kt
from tensorflow.keras import Sequential, layers
from tensorflow.keras.callbacks import EarlyStopping
from tensorflow.keras.optimizers import RMSprop

rng = np.random.default_rng(3)
X_train = rng.random((90, 6, 3)).astype("float32") * 50
X_valid = rng.random((30, 6, 3)).astype("float32") * 50
y_train = pd.DataFrame({"visits": X_train.mean(axis=(1, 2))})
y_valid = pd.DataFrame({"visits": X_valid.mean(axis=(1, 2))})

normalizer = layers.Normalization()
normalizer.adapt(X_train)


def build_model(hp):
    model = Sequential()
    model.add(normalizer)
    model.add(layers.Masking(mask_value=0.0))
    for i in range(hp.Int("recurrent", 0, 1)):
        model.add(layers.GRU(hp.Int("gru_" + str(i), 4, 8, 4), return_sequences=True))
    model.add(layers.GRU(hp.Int("last", 4, 8, 4), activation="tanh"))
    model.add(layers.Dense(8, activation="relu"))
    model.add(layers.Dense(1, activation="softplus"))
    model.compile(
        loss="msle",
        optimizer=RMSprop(learning_rate=hp.Float("lr", 1e-3, 1e-1, sampling="log")),
        metrics=["mae", "mape"],
    )
    return model


tuner = kt.RandomSearch(
    build_model,
    kt.Objective("val_mape", direction="min"),
    max_trials=3,
    seed=1,
    directory="visits",
    overwrite=True,
)
es = EarlyStopping(patience=2, restore_best_weights=True)
tuner.search(
    X_train,
    y_train,
    epochs=2,
    batch_size=16,
    validation_data=(X_valid, y_valid),
    callbacks=[es],
    verbose=0,
)
best = tuner.get_best_models()[0]
trial = tuner.oracle.get_best_trials()[0]
print("RESULT", best.predict(X_valid, verbose=0).shape, sorted(trial.metrics.metrics), trial.status)
print("RESULT", [layer.__class__.__name__ for layer in best.layers][-2:], trial.best_step in (0, 1))
