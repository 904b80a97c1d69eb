# Scikit-learn: scopes by model type, folds of a time series, repeated ones, a second fit.
import numpy as np
import keras_tuner as kt
from sklearn import ensemble, metrics, model_selection, pipeline, preprocessing
from sklearn.svm import SVC, LinearSVC

rng = np.random.RandomState(0)
features = rng.rand(150, 6)
labels = (features[:, 0] + features[:, 1] > 1).astype(int)


class SVM(kt.HyperModel):
    def build(self, hp):
        model_type = hp.Choice("model_type", ["SVC", "LinearSVC"])
        C = hp.Float("C", 1.0, 20.0, step=5)
        if model_type == "SVC":
            with hp.conditional_scope("model_type", "SVC"):
                kernel = hp.Choice("kernel", ["linear", "poly", "rbf", "sigmoid"])
                gamma = hp.Float("gamma", 0.01, 1, step=0.01)
                model = SVC(C=C, gamma=gamma, kernel=kernel)
        else:
            with hp.conditional_scope("model_type", "LinearSVC"):
                loss = hp.Choice("loss", ["hinge", "squared_hinge"])
                model = LinearSVC(C=C, loss=loss, max_iter=2000)
        return pipeline.make_pipeline(preprocessing.StandardScaler(), model)


tuner = kt.tuners.SklearnTuner(
    oracle=kt.oracles.BayesianOptimizationOracle(
        objective=kt.Objective("score", "max"), max_trials=5, seed=2
    ),
    hypermodel=SVM(),
    scoring=metrics.make_scorer(metrics.accuracy_score),
    cv=model_selection.TimeSeriesSplit(3, gap=10),
    project_name="Keras_tuner_metadata/SVM",
    overwrite=True,
)
tuner.search(features, labels)
tuner.results_summary(num_trials=3)
best_model = tuner.hypermodel.build(tuner.get_best_hyperparameters(num_trials=1)[0])
best_model.fit(features, labels)


def build_gbm(hp):
    return ensemble.GradientBoostingRegressor(
        n_estimators=hp.Int("n_estimators", 5, 15, step=5),
        subsample=hp.Float("subsample", min_value=0.8, max_value=0.99),
        max_features=hp.Choice("max_features", ["sqrt", "log2"]),
    )


second = kt.tuners.SklearnTuner(
    oracle=kt.oracles.RandomSearchOracle(
        objective=kt.Objective("score", "max"), max_trials=2, seed=1
    ),
    hypermodel=build_gbm,
    scoring=metrics.make_scorer(metrics.mean_squared_error, greater_is_better=False),
    metrics=[metrics.r2_score, metrics.mean_absolute_error],
    cv=model_selection.RepeatedKFold(n_splits=2, n_repeats=1, random_state=1),
    project_name="Keras_tuner_metadata/GBM",
    overwrite=True,
)
second.search(features, features.sum(axis=1), sample_weight=np.ones(150))
trial = second.oracle.get_best_trials(1)[0]
print("RESULT", len(tuner.oracle.trials), best_model.predict(features).shape, trial.status)
print(
    "RESULT",
    sorted(trial.metrics.metrics),
    trial.score < 0,
    sorted(second.get_best_hyperparameters()[0].values),
)
