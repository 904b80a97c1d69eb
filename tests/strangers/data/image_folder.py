# image_dataset_from_directory over folders of PNGs, one folder for each class.
import os
import numpy as np
from PIL import Image
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
import keras_tuner

rng = np.random.RandomState(0)
for name in ("cats", "dogs"):
    os.makedirs(f"data/{name}")
    for i in range(20):
        pixels = rng.randint(0, 255, (12, 12, 3)).astype("uint8")
        Image.fromarray(pixels).save(f"data/{name}/{i}.png")

arguments = dict(validation_split=0.2, seed=123, image_size=(12, 12), batch_size=8)
train_ds = tf.keras.utils.image_dataset_from_directory("data", subset="training", **arguments)
val_ds = tf.keras.utils.image_dataset_from_directory("data", subset="validation", **arguments)
class_names = train_ds.class_names
train_ds = train_ds.cache().shuffle(32).prefetch(buffer_size=tf.data.AUTOTUNE)
val_ds = val_ds.cache().prefetch(buffer_size=tf.data.AUTOTUNE)


def build(hp):
    inputs = keras.Input(shape=(12, 12, 3))
    x = layers.Rescaling(1.0 / 255)(inputs)
    for block in range(hp.Int("blocks", 1, 2)):
        x = layers.SeparableConv2D(hp.Int(f"filters_{block}", 4, 8, 4), 3, padding="same")(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
    pooling = hp.Choice("pooling", ["avg", "max"])
    pool = layers.GlobalAveragePooling2D if pooling == "avg" else layers.GlobalMaxPooling2D
    outputs = layers.Dense(len(class_names), activation="softmax")(pool()(x))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


tuner = keras_tuner.RandomSearch(
    build, objective="val_accuracy", max_trials=3, overwrite=True, seed=2
)
tuner.search(train_ds, epochs=2, validation_data=val_ds)
loss, accuracy = tuner.get_best_models()[0].evaluate(val_ds, verbose=0)
print("RESULT", class_names, len(tuner.get_best_hyperparameters(3)))
