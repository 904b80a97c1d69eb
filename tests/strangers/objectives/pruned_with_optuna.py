# A callback that reports epochs and prunes.
import numpy as np
import optuna
import tensorflow as tf

rng = np.random.RandomState(0)
x = rng.rand(200, 8)
y = (x.sum(axis=1) > 4).astype(int)


class Pruning(tf.keras.callbacks.Callback):
    def __init__(self, trial, monitor):
        super().__init__()
        self.trial, self.monitor = trial, monitor

    def on_epoch_end(self, epoch, logs=None):
        self.trial.report(logs[self.monitor], epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned(f"Trial was pruned at epoch {epoch}.")


def objective(trial):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(trial.suggest_categorical("units", [4, 8]), activation="relu"),
            tf.keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    optimizer = trial.suggest_categorical("optimizer", ["adam", "sgd"])
    model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
    history = model.fit(
        x,
        y,
        validation_split=0.2,
        epochs=4,
        verbose=0,
        callbacks=[Pruning(trial, "val_loss"), tf.keras.callbacks.EarlyStopping(patience=3)],
    )
    return history.history["val_loss"][-1]


study = optuna.create_study(
    direction="minimize",
    pruner=optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1),
    sampler=optuna.samplers.TPESampler(seed=4),
)
study.optimize(objective, n_trials=6)
done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
print("RESULT", len(study.trials), len(done) >= 2, sorted(study.best_params))
