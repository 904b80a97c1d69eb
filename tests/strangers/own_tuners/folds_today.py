# Cross-validation in run_trial that returns the mean, as KerasTuner 1.1 and later take it.
import numpy as np
import keras_tuner as kt
from tensorflow import keras
from sklearn.model_selection import KFold

rng = np.random.RandomState(0)
X = rng.rand(120, 5)
Y = X.sum(axis=1, keepdims=True)


class CVTuner(kt.BayesianOptimization):
    def run_trial(self, trial, x, y, *args, **kwargs):
        cv = KFold(3, shuffle=True, random_state=1)
        val_losses = []
        batch_size = trial.hyperparameters.Int("batch_size", 16, 32, step=16)
        for train_indices, test_indices in cv.split(x):
            model = self.hypermodel.build(trial.hyperparameters)
            model.fit(
                x[train_indices], y[train_indices], batch_size=batch_size, epochs=2, verbose=0
            )
            val_losses.append(model.evaluate(x[test_indices], y[test_indices], verbose=0))
        return {"val_loss": np.mean(val_losses)}


def build_model(hp):
    model = keras.Sequential(
        [
            keras.layers.Dense(hp.Int("units", 4, 12, step=4), activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1, sampling="log")), loss="mse")
    return model


tuner = CVTuner(
    hypermodel=build_model,
    objective="val_loss",
    max_trials=4,
    directory="cv",
    seed=2,
    overwrite=True,
)
tuner.search(X, Y)
print("RESULT", sorted(tuner.get_best_hyperparameters()[0].values), len(tuner.oracle.trials))
