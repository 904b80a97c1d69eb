# Two directions: the error and the number of parameters; a subclassed model in a data set of tf.
import numpy as np
import optuna
import tensorflow as tf

rng = np.random.RandomState(2)
x = rng.rand(120, 5).astype("float32")
y = x.sum(axis=1, keepdims=True)
train = tf.data.Dataset.from_tensor_slices((x[:90], y[:90])).shuffle(90, seed=0).batch(18)
valid = tf.data.Dataset.from_tensor_slices((x[90:], y[90:])).batch(15)


class Regressor(tf.keras.Model):
    def __init__(self, units, rate):
        super().__init__()
        self.hidden = [tf.keras.layers.Dense(u, activation="relu") for u in units]
        self.drop = tf.keras.layers.Dropout(rate)
        self.out = tf.keras.layers.Dense(1)

    def call(self, inputs, training=False):
        for layer in self.hidden:
            inputs = layer(inputs)
        return self.out(self.drop(inputs, training=training))


def objective(trial):
    units = [
        trial.suggest_int(f"units_{i}", 2, 10) for i in range(trial.suggest_int("layers", 1, 2))
    ]
    model = Regressor(units, trial.suggest_float("rate", 0.0, 0.4, step=0.1))
    model.compile(
        optimizer=tf.keras.optimizers.Adam(trial.suggest_float("lr", 1e-3, 1e-1, log=True)),
        loss="mse",
    )
    model.fit(train, validation_data=valid, epochs=2, verbose=0)
    return min(model.history.history["val_loss"]), model.count_params()


study = optuna.create_study(
    directions=["minimize", "minimize"],
    sampler=optuna.samplers.NSGAIISampler(seed=3, population_size=4),
)
study.optimize(objective, n_trials=5)
sizes = [int(t.values[1]) for t in study.trials]
print("RESULT", len(study.trials), len(study.best_trials) >= 1, all(size > 0 for size in sizes))
