# A tuner that keeps what each execution reached, and hands it out as a table when it has ended.
import json

import keras
import keras_tuner as kt
import numpy as np

keras.utils.set_random_seed(4)
x = np.random.rand(96, 4).astype("float32")
y = (70 * x.mean(axis=1, keepdims=True)).astype("float32")


class SoftBins(kt.HyperModel):
    def __init__(self, y_min, y_max, n_bins=10):
        super().__init__()
        self.edges = np.linspace(y_min, y_max, n_bins + 1).astype("float32")
        self.n_bins = n_bins

    def build(self, hp):
        sigma = hp.Float("sig_ratio", min_value=0.25, max_value=8.0, step=2, sampling="log")
        centers = keras.ops.convert_to_tensor((self.edges[:-1] + self.edges[1:]) / 2)
        inputs = keras.Input((4,))
        hidden = keras.layers.Dense(16, activation="relu")(inputs)
        shares = keras.layers.Dense(self.n_bins, activation="softmax")(hidden)
        outputs = keras.layers.Lambda(
            lambda p: keras.ops.sum(p * centers, axis=-1, keepdims=True), output_shape=(1,)
        )(shares)
        model = keras.Model(inputs, outputs)
        model.compile("adam", keras.losses.Huber(delta=sigma), metrics=["mse", "mae"])
        return model


class LogGridSearch(kt.GridSearch):
    def __init__(self, metrics, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.logged_metrics = metrics
        self.all_results = {}

    def run_trial(self, trial, *args, **kwargs):
        results = super().run_trial(trial, *args, **kwargs)
        self.all_results[trial.trial_id] = {
            "hps": dict(trial.hyperparameters.values),
            "runs": [
                {name: float(min(each.history[f"val_{name}"])) for name in self.logged_metrics}
                for each in results
            ],
        }
        return results

    def get_results(self):
        return list(self.all_results.values())


space = kt.HyperParameters()
space.Float("sig_ratio", min_value=0.25, max_value=8.0, step=2, sampling="log")
tuner = LogGridSearch(
    metrics=["mse", "mae"],
    hyperparameters=space,
    hypermodel=SoftBins(0, 70),
    objective="val_mse",
    directory="hypers",
    project_name="sigma",
    overwrite=False,
    tune_new_entries=False,
    max_trials=4,
    executions_per_trial=2,
)
tuner.search(
    x=x[:64],
    y=y[:64],
    epochs=2,
    validation_data=(x[64:], y[64:]),
    verbose=2,
    callbacks=[keras.callbacks.EarlyStopping(patience=4)],
)
data = tuner.get_results()
with open("results.json", "w") as file:
    json.dump({"soft bins": data}, file, indent=4)
print("RESULT", sorted(one["hps"]["sig_ratio"] for one in data))
print("RESULT", [len(one["runs"]) for one in data], sorted(data[0]["runs"][0]))
