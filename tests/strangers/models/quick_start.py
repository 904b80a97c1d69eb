# As in the tutorial that most notebooks begin from: Hyperband, the best epoch, a second training.
import tensorflow as tf
from tensorflow import keras
import keras_tuner as kt
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
images = images.reshape(-1, 8, 8)[:300] / 16.0
labels = labels[:300]
img_train, img_test = images[:240], images[240:]
label_train, label_test = labels[:240], labels[240:]


def model_builder(hp):
    model = keras.Sequential()
    model.add(keras.layers.Flatten(input_shape=(8, 8)))
    hp_units = hp.Int("units", min_value=8, max_value=32, step=8)
    model.add(keras.layers.Dense(units=hp_units, activation="relu"))
    model.add(keras.layers.Dense(10))
    hp_learning_rate = hp.Choice("learning_rate", values=[1e-2, 1e-3, 1e-4])
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=hp_learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


tuner = kt.Hyperband(
    model_builder,
    objective="val_accuracy",
    max_epochs=3,
    factor=3,
    directory="my_dir",
    project_name="intro_to_kt",
)
stop_early = tf.keras.callbacks.EarlyStopping(monitor="val_loss", patience=5)
tuner.search(img_train, label_train, epochs=50, validation_split=0.2, callbacks=[stop_early])

best_hps = tuner.get_best_hyperparameters(num_trials=1)[0]
print(f"{best_hps.get('units')} units, a learning rate of {best_hps.get('learning_rate')}.")

model = tuner.hypermodel.build(best_hps)
history = model.fit(img_train, label_train, epochs=3, validation_split=0.2, verbose=0)
val_acc_per_epoch = history.history["val_accuracy"]
best_epoch = val_acc_per_epoch.index(max(val_acc_per_epoch)) + 1
hypermodel = tuner.hypermodel.build(best_hps)
hypermodel.fit(img_train, label_train, epochs=best_epoch, validation_split=0.2, verbose=0)
eval_result = hypermodel.evaluate(img_test, label_test, verbose=0)
print("RESULT", len(eval_result), "units" in best_hps.values, len(tuner.oracle.trials))
