r"""Is a sentence English or French? An LSTM that reads it letter by letter.

    PACELINE_DATA=FOLDER paceline search examples/language_lstm.py --epochs 5 --trials 8

FOLDER holds ``fra_eng.tsv``: lines of an English sentence, a tab and a French one.
"""

import os
from pathlib import Path

import keras
import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz '-,.!?"
LENGTH = 40


def build(hp):
    model = keras.Sequential(
        [
            keras.layers.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(len(LETTERS) + 2, 16, mask_zero=True),
            keras.layers.LSTM(48),
            keras.layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("lr", 3e-4, 2e-2, sampling="log")),
        loss="binary_crossentropy",
        metrics=["accuracy"],
    )
    return model


def numbers(text):
    """A sentence as i32[LENGTH]: 0 behind its end, 1 for letters with an accent and all else."""
    found = [LETTERS.find(letter) + 2 for letter in text.lower()[:LENGTH]]
    return np.pad(np.array(found, "int32"), (0, LENGTH - len(found)))


def data(n=8000, n_val=2000):
    """Return (x, y), (x_val, y_val): half of the sentences are French (1), none is in both."""
    path = Path(os.environ.get("PACELINE_DATA", ".")) / "fra_eng.tsv"
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    rng = np.random.default_rng(0)
    half = (n + n_val) // 2
    texts, labels = [], []
    for label in (0, 1):
        short = sorted({line[label] for line in lines if len(line[label]) <= LENGTH})
        texts += [short[i] for i in rng.permutation(len(short))[:half]]
        labels += [label] * half
    order = rng.permutation(len(texts))
    x = np.stack([numbers(texts[i]) for i in order])
    y = np.array(labels, "int32")[order]
    return (x[:n], y[:n]), (x[n : n + n_val], y[n : n + n_val])
