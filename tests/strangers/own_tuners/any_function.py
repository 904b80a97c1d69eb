# run_trial that tunes a plain function: no model, no builder.
import keras_tuner


class MyTuner(keras_tuner.RandomSearch):
    def run_trial(self, trial, *args, **kwargs):
        hp = trial.hyperparameters
        x = hp.Float("x", min_value=-1.0, max_value=1.0)
        y = hp.Int("y", 1, 10)
        return x * x + y


tuner = MyTuner(max_trials=6, overwrite=True, directory="f", project_name="black_box", seed=12)
tuner.search()
print("RESULT", tuner.get_best_hyperparameters()[0].values)
