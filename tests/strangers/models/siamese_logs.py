# Two inputs of tokens through one network that both share; names of hyperparameters have spaces.
import numpy as np
import tensorflow as tf
import keras_tuner as kt

rng = np.random.default_rng(0)
left = rng.integers(1, 30, (96, 7))
right = rng.integers(1, 30, (96, 7))
same = (left[:, 0] % 2 == right[:, 0] % 2).astype("float32")


class SiameseHyperModel(kt.HyperModel):
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary
        super().__init__()

    def build(self, hp):
        embed = self.embedding_model(hp)
        x1 = tf.keras.Input(shape=(None,))
        x2 = tf.keras.Input(shape=(None,))
        dot = tf.keras.layers.Dot(axes=-1)([embed(x1), embed(x2)])
        y = tf.keras.layers.Activation("sigmoid")(dot)
        model = tf.keras.Model(inputs=[x1, x2], outputs=[y])
        model.compile("adam", loss=tf.keras.losses.binary_crossentropy)
        return model

    def embedding_model(self, hp: kt.HyperParameters) -> tf.keras.Model:
        model = tf.keras.Sequential()
        model.add(tf.keras.layers.Embedding(self.vocabulary, hp.Int("embedding dim", 4, 8, 4)))
        for i in range(hp.Int("S2S LSTMs", 0, 1)):
            units = hp.Int(f"LSTM {i} units", 4, 8, 4)
            model.add(tf.keras.layers.LSTM(units, return_sequences=True))
        model.add(tf.keras.layers.LSTM(hp.Int("final LSTM units", 4, 8, 4)))
        for i in range(hp.Int("FCs", 1, 2)):
            model.add(tf.keras.layers.Dense(hp.Int(f"FC {i} units", 4, 8, 4)))
        model.add(tf.keras.layers.Dense(hp.Int("output dimensions", 2, 4, 2)))
        return model


tuner = kt.BayesianOptimization(
    SiameseHyperModel(30), objective="val_loss", max_trials=3, seed=0, project_name="siamese"
)
tuner.search([left, right], same, validation_split=0.25, epochs=1, batch_size=24)
tuner.results_summary(1)
model = tuner.get_best_models()[0]
print("RESULT", model.predict([left[:5], right[:5]], verbose=0).shape, len(model.inputs))
print("RESULT", sorted(n for n in tuner.get_best_hyperparameters()[0].values if " dim" in n))
