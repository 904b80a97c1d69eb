# One input a column of a frame: StringLookup, CategoryEncoding, Normalization, a data set.
import numpy as np
import pandas as pd
import tensorflow as tf
import keras_tuner as kt

rng = np.random.RandomState(4)
frame = pd.DataFrame(
    {
        "age": rng.randint(20, 60, 120).astype("float32"),
        "fee": (rng.rand(120) * 100).astype("float32"),
        "kind": rng.choice(["cat", "dog", "bird"], 120),
        "target": rng.randint(0, 2, 120),
    }
)


def df_to_dataset(dataframe, shuffle=True, batch_size=24):
    df = dataframe.copy()
    labels = df.pop("target")
    columns = {key: value.to_numpy()[:, np.newaxis] for key, value in df.items()}
    ds = tf.data.Dataset.from_tensor_slices((columns, labels))
    if shuffle:
        ds = ds.shuffle(buffer_size=len(dataframe), seed=1)
    return ds.batch(batch_size).prefetch(batch_size)


train_ds = df_to_dataset(frame[:90])
val_ds = df_to_dataset(frame[90:], shuffle=False)
inputs, encoded = [], []
for header in ["age", "fee"]:
    column = tf.keras.Input(shape=(1,), name=header)
    normalizer = tf.keras.layers.Normalization(axis=None)
    normalizer.adapt(frame[header].to_numpy())
    inputs.append(column)
    encoded.append(normalizer(column))
column = tf.keras.Input(shape=(1,), name="kind", dtype="string")
index = tf.keras.layers.StringLookup()
index.adapt(frame["kind"].to_numpy())
encoding = tf.keras.layers.CategoryEncoding(
    num_tokens=index.vocabulary_size(), output_mode="multi_hot"
)
inputs.append(column)
encoded.append(encoding(index(column)))


def build_model(hp):
    x = tf.keras.layers.concatenate(encoded)
    x = tf.keras.layers.Dense(hp.Int("units", 8, 24, step=8), activation="relu")(x)
    x = tf.keras.layers.Dropout(hp.Choice("dropout", [0.1, 0.3, 0.5]))(x)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


tuner = kt.RandomSearch(
    build_model, objective="val_accuracy", max_trials=3, seed=8, directory="pets"
)
tuner.search(train_ds, validation_data=val_ds, epochs=2, verbose=0)
model = tuner.get_best_models()[0]
sample = {"age": [[30.0]], "fee": [[5.0]], "kind": [["cat"]]}
predicted = model.predict(
    {name: tf.convert_to_tensor(value) for name, value in sample.items()}, verbose=0
)
print("RESULT", predicted.shape, sorted(tuner.get_best_hyperparameters()[0].values))
