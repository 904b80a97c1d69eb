# An oracle of the user's own, with populate_space and a counter, given to kt.Tuner.
import random
import keras_tuner
import numpy as np
from keras_tuner.engine import oracle as oracle_module
from keras_tuner.engine import trial as trial_module
from keras_tuner.engine import tuner as tuner_module
from tensorflow import keras

rng = np.random.RandomState(0)
x, y = rng.rand(80, 4), rng.rand(80, 1)


class GeneticOracle(oracle_module.Oracle):
    def __init__(self, objective=None, max_trials=10, seed=None, **kwargs):
        super().__init__(objective=objective, max_trials=max_trials, seed=seed, **kwargs)
        self.random = random.Random(seed)
        self.asked = 0

    def populate_space(self, trial_id):
        self.asked += 1
        done = [t for t in self.trials.values() if t.status == trial_module.TrialStatus.COMPLETED]
        if len(done) < 2:
            values = self._random_values()
            if values is None:
                return {"status": trial_module.TrialStatus.STOPPED, "values": None}
            return {"status": trial_module.TrialStatus.RUNNING, "values": values}
        best = sorted(done, key=lambda t: t.score)[:2]
        values = {
            hp.name: self.random.choice(best).hyperparameters.values.get(hp.name, hp.default)
            for hp in self.get_space().space
        }
        return {"status": trial_module.TrialStatus.RUNNING, "values": values}


class GeneticTuner(tuner_module.Tuner):
    def __init__(self, hypermodel=None, objective=None, max_trials=10, seed=None, **kwargs):
        self.seed = seed
        oracle = GeneticOracle(objective=objective, max_trials=max_trials, seed=seed)
        super().__init__(oracle=oracle, hypermodel=hypermodel, **kwargs)


def build(hp):
    model = keras.Sequential([keras.layers.Input((4,))])
    model.add(
        keras.layers.Dense(
            hp.Int("units", 2, 10), activation=hp.Choice("activation", ["relu", "tanh"])
        )
    )
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1, sampling="log")), loss="mse")
    return model


tuner = GeneticTuner(
    build, objective="val_loss", max_trials=5, seed=3, directory="genes", overwrite=True
)
tuner.search(x, y, epochs=1, validation_split=0.25, verbose=0)
print(
    "RESULT",
    len(tuner.oracle.trials),
    tuner.oracle.asked >= 5,
    sorted(tuner.get_best_hyperparameters()[0].values),
)
