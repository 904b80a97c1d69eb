# Cross-validation of 2020: update_trial and save_model by hand.
import numpy as np
import kerastuner
from tensorflow import keras
from sklearn import model_selection

X = np.random.RandomState(0).rand(90, 5)
Y = (X[:, 0] > 0.5).astype(int)


class CVTuner(kerastuner.engine.tuner.Tuner):
    def run_trial(self, trial, x, y, batch_size=32, epochs=1):
        cv = model_selection.KFold(3)
        val_losses = []
        for train_indices, test_indices in cv.split(x):
            x_train, x_test = x[train_indices], x[test_indices]
            y_train, y_test = y[train_indices], y[test_indices]
            model = self.hypermodel.build(trial.hyperparameters)
            model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, verbose=0)
            val_losses.append(model.evaluate(x_test, y_test, verbose=0))
        self.oracle.update_trial(trial.trial_id, {"val_loss": np.mean(val_losses)})
        self.save_model(trial.trial_id, model)


def build_model(hp):
    model = keras.Sequential()
    model.add(keras.layers.Dense(hp.Choice("units", [4, 8, 12]), activation="relu"))
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    model.compile("adam", "binary_crossentropy")
    return model


tuner = CVTuner(
    hypermodel=build_model,
    oracle=kerastuner.oracles.BayesianOptimization(objective="val_loss", max_trials=3),
)
tuner.search(X, Y, batch_size=16, epochs=2)
print("RESULT", len(tuner.oracle.trials))
