# A warm-up by batch in the objective, failures that count as infinity, FixedTrial for the best.
import math

import numpy as np
import optuna
from tensorflow import keras

rng = np.random.RandomState(5)
x, y = rng.rand(128, 8).astype("float32"), rng.rand(128, 1).astype("float32")


class WarmUpCosine(keras.callbacks.Callback):
    def __init__(self, base_lr, total_steps, warmup_steps):
        super().__init__()
        self.base_lr, self.total, self.warmup = base_lr, total_steps, warmup_steps
        self.global_step = 0
        self.learning_rates = []

    def on_batch_begin(self, batch, logs=None):
        if self.global_step < self.warmup:
            lr = self.base_lr * (self.global_step + 1) / self.warmup
        else:
            done = (self.global_step - self.warmup) / (self.total - self.warmup)
            lr = 0.5 * self.base_lr * (1 + math.cos(math.pi * done))
        self.model.optimizer.learning_rate.assign(lr)

    def on_batch_end(self, batch, logs=None):
        self.global_step += 1
        self.learning_rates.append(float(self.model.optimizer.learning_rate.numpy()))


def make_model(trial):
    model = keras.Sequential([keras.layers.Input((8,))])
    model.add(keras.layers.Dense(trial.suggest_int("units", 8, 24, step=8), activation="gelu"))
    model.add(keras.layers.Dense(1))
    momentum = trial.suggest_float("momentum", 0.0, 0.9)
    model.compile(keras.optimizers.SGD(0.01, momentum=momentum), loss="huber", metrics=["mae"])
    return model


def objective(trial):
    try:
        model = make_model(trial)
        base = trial.suggest_float("base_lr", 1e-3, 1e-1, log=True)
        schedule = WarmUpCosine(base, total_steps=12, warmup_steps=4)
        history = model.fit(
            x,
            y,
            validation_split=0.25,
            epochs=4,
            batch_size=32,
            callbacks=[schedule],
            verbose=0,
        )
        trial.set_user_attr("rates", len(schedule.learning_rates))
        trial.set_user_attr("peak", max(schedule.learning_rates) <= base * 1.0001)
        return min(history.history["val_loss"])
    except Exception as error:
        print("Trial failed:", error)
        return float("inf")


study = optuna.create_study(direction="minimize", sampler=optuna.samplers.RandomSampler(seed=2))
study.optimize(objective, n_trials=4, gc_after_trial=True)
best_model = make_model(optuna.trial.FixedTrial(study.best_params))
print("RESULT", [t.user_attrs for t in study.trials], best_model.count_params() > 0)
