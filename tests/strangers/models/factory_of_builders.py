# A function that makes the builder; a name declared twice, one that is never used, a Windows path.
import numpy as np
import tensorflow as tf
import keras_tuner as kt
from sklearn.feature_extraction.text import TfidfVectorizer
from tensorflow.keras import regularizers
from tensorflow.keras.callbacks import EarlyStopping
from tensorflow.keras.layers import LSTM, Dense, Dropout
from tensorflow.keras.models import Sequential

good, bad = "fine good nice warm".split(), "poor bad cold late".split()
rng = np.random.RandomState(0)
texts = [" ".join(rng.choice(good if i % 2 else bad, 3)) for i in range(100)]
labels = np.array([i % 2 for i in range(100)])


def f1_score(y_true, y_pred):
    y_pred = tf.round(y_pred)
    tp = tf.reduce_sum(tf.cast(y_true, "float32") * y_pred)
    return 2 * tp / (tf.reduce_sum(tf.cast(y_true, "float32")) + tf.reduce_sum(y_pred) + 1e-7)


def build_model_factory(input_dim):
    def build_model(hp):
        model = Sequential()
        model.add(
            LSTM(
                hp.Int("lstm_units", 4, 8, step=4),
                return_sequences=False,
                input_shape=(input_dim, 1),
            )
        )
        model.add(Dropout(hp.Float("dropout_ratio", min_value=0.2, max_value=0.5, step=0.1)))
        model.add(
            Dense(
                hp.Int("dense_units", 4, 8, step=4),
                activation="relu",
                kernel_regularizer=regularizers.l2(0.01),
            )
        )
        model.add(Dropout(hp.Float("dropout_ratio", min_value=0.2, max_value=0.5, step=0.1)))
        model.add(Dense(1, activation="sigmoid"))
        model.compile(
            optimizer=hp.Choice("optimizer", values=["adam", "rmsprop"]),
            loss="binary_crossentropy",
            metrics=[f1_score],
        )
        hp.Int("batch_size", min_value=32, max_value=64, step=32)
        return model

    return build_model


def main():
    vectors = TfidfVectorizer(max_features=8).fit_transform(texts).toarray()
    tuner = kt.Hyperband(
        build_model_factory(vectors.shape[1]),
        objective=kt.Objective("val_f1_score", "max"),
        max_epochs=2,
        factor=3,
        directory="C:\\keras_tuner",
        project_name="TF_RNN_c1",
        seed=2,
    )
    es = EarlyStopping(monitor="val_loss", mode="min", patience=3)
    tuner.search(vectors, labels, epochs=2, validation_split=0.2, callbacks=[es])
    best_hp = tuner.get_best_hyperparameters(num_trials=1)[0]
    print("RESULT", len(tuner.get_best_models(num_models=1)), sorted(best_hp.values))


if __name__ == "__main__":
    main()
