r"""Does attention help a small translator from English to French?

    PACELINE_DATA=FOLDER python examples/gallery/attention.py

FOLDER holds ``fra_eng.tsv``: lines of an English sentence, a tab and a French one. In training the
decoder gets the right words so far. Afterwards it gets its own words, each the likeliest next one.
"""

import os
import re
from collections import Counter
from pathlib import Path

import paceline  # import it before keras, so that Keras uses JAX

import keras
import numpy as np

ops = keras.ops
E, F = 5, 8  # words of the longest English and French sentence, [end] included
PADDING, UNKNOWN, START, END = range(4)
WORDS = 1500  # of each language


def token_accuracy(y, logits):
    """Return the share of words that are right, without padding."""
    counts = ops.cast(ops.not_equal(y, PADDING), "float32")
    right = ops.cast(ops.equal(ops.cast(y, "int32"), ops.argmax(logits, axis=-1)), "float32")
    return ops.sum(right * counts) / ops.sum(counts)


def build(hp):
    units = hp.Choice("units", [32, 64])
    english = keras.Input((E,), dtype="int32", name="english")
    french = keras.Input((F,), dtype="int32", name="french")
    read = keras.layers.Embedding(WORDS, units, mask_zero=True)(english)
    read, state = keras.layers.GRU(units, return_sequences=True, return_state=True)(read)
    said = keras.layers.Embedding(WORDS, units)(french)
    said = keras.layers.GRU(units, return_sequences=True)(said, initial_state=state)
    if hp.Boolean("attention"):
        seen = keras.layers.Attention()([said, read])
        said = keras.layers.Concatenate()([said, seen])
    said = keras.layers.Dropout(hp.Float("dropout", 0.05, 0.4))(said)
    logits = keras.layers.Dense(WORDS)(said)
    model = keras.Model({"english": english, "french": french}, logits)
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 1e-3, 3e-2, sampling="log")),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING),
        metrics=[token_accuracy],
    )
    return model


def words(text):
    """Return a sentence in small letters as a list of words and signs."""
    return re.findall(r"[\w'\u2019-]+|[^\w\s]", text.lower())


def data(n=8000, n_val=1000):
    """Return (x, y), (x_val, y_val) and both vocabularies; no English sentence is in both parts."""
    path = Path(os.environ.get("PACELINE_DATA", ".")) / "fra_eng.tsv"
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [(words(english), words(french)) for english, french in lines]
    pairs = [pair for pair in pairs if len(pair[0]) < E and len(pair[1]) < F]
    order = np.random.default_rng(0).permutation(len(pairs))[: n + n_val]
    pairs = [pairs[i] for i in order]
    held = {tuple(english) for english, _ in pairs[n:]}
    train = [pair for pair in pairs[:n] if tuple(pair[0]) not in held]
    names = []
    for column in zip(*train, strict=True):
        counts = Counter(word for sentence in column for word in sentence)
        common = sorted(counts, key=lambda word: (-counts[word], word))[: WORDS - 4]
        names.append(["", "[unknown]", "[start]", "[end]", *common])
    number = [{word: i for i, word in enumerate(some)} for some in names]

    def arrays(some):
        english = np.zeros((len(some), E), "int32")
        french = np.zeros((len(some), F + 1), "int32")
        for row, (source, target) in enumerate(some):
            read = [*(number[0].get(word, UNKNOWN) for word in source), END]
            said = [START, *(number[1].get(word, UNKNOWN) for word in target), END]
            english[row, : len(read)], french[row, : len(said)] = read, said
        return {"english": english, "french": french[:, :-1]}, french[:, 1:]

    return arrays(train), arrays(pairs[n:]), names


def search(n_trials=10, epochs=8):
    (x, y), validation_data, _ = data()
    tuner = paceline.Tuner(
        build, objective="max:val_token_accuracy", study="attention", sampler="random", seed=0
    )
    tuner.search(
        x, y, validation_data=validation_data, epochs=epochs, batch_size=64, n_trials=n_trials
    )
    return tuner


def translate(model, english):
    """Return the likeliest next word, again and again: i32[N, F]."""
    french = np.full((len(english), F + 1), PADDING, "int32")
    french[:, 0] = START
    for at in range(F):
        logits = model.predict({"english": english, "french": french[:, :-1]}, verbose=0)
        french[:, at + 1] = np.argmax(logits[:, at], axis=-1)
    return french[:, 1:]


def text(numbers, names):
    """Return the words up to [end]."""
    kept = [names[number] for number in numbers]
    return " ".join(kept[: kept.index("[end]")] if "[end]" in kept else kept).strip()


def outcome(tuner):
    """Return what the best model does: English -> French, and what the data have for it."""
    _, (x_val, y_val), (english, french) = data()
    known = (x_val["english"] != UNKNOWN).all(axis=1) & (y_val != UNKNOWN).all(axis=1)
    rows = np.flatnonzero(known)[:6]  # sentences without rare words
    found = translate(tuner.best_model(), x_val["english"][rows])
    said = {}
    for source, ours, theirs in zip(x_val["english"][rows], found, y_val[rows], strict=True):
        translations = f'"{text(ours, french)}" (in the data: "{text(theirs, french)}")'
        said[f'"{text(source, english)}"'] = translations
    return said


if __name__ == "__main__":
    tuner = search()
    print(tuner.best_trial.hparams, outcome(tuner), tuner.report("attention.html"), sep="\n")
