# Hyperband that writes scalars, weights and hyperparameters by TensorFlow's summary in its hooks.
from datetime import datetime
from os import path
import os
import numpy as np
import tensorflow as tf
from keras_tuner import Hyperband, HyperParameters
from tensorflow.keras.callbacks import EarlyStopping, ModelCheckpoint

rng = np.random.RandomState(0)
data = rng.rand(80, 6).astype("float32")
label = data.sum(axis=1) > 3
train_dataset = tf.data.Dataset.from_tensor_slices((data[:60], label[:60])).batch(20).repeat()
validation_dataset = tf.data.Dataset.from_tensor_slices((data[60:], label[60:])).batch(20).repeat()


class customTuner(Hyperband):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    def on_trial_end(self, trial):
        print(datetime.now().strftime("%Y-%m-%dT%H-%M-%S"), trial.hyperparameters.values)
        super().on_trial_end(trial)

    def on_epoch_end(self, trial, model, epoch, logs):
        log_dir = path.join(self.get_trial_dir(trial.trial_id), trial.trial_id)
        with tf.summary.create_file_writer(log_dir).as_default():
            for metric in logs:
                tf.summary.scalar(metric, data=logs[metric], step=epoch)
            for layer in model.weights:
                tf.summary.histogram(layer.name, data=layer.numpy(), step=epoch)
        super().on_epoch_end(trial, model, epoch, logs)


def create_model(hp):
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.Input((6,)))
    model.add(tf.keras.layers.Dense(hp.Int("units", 4, 12, step=4), activation="elu"))
    model.add(tf.keras.layers.Dropout(hp.Float("dropout", 0, 0.5, step=0.25)))
    model.add(tf.keras.layers.Dense(1, activation="sigmoid"))
    model.compile(optimizer="nadam", loss="binary_crossentropy", metrics=["acc"])
    return model


hp = HyperParameters()
timestamp = datetime.now().strftime("%Y-%m-%dT%H-%M-%S")
tuner = customTuner(
    create_model,
    hyperparameters=hp,
    objective="acc",
    max_epochs=2,
    factor=3,
    executions_per_trial=1,
    directory=path.join("logs", "dropout"),
    project_name=timestamp,
    seed=3,
)
tuner.search_space_summary()
callbacks = [
    EarlyStopping(monitor="loss", patience=3),
    ModelCheckpoint("best.keras", save_best_only=True, monitor="loss"),
]
tuner.search(
    train_dataset,
    validation_data=validation_dataset,
    epochs=2,
    steps_per_epoch=3,
    validation_steps=1,
    verbose=0,
    callbacks=callbacks,
)
winners = tuner.get_best_models(num_models=2)
scores = [w.evaluate(validation_dataset, steps=1, verbose=0) for w in winners]
events = [
    name for where, _, names in os.walk(tuner.project_dir) for name in names if "tfevents" in name
]
print(
    "RESULT",
    len(winners),
    [len(s) for s in scores],
    len(events) >= len(tuner.oracle.trials),
    os.path.exists("best.keras"),
)
