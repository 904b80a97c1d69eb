# TextVectorization that maps a data set of strings, an Embedding, a bidirectional GRU.
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
import keras_tuner as kt

good = ["a lovely day", "what a great film", "i like it a lot", "best service ever", "so happy now"]
bad = ["a terrible day", "what a dull film", "i hate it a lot", "worst service ever", "so sad now"]
texts = (good + bad) * 8
labels = ([1] * 5 + [0] * 5) * 8
vectorize_layer = layers.TextVectorization(max_tokens=60, output_sequence_length=6)
vectorize_layer.adapt(tf.data.Dataset.from_tensor_slices(texts).batch(16))
raw = tf.data.Dataset.from_tensor_slices((texts, labels)).shuffle(80, seed=0).batch(16)
data = raw.map(lambda text, label: (vectorize_layer(text), label)).prefetch(tf.data.AUTOTUNE)
train, test = data.take(4), data.skip(4)


class TextModel(kt.HyperModel):
    def build(self, hp):
        model = keras.Sequential(
            [
                layers.Embedding(60, hp.Int("embedding", 4, 12, step=4), mask_zero=True),
                layers.Bidirectional(layers.GRU(hp.Choice("rnn_units", [4, 8]))),
                layers.Dense(hp.Choice("dense", [4, 8]), activation="relu"),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(
            loss=tf.keras.losses.BinaryCrossentropy(),
            optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1, sampling="log")),
            metrics=[keras.metrics.BinaryAccuracy()],
        )
        return model


tuner = kt.BayesianOptimization(
    TextModel(), objective="val_binary_accuracy", max_trials=3, directory="text", seed=1
)
tuner.search(train, validation_data=test, epochs=2, callbacks=[keras.callbacks.TensorBoard("logs")])
print("RESULT", sorted(tuner.get_best_hyperparameters()[0].values), len(tuner.oracle.trials))
