# Strings go into the model itself, whose first layer splits them.
import tensorflow as tf
from tensorflow import keras
import keras_tuner

texts = ["good film", "bad film", "a good day", "a bad day"] * 10
labels = [1, 0, 1, 0] * 10
ds = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(8)
vectorizer = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=3)
vectorizer.adapt(ds.map(lambda text, label: text))


def build(hp):
    inputs = keras.Input(shape=(1,), dtype=tf.string)
    x = vectorizer(inputs)
    x = keras.layers.Embedding(20, hp.Choice("width", [4, 8]))(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


tuner = keras_tuner.GridSearch(build, objective="val_accuracy", directory="raw")
tuner.search(
    ds.map(lambda t, y: (tf.expand_dims(t, -1), y)),
    epochs=1,
    validation_data=ds.map(lambda t, y: (tf.expand_dims(t, -1), y)),
)
print("RESULT", len(tuner.oracle.trials))
