# Schedules with hyperparameters, label smoothing, top-k, an endless data set with steps.
import numpy as np
import tensorflow as tf
import keras_tuner as kt
from sklearn.datasets import load_digits

digits = load_digits()
x = digits.images[:300, :, :, np.newaxis].astype("float32")
y = tf.keras.utils.to_categorical(digits.target[:300], 10)
batch = 30
train_n = 240
ds_train = tf.data.Dataset.from_tensor_slices((x[:240], y[:240])).shuffle(240, seed=3)
ds_train = ds_train.repeat().batch(batch).prefetch(buffer_size=tf.data.AUTOTUNE)
ds_val = tf.data.Dataset.from_tensor_slices((x[240:], y[240:])).repeat().batch(batch)


def build_model(hp, input_shape, classes):
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.InputLayer(shape=input_shape))
    model.add(tf.keras.layers.Rescaling(1.0 / 16))
    for i in range(hp.Int("blocks", 1, 2)):
        model.add(tf.keras.layers.Conv2D(hp.Choice(f"filters_{i}", [4, 8]), 3, padding="same"))
        model.add(tf.keras.layers.BatchNormalization())
        model.add(tf.keras.layers.Activation("relu"))
    model.add(tf.keras.layers.GlobalAveragePooling2D())
    model.add(tf.keras.layers.Dense(classes))
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(
        hp.Float("initial_lr", 1e-3, 1e-1, sampling="log"),
        decay_steps=hp.Int("decay_steps", 4, 16, step=4),
        decay_rate=0.9,
        staircase=True,
    )
    model.compile(
        optimizer=tf.keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True),
        loss=tf.keras.losses.CategoricalCrossentropy(
            from_logits=True, label_smoothing=hp.Float("smoothing", 0.0, 0.2, step=0.1)
        ),
        metrics=["accuracy", tf.keras.metrics.TopKCategoricalAccuracy(k=3, name="top3")],
    )
    return model


hp = kt.HyperParameters()
tuner = kt.BayesianOptimization(
    hypermodel=lambda hp: build_model(hp, (8, 8, 1), 10),
    objective="val_accuracy",
    hyperparameters=hp,
    max_trials=3,
    seed=1,
    directory="model",
    project_name="bayes",
)
tuner.search_space_summary()
tuner.search(
    ds_train,
    validation_data=ds_val,
    steps_per_epoch=train_n // batch,
    validation_steps=2,
    epochs=2,
    callbacks=[tf.keras.callbacks.EarlyStopping("val_accuracy")],
)
tuner.results_summary(num_trials=2)
trial = tuner.oracle.get_best_trials()[0]
print("RESULT", sorted(trial.metrics.metrics), "initial_lr" in trial.hyperparameters.values)
