# Learning to rank: a loss class and a metric class of the user's own, padded documents.
import keras
import keras_tuner as kt
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(5)
features = rng.normal(size=(64, 6, 4)).astype("float32")
relevance = np.clip(features.sum(-1).round(), 0, 3).astype("float32")
relevance[:, 5] = -1.0


class ListwiseSoftmaxLoss(keras.losses.Loss):
    def __init__(self, temperature=1.0, name="listwise_softmax"):
        super().__init__(name=name)
        self.temperature = temperature

    def call(self, y_true, y_pred):
        mask = tf.cast(y_true >= 0.0, tf.float32)
        gains = tf.maximum(y_true, 0.0) * mask
        logits = y_pred / self.temperature + (1.0 - mask) * -1e9
        target = gains / (tf.reduce_sum(gains, axis=-1, keepdims=True) + 1e-6)
        return -tf.reduce_sum(target * tf.nn.log_softmax(logits, axis=-1), axis=-1)


class FirstIsBest(keras.metrics.Metric):
    def __init__(self, name="first_is_best", **kwargs):
        super().__init__(name=name, **kwargs)
        self.hits = self.add_weight(name="hits", initializer="zeros")
        self.lists = self.add_weight(name="lists", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        hit = tf.equal(tf.argmax(y_true, axis=-1), tf.argmax(y_pred, axis=-1))
        self.hits.assign_add(tf.reduce_sum(tf.cast(hit, tf.float32)))
        self.lists.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

    def result(self):
        return self.hits / (self.lists + 1e-6)

    def reset_state(self):
        self.hits.assign(0.0)
        self.lists.assign(0.0)


class ListNetHyperModel(kt.HyperModel):
    def __init__(self, num_features=4, name=None, **kwargs):
        super().__init__(name=name, **kwargs)
        self.num_features = num_features

    def build(self, hp):
        inputs = keras.Input(shape=(None, self.num_features), name="input_features")
        x = inputs
        base = hp.Int("base_units", min_value=8, max_value=16, step=8)
        for i in range(hp.Int("num_layers", 1, 2)):
            x = keras.layers.Dense(max(4, base // (2**i)), activation="relu")(x)
            x = keras.layers.Dropout(hp.Float("dropout_rate", 0.0, 0.4, step=0.2))(x)
        x = keras.layers.Dense(1)(x)
        outputs = keras.layers.Lambda(lambda t: keras.ops.squeeze(t, axis=-1))(x)
        model = keras.Model(inputs, outputs)
        model.compile(
            optimizer=keras.optimizers.Adam(hp.Float("learning_rate", 1e-4, 1e-2, sampling="log")),
            loss=ListwiseSoftmaxLoss(),
            metrics=[FirstIsBest()],
        )
        return model


train = tf.data.Dataset.from_tensor_slices((features[:48], relevance[:48])).batch(16)
val = tf.data.Dataset.from_tensor_slices((features[48:], relevance[48:])).batch(16)
tuner = kt.RandomSearch(
    ListNetHyperModel(name="listnet"),
    objective=kt.Objective("val_first_is_best", direction="max"),
    max_trials=3,
    seed=7,
    directory="ranking",
    project_name="listnet",
)
tuner.search(train.prefetch(tf.data.AUTOTUNE), validation_data=val, epochs=2, verbose=0)
print("RESULT", len(tuner.oracle.trials), sorted(tuner.get_best_hyperparameters()[0].values))
