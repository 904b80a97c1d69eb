# BaseTuner over models that are not Keras', with its own save_model and load_model.
import json
import os
import numpy as np
import keras_tuner
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.metrics import mean_squared_error

rng = np.random.RandomState(0)
x = rng.rand(120, 4)
y = x[:, 0] * 2 + x[:, 1] ** 2


class BoostingTuner(keras_tuner.engine.base_tuner.BaseTuner):
    def run_trial(self, trial, x, y, validation_data):
        hp = trial.hyperparameters
        model = GradientBoostingRegressor(
            n_estimators=hp.Int("n_estimators", 5, 20, step=5),
            max_depth=hp.Choice("max_depth", [2, 3]),
            learning_rate=hp.Float("learning_rate", 0.05, 0.5, sampling="log"),
            random_state=0,
        )
        model.fit(x, y)
        x_val, y_val = validation_data
        error = mean_squared_error(y_val, model.predict(x_val))
        self.save_model(trial.trial_id, model)
        return {"mse": error}

    def save_model(self, trial_id, model, step=0):
        folder = self.get_trial_dir(trial_id)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "params.json"), "w") as file:
            json.dump(model.get_params(), file)

    def load_model(self, trial):
        with open(os.path.join(self.get_trial_dir(trial.trial_id), "params.json")) as file:
            return GradientBoostingRegressor(**json.load(file))


tuner = BoostingTuner(
    oracle=keras_tuner.oracles.RandomSearchOracle(
        objective=keras_tuner.Objective("mse", "min"), max_trials=5, seed=1
    ),
    directory="boosting",
    project_name="gbm",
)
tuner.search(x[:90], y[:90], validation_data=(x[90:], y[90:]))
tuner.results_summary(2)
model = tuner.get_best_models()[0]
score = tuner.oracle.get_best_trials()[0].score
print("RESULT", type(model).__name__, tuner.get_best_hyperparameters()[0].values, round(score, 9))
