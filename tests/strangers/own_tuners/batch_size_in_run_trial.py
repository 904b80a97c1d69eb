# A subclass that adds the batch size and the epochs to what is searched.
import numpy as np
import keras_tuner as kt
from tensorflow.keras import layers, models

x = np.random.RandomState(2).rand(150, 7)
y = x.mean(axis=1)


class MyTuner(kt.tuners.BayesianOptimization):
    def run_trial(self, trial, *args, **kwargs):
        kwargs["batch_size"] = trial.hyperparameters.Int("batch_size", 16, 64, step=16)
        kwargs["epochs"] = trial.hyperparameters.Int("epochs", 1, 3)
        return super(MyTuner, self).run_trial(trial, *args, **kwargs)


def build(hp):
    model = models.Sequential([layers.Input((7,))])
    for i in range(hp.Int("depth", 1, 2)):
        model.add(layers.Dense(hp.Int(f"units_{i}", 4, 12, 4), activation="relu"))
    model.add(layers.Dense(1))
    model.compile(loss="mae", optimizer=hp.Choice("optimizer", values=["adam", "nadam"]))
    return model


tuner = MyTuner(build, objective="val_loss", max_trials=4, project_name="batch", seed=5)
tuner.search(x, y, validation_split=0.2, verbose=0)
print("RESULT", sorted(set(tuner.get_best_hyperparameters()[0].values) & {"batch_size", "epochs"}))
