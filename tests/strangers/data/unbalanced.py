# Few positives: class weights, an initial bias of the output, many metrics.
import numpy as np
import tensorflow as tf
from tensorflow import keras
import keras_tuner as kt
from sklearn.utils.class_weight import compute_class_weight

rng = np.random.RandomState(9)
x = rng.normal(size=(300, 8)).astype("float32")
y = (x[:, 0] + 0.3 * rng.normal(size=300) > 1.2).astype(int)
weights = compute_class_weight("balanced", classes=np.unique(y), y=y)
class_weight = dict(enumerate(weights))
METRICS = [
    keras.metrics.TruePositives(name="tp"),
    keras.metrics.FalsePositives(name="fp"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
    keras.metrics.AUC(name="prc", curve="PR"),
]
initial_bias = np.log([y.sum() / (len(y) - y.sum())])


def make_model(hp):
    output_bias = tf.keras.initializers.Constant(initial_bias)
    model = keras.Sequential(
        [
            keras.layers.Dense(hp.Int("units", 8, 16, 8), activation="relu", input_shape=(8,)),
            keras.layers.Dropout(hp.Choice("dropout", [0.0, 0.3])),
            keras.layers.Dense(1, activation="sigmoid", bias_initializer=output_bias),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=hp.Choice("lr", [1e-2, 1e-3])),
        loss=keras.losses.BinaryCrossentropy(),
        metrics=METRICS,
    )
    return model


tuner = kt.RandomSearch(
    make_model, objective=kt.Objective("val_prc", direction="max"), max_trials=3, seed=1
)
tuner.search(
    x,
    y,
    epochs=2,
    validation_split=0.2,
    class_weight=class_weight,
    callbacks=[keras.callbacks.EarlyStopping("val_prc", patience=1, mode="max")],
)
best = tuner.oracle.get_best_trials(1)[0]
print("RESULT", sorted(best.metrics.metrics), tuner.oracle.objective.direction)
