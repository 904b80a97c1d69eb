# Folds in a tuner whose constructor names all arguments; fit of the hypermodel trains.
import keras_tuner as kt
import numpy as np
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import KFold
from tensorflow import keras

rng = np.random.RandomState(2)
X = rng.rand(90, 4)
Y = X @ rng.rand(4, 2)


class CVTuner(kt.Tuner):
    def __init__(
        self,
        oracle,
        objective=None,
        cv=3,
        shuffle=True,
        hypermodel=None,
        max_model_size=None,
        optimizer=None,
        loss=None,
        metrics=None,
        distribution_strategy=None,
        directory=None,
        project_name=None,
        logger=None,
        tuner_id=None,
        overwrite=False,
        executions_per_trial=1,
        **kwargs,
    ):
        self._objective = objective
        self._cv = cv
        self._metrics = metrics
        self._shuffle = shuffle
        self._mean_test_score = []
        kt.Tuner.__init__(
            self,
            oracle=oracle,
            hypermodel=hypermodel,
            max_model_size=max_model_size,
            optimizer=optimizer,
            loss=loss,
            metrics=metrics,
            distribution_strategy=distribution_strategy,
            directory=directory,
            project_name=project_name,
            logger=logger,
            tuner_id=tuner_id,
            overwrite=overwrite,
            executions_per_trial=executions_per_trial,
            **kwargs,
        )

    def run_trial(self, trial, x, y):
        if isinstance(self._cv, int):
            self._cv = KFold(n_splits=self._cv, shuffle=self._shuffle, random_state=1)
        scores = []
        for train, val in self._cv.split(x):
            model = self.hypermodel.build(trial.hyperparameters)
            self.hypermodel.fit(trial.hyperparameters, model, x[train,], y[train,])
            if self._metrics is not None:
                scores.append(self._metrics(model.predict(x[val,], verbose=0), y[val,]))
        self._mean_test_score.append(np.average(scores))
        self.oracle.update_trial(trial.trial_id, {self._objective: np.average(scores)})

    @property
    def mean_test_score(self):
        return self._mean_test_score


class NeuralNet(kt.HyperModel):
    def build(self, hp):
        model = keras.Sequential()
        model.add(keras.layers.Dense(hp.Int("units", 4, 12, step=4), activation="relu"))
        model.add(keras.layers.Dense(2))
        model.compile(
            optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1, sampling="log")), loss="mae"
        )
        return model

    def fit(self, hp, model, x, y, **kwargs):
        return model.fit(
            x, y, batch_size=hp.Choice("batch_size", [16, 32]), epochs=2, verbose=0, **kwargs
        )


tuner = CVTuner(
    objective="mean_squared_error",
    cv=3,
    hypermodel=NeuralNet(),
    metrics=mean_squared_error,
    directory="folds",
    project_name="cv",
    overwrite=True,
    oracle=kt.oracles.RandomSearchOracle(
        objective=kt.Objective("mean_squared_error", direction="min"), max_trials=3, seed=4
    ),
)
tuner.search(x=X, y=Y)
print("RESULT", len(tuner.mean_test_score), sorted(tuner.get_best_hyperparameters()[0].values))
print("RESULT", [t.status for t in tuner.oracle.trials.values()])
