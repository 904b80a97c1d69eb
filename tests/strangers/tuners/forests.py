# SklearnTuner: several kinds of models of scikit-learn, folds and a score of its own.
import numpy as np
import keras_tuner as kt
from sklearn import ensemble, linear_model, metrics, model_selection
from sklearn.datasets import load_iris

x, y = load_iris(return_X_y=True)


def build_model(hp):
    kind = hp.Choice("model_type", ["random_forest", "ridge"])
    if kind == "random_forest":
        return ensemble.RandomForestClassifier(
            n_estimators=hp.Int("n_estimators", 5, 15, step=5),
            max_depth=hp.Int("max_depth", 2, 4),
            random_state=0,
        )
    return linear_model.RidgeClassifier(alpha=hp.Float("alpha", 1e-3, 1, sampling="log"))


tuner = kt.tuners.SklearnTuner(
    oracle=kt.oracles.BayesianOptimizationOracle(
        objective=kt.Objective("score", "max"), max_trials=4, seed=1
    ),
    hypermodel=build_model,
    scoring=metrics.make_scorer(metrics.accuracy_score),
    cv=model_selection.StratifiedKFold(3),
    metrics=metrics.accuracy_score,
    directory="sk",
    project_name="forests",
)
tuner.search(x, y)
best_model = tuner.get_best_models(num_models=1)[0]
print("RESULT", best_model.predict(x).shape, len(tuner.oracle.trials))
