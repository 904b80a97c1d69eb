# A transformer block and positions as layers of the user's own, AdamW, sparse labels.
import keras
from keras import layers, ops
import keras_tuner as kt
import numpy as np

rng = np.random.default_rng(0)
x_train = rng.integers(0, 60, (120, 12))
y_train = (x_train[:, 0] > 30).astype("int64")


@keras.saving.register_keras_serializable()
class TokenAndPosition(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim, **kwargs):
        super().__init__(**kwargs)
        self.token_emb = layers.Embedding(vocab_size, embed_dim)
        self.pos_emb = layers.Embedding(maxlen, embed_dim)

    def call(self, x):
        return self.token_emb(x) + self.pos_emb(ops.arange(0, ops.shape(x)[-1]))


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.1):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential(
            [layers.Dense(ff_dim, activation="gelu"), layers.Dense(embed_dim)]
        )
        self.norm1, self.norm2 = (
            layers.LayerNormalization(epsilon=1e-6),
            layers.LayerNormalization(epsilon=1e-6),
        )
        self.drop1, self.drop2 = layers.Dropout(rate), layers.Dropout(rate)

    def call(self, inputs, training=None):
        out = self.norm1(inputs + self.drop1(self.att(inputs, inputs), training=training))
        return self.norm2(out + self.drop2(self.ffn(out), training=training))


def build_model(hp):
    embed_dim = hp.Choice("embed_dim", [4, 8], ordered=True)
    inputs = layers.Input(shape=(12,))
    x = TokenAndPosition(12, 60, embed_dim)(inputs)
    for _ in range(hp.Int("blocks", 1, 2)):
        x = TransformerBlock(
            embed_dim,
            hp.Int("num_heads", 1, 2),
            hp.Int("ff_dim", 8, 16, step=8),
            hp.Float("rate", 0.0, 0.3),
        )(x)
    x = layers.GlobalAveragePooling1D()(x)
    outputs = layers.Dense(2, activation="softmax")(x)
    model = keras.Model(inputs=inputs, outputs=outputs)
    model.compile(
        optimizer=keras.optimizers.AdamW(
            hp.Float("lr", 1e-4, 1e-2, sampling="log"), weight_decay=hp.Choice("wd", [1e-4, 1e-3])
        ),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


tuner = kt.RandomSearch(
    build_model, "val_accuracy", max_trials=4, seed=13, directory="text", project_name="tr"
)
tuner.search(x_train, y_train, batch_size=24, epochs=1, validation_split=0.2, shuffle=False)
values = [t.hyperparameters.values for t in tuner.oracle.trials.values()]
print(
    "RESULT",
    len(values),
    sorted(values[0]),
    tuner.get_best_models()[0].predict(x_train[:3], verbose=0).shape,
)
