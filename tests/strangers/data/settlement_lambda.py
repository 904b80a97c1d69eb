# A lambda around the builder, tensors as data, and a model trained again for each fold.
import numpy as np
import tensorflow as tf
import keras_tuner as kt
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler
from tensorflow.keras.callbacks import EarlyStopping
from tensorflow.keras.layers import Dense, Dropout
from tensorflow.keras.models import Sequential

rng = np.random.RandomState(1)
X = StandardScaler().fit_transform(rng.rand(160, 7))
y = (X @ rng.rand(7)).reshape(-1, 1)


def build_model(hp, input_dim):
    model = Sequential()
    model.add(Dense(hp.Int("units_in", 8, 24, step=8), activation="relu", input_dim=input_dim))
    for i in range(hp.Int("num_layers", 1, 2)):
        model.add(Dense(hp.Int(f"units_{i}", 8, 16, step=8), activation="relu"))
        model.add(Dropout(hp.Float(f"dropout_{i}", 0.0, 0.4, step=0.2)))
    model.add(Dense(1))
    model.compile(
        optimizer=tf.keras.optimizers.Adam(hp.Choice("learning_rate", [1e-2, 1e-3])),
        loss="mse",
        metrics=["mae"],
    )
    return model


tuner = kt.Hyperband(
    lambda hp: build_model(hp, X.shape[1]),
    objective="val_mae",
    max_epochs=4,
    factor=2,
    directory="tuner_results",
    project_name="network_test",
    seed=42,
)
x_tf = tf.convert_to_tensor(X, dtype=tf.float32)
y_tf = tf.convert_to_tensor(y, dtype=tf.float32)
stop = EarlyStopping(monitor="val_mae", patience=10, restore_best_weights=True, verbose=1)
tuner.search(x_tf, y_tf, epochs=4, batch_size=32, validation_split=0.2, callbacks=[stop])
best = tuner.get_best_hyperparameters(num_trials=1)[0]
maes = []
for train, test in KFold(n_splits=2).split(X):
    model = build_model(best, X.shape[1])
    model.fit(X[train], y[train], epochs=2, verbose=0)
    maes.append(float(np.mean(np.abs(model.predict(X[test], verbose=0) - y[test]))))
print(
    "RESULT",
    len(tuner.oracle.trials),
    len(maes),
    "units_in" in best.values,
    best.get("learning_rate") in (1e-2, 1e-3),
)
