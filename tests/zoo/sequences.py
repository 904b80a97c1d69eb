"""Cases over time and over words: recurrent layers, masks, attention."""

from __future__ import annotations

import keras
from keras import layers, ops

from zoo.base import case, vary
from zoo.layers import LRS, RATES, adam, classifier, softmax
from zoo.samples import (
    N_WORDS,
    series,
    series_padded,
    series_tagged,
    words,
)


@case(series, hparams=vary(lr=LRS, spatial=RATES))
def conv1d(hp):
    """A causal and a dilated convolution over time, max over time."""
    model = keras.Sequential(
        [
            layers.Conv1D(6, 3, padding="causal", activation="relu"),
            layers.SpatialDropout1D(hp.Float("spatial", 0.05, 0.5)),
            layers.Conv1D(6, 2, dilation_rate=2, activation="relu"),
            layers.GlobalMaxPooling1D(),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(series, hparams=vary(lr=LRS, dropout=RATES, recurrent=[0.3, 0.2, 0.1]), float64_exact=False)
def lstm_recurrent_dropout(hp):
    """Draws dropout seeds during validation too, which must go back into the trial."""
    model = keras.Sequential(
        [
            layers.LSTM(
                6,
                dropout=hp.Float("dropout", 0.05, 0.5),
                recurrent_dropout=hp.Float("recurrent", 0.05, 0.5),
                return_sequences=True,
            ),
            layers.LSTM(5),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(words, hparams=vary(lr=LRS, dropout=RATES, recurrent=[0.3, 0.2, 0.1]), float64_exact=False)
def bidirectional_gru_embedding(hp):
    model = keras.Sequential(
        [
            layers.Embedding(N_WORDS, 6, mask_zero=True),
            layers.Bidirectional(
                layers.GRU(
                    5,
                    dropout=hp.Float("dropout", 0.05, 0.5),
                    recurrent_dropout=hp.Float("recurrent", 0.05, 0.5),
                )
            ),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(series_padded, hparams=vary(lr=LRS, dropout=RATES), float64_exact=False)
def bidirectional_gru_masking(hp):
    """Masking before two bidirectional GRUs, outputs summed."""
    model = keras.Sequential(
        [
            layers.Masking(0.0),
            layers.Bidirectional(layers.GRU(5, return_sequences=True), merge_mode="sum"),
            layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            layers.Bidirectional(layers.GRU(4)),
            softmax(),
        ]
    )
    return classifier(model, adam(hp))


@case(series_tagged, hparams=vary(lr=LRS, l2=[1e-4, 1e-3, 1e-2]), float64_exact=False)
def masked_tagging(hp):
    """The mask reaches the loss and the metrics: masked steps count for nothing."""
    model = keras.Sequential(
        [
            layers.Masking(0.0),
            layers.SimpleRNN(
                6,
                return_sequences=True,
                recurrent_regularizer=keras.regularizers.L2(hp.Float("l2", 1e-5, 1e-1)),
            ),
            layers.TimeDistributed(softmax()),
        ]
    )
    return classifier(model, adam(hp))


@case(
    words,
    hparams=vary(lr=LRS, dropout=RATES),
    float64_exact=False,
    chaotic="the key bias' gradient is mathematically zero; Adam scales its rounding up",
)
def attention(hp):
    """A small transformer block: positions, masked self-attention, LayerNorm, residuals."""
    rate = hp.Float("dropout", 0.05, 0.5)
    tokens = layers.Input((8,), dtype="int32")
    x = layers.Embedding(N_WORDS, 8, mask_zero=True)(tokens)
    x = x + layers.Embedding(8, 8)(ops.arange(8))
    attended = layers.MultiHeadAttention(2, 4, dropout=rate)(x, x)
    x = layers.LayerNormalization()(x + attended)
    hidden = layers.Dense(8)(layers.Dense(16, activation="gelu")(x))
    x = layers.LayerNormalization(epsilon=1e-5)(x + layers.Dropout(rate)(hidden))
    x = layers.GlobalAveragePooling1D()(x)
    return classifier(keras.Model(tokens, softmax()(x)), adam(hp))
