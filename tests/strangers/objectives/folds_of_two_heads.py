# Folds within an objective, a model with a regression and a classification head, best epochs.
import keras
import numpy as np
import optuna
from keras import layers
from sklearn.model_selection import KFold

rng = np.random.RandomState(0)
features = rng.rand(90, 5).astype("float32")
targets = {
    "reg_output": rng.rand(90, 1).astype("float32"),
    "class_output": rng.randint(0, 3, 90),
}


def multi_output_nn(n_layers, hidden_size, learning_rate, dropout_rate):
    x = inputs = layers.Input(shape=(5,))
    for _ in range(n_layers):
        x = layers.Dense(hidden_size, activation="relu")(x)
        x = layers.Dropout(dropout_rate)(x)
    reg_out = layers.Dense(1, activation="linear", name="reg_output")(x)
    class_out = layers.Dense(3, activation="softmax", name="class_output")(x)
    model = keras.Model(inputs, {"reg_output": reg_out, "class_output": class_out})
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss={"reg_output": "mse", "class_output": "sparse_categorical_crossentropy"},
        loss_weights={"reg_output": 1.0, "class_output": 0.5},
        metrics={"class_output": ["accuracy"]},
    )
    return model


class Tuning:
    def __init__(self, n_trials):
        self.n_trials = n_trials

    def best_params(self):
        def objective(trial):
            params = {
                "n_layers": trial.suggest_int("n_layers", 1, 2),
                "hidden_size": trial.suggest_categorical("hidden_size", [8, 16]),
                "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
                "dropout_rate": trial.suggest_float("dropout_rate", 0.1, 0.5, step=0.1),
            }
            scores = []
            folds = KFold(n_splits=3, shuffle=True, random_state=trial.number)
            for train, test in folds.split(features):
                model = multi_output_nn(**params)
                history = model.fit(
                    features[train],
                    {name: part[train] for name, part in targets.items()},
                    validation_data=(
                        features[test],
                        {name: part[test] for name, part in targets.items()},
                    ),
                    epochs=2,
                    batch_size=16,
                    verbose=0,
                )
                scores.append(min(history.history["val_loss"]))
            return np.mean(scores).astype(float)

        study = optuna.create_study(direction="minimize", pruner=optuna.pruners.MedianPruner())
        study.optimize(objective, n_trials=self.n_trials)
        return study.best_params


best = Tuning(3).best_params()
final = multi_output_nn(**best)
final.fit(features, targets, epochs=1, verbose=0)
outputs = final.predict(features[:4], verbose=0)
print("RESULT", sorted(best), {name: part.shape for name, part in sorted(outputs.items())})
