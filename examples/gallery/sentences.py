r"""Is a sentence English or French? A GRU reads it letter by letter.

    PACELINE_DATA=FOLDER python examples/gallery/sentences.py

FOLDER holds ``fra_eng.tsv``: lines of an English sentence, a tab and a French one.
"""

import os
from pathlib import Path

import paceline  # import it before keras, so that Keras uses JAX

import keras
import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz '-,.!?"
LENGTH = 40


def build(hp):
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(len(LETTERS) + 2, 16, mask_zero=True),
            keras.layers.GRU(hp.Choice("units", [4, 16, 32])),
            keras.layers.Dropout(hp.Float("dropout", 0.05, 0.5)),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 3e-4, 3e-2, sampling="log")),
        loss="binary_crossentropy",
        metrics=["accuracy"],
    )
    return model


def numbers(text):
    """Return a sentence as i32[LENGTH]: 0 after its end, 1 for all other letters and signs."""
    found = [LETTERS.find(letter) + 2 for letter in text.lower()[:LENGTH]]
    return np.pad(np.array(found, "int32"), (0, LENGTH - len(found)))


def data(n=8000, n_val=2000, n_test=5000):
    """Return (x, y) three times: to train, validate and test; half are French (1)."""
    path = Path(os.environ.get("PACELINE_DATA", ".")) / "fra_eng.tsv"
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    rng = np.random.default_rng(0)
    texts, labels = [], []
    half = (n + n_val + n_test) // 2
    for label in (0, 1):
        short = sorted({line[label] for line in lines if len(line[label]) <= LENGTH})
        texts += [short[i] for i in rng.permutation(len(short))[:half]]
        labels += [label] * half
    order = rng.permutation(len(texts))
    x, y = np.stack([numbers(texts[i]) for i in order]), np.array(labels, "int32")[order]
    ends = [n, n + n_val]
    return tuple(zip(np.split(x, ends), np.split(y, ends), strict=True))


def search(n_trials=12, epochs=6):
    (x, y), validation_data, _ = data()
    tuner = paceline.Tuner(
        build, objective="val_accuracy", study="sentences", sampler="random", seed=0
    )
    tuner.search(
        x,
        y,
        validation_data=validation_data,
        epochs=epochs,
        batch_size=64,
        n_trials=n_trials,
        callbacks=[keras.callbacks.EarlyStopping("val_loss", patience=2)],
    )
    return tuner


def outcome(tuner):
    """Return what the best model does: name -> text."""
    model = tuner.best_model()
    _, _, (x_test, y_test) = data()
    asked = ["the house is red", "la maison est rouge"]
    said = model.predict(np.stack([numbers(text) for text in asked]), verbose=0)[:, 0]
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    return {
        f"accuracy on {len(y_test):,} other sentences": f"{accuracy:.1%}",
        **{f'"{text}" is French': f"{p:.1%}" for text, p in zip(asked, said, strict=True)},
    }


if __name__ == "__main__":
    tuner = search()
    print(tuner.best_trial.hparams, outcome(tuner), tuner.report("sentences.html"), sep="\n")
