# A rate that cycles with each batch, a CSV log, TensorBoard, and a Hyperband that is summarized.
import keras_tuner as kt
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from tensorflow.keras import backend as K

x, y = load_breast_cancer(return_X_y=True)
x_train, x_val, y_train, y_val = train_test_split(x, y, test_size=0.3, random_state=0)
scaler = StandardScaler().fit(x_train)
x_train, x_val = scaler.transform(x_train), scaler.transform(x_val)


class CyclicLR(tf.keras.callbacks.Callback):
    def __init__(self, base_lr=1e-3, max_lr=6e-3, step_size=20.0):
        super().__init__()
        self.base_lr, self.max_lr, self.step_size = base_lr, max_lr, step_size
        self.iterations = 0.0
        self.history = {}

    def clr(self):
        cycle = np.floor(1 + self.iterations / (2 * self.step_size))
        position = np.abs(self.iterations / self.step_size - 2 * cycle + 1)
        return self.base_lr + (self.max_lr - self.base_lr) * np.maximum(0, 1 - position)

    def on_train_begin(self, logs=None):
        self.model.optimizer.learning_rate.assign(self.base_lr)

    def on_train_batch_end(self, batch, logs=None):
        self.iterations += 1
        self.history.setdefault("lr", []).append(K.get_value(self.model.optimizer.learning_rate))
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)
        self.model.optimizer.learning_rate.assign(self.clr())


def build_model(hp):
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Input(shape=(x_train.shape[1],)))
    for i in range(hp.Int("num_layers", 1, 2)):
        model.add(
            tf.keras.layers.Dense(
                units=hp.Int(f"units_{i}", min_value=8, max_value=24, step=8),
                activation=hp.Choice("activation", ["relu", "tanh"]),
                kernel_regularizer=tf.keras.regularizers.l2(
                    hp.Float("l2", 1e-5, 1e-3, sampling="log")
                ),
            )
        )
    model.add(tf.keras.layers.Dense(1, activation="sigmoid"))
    model.compile(
        optimizer=tf.keras.optimizers.SGD(learning_rate=1e-3, momentum=0.9),
        loss="binary_crossentropy",
        metrics=["accuracy", tf.keras.metrics.AUC(name="auc")],
    )
    return model


tuner = kt.Hyperband(
    build_model,
    objective=kt.Objective("val_auc", direction="max"),
    max_epochs=4,
    factor=3,
    seed=1,
    directory="cyclic",
    project_name="cancer",
    overwrite=True,
)
clr = CyclicLR(step_size=2 * len(x_train) // 32)
tuner.search(
    x_train,
    y_train,
    epochs=4,
    batch_size=32,
    validation_data=(x_val, y_val),
    callbacks=[clr, tf.keras.callbacks.CSVLogger("log.csv"), tf.keras.callbacks.TensorBoard("tb")],
    verbose=0,
)
best_hps = tuner.get_best_hyperparameters(num_trials=1)[0]
model = tuner.hypermodel.build(best_hps)
history = model.fit(x_train, y_train, epochs=2, validation_split=0.2, verbose=0)
print(
    "RESULT", sorted(best_hps.values)[:3], len(history.history["val_auc"]), len(tuner.oracle.trials)
)
