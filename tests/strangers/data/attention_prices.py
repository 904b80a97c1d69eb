# Conv1D, a bidirectional LSTM and an attention layer of the user's own, for windows of a series.
import numpy as np
import keras_tuner as kt
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from sklearn.preprocessing import MinMaxScaler

series = np.sin(np.arange(140) / 7.0) + np.random.RandomState(0).rand(140) * 0.1
series = MinMaxScaler().fit_transform(series.reshape(-1, 1))
look_back = 12
X = np.array([series[i : i + look_back] for i in range(len(series) - look_back)])
Y = np.array([series[i + look_back, 0] for i in range(len(series) - look_back)])
split = int(len(X) * 0.8)


class SimpleAttention(layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.Wq = layers.Dense(units)
        self.Wk = layers.Dense(units)
        self.Wv = layers.Dense(units)

    def call(self, inputs):
        q, k, v = self.Wq(inputs), self.Wk(inputs), self.Wv(inputs)
        score = tf.matmul(q, k, transpose_b=True)
        weights = tf.nn.softmax(score / tf.math.sqrt(tf.cast(tf.shape(k)[-1], tf.float32)), axis=-1)
        return tf.matmul(weights, v)


def build_model(hp):
    inputs = keras.Input(shape=(look_back, 1))
    x = layers.Conv1D(hp.Int("filters", 4, 8, step=4), 3, padding="causal", activation="relu")(
        inputs
    )
    x = layers.MaxPooling1D(2)(x)
    x = layers.Bidirectional(
        layers.LSTM(hp.Int("lstm_units", 4, 8, step=4), return_sequences=True)
    )(x)
    x = SimpleAttention(hp.Int("att_units", 4, 8, step=4))(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(hp.Float("dropout", 0.1, 0.3, step=0.1))(x)
    outputs = layers.Dense(1)(x)
    model = keras.Model(inputs, outputs)
    lr = hp.Choice("learning_rate", [1e-3, 5e-4])
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=lr, clipnorm=1.0), loss="mse")
    return model


tuner = kt.BayesianOptimization(
    build_model,
    objective="val_loss",
    max_trials=3,
    num_initial_points=2,
    alpha=1e-4,
    beta=2.6,
    seed=4,
    directory="bayes_dir",
    project_name="cnn_bilstm_att",
    overwrite=True,
)
early_stopping = keras.callbacks.EarlyStopping(
    monitor="val_loss", patience=5, restore_best_weights=True
)
reduce_lr = keras.callbacks.ReduceLROnPlateau(
    monitor="val_loss", factor=0.2, patience=1, min_lr=1e-6
)
tuner.search(
    X[:split],
    Y[:split],
    epochs=2,
    validation_data=(X[split:], Y[split:]),
    callbacks=[early_stopping, reduce_lr],
    verbose=0,
)
best_hp = tuner.get_best_hyperparameters(1)[0]
print("RESULT", sorted(best_hp.values), len(tuner.oracle.get_best_trials(10)))
