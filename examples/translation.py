r"""English to French, word by word: an encoder, and a decoder with attention.

    PACELINE_DATA=FOLDER python examples/translation.py                 a search; ten sentences
    PACELINE_DATA=FOLDER paceline search examples/translation.py --objective max:val_token_accuracy

FOLDER holds ``fra_eng.tsv``: lines of an English sentence, a tab and a French one. In training the
decoder gets the right words so far (teacher forcing). Afterwards it gets its own words, each the
likeliest next one (greedy decoding).

N: pairs. E, F: words of the longest English and French sentence, [end] included.
"""

import os
import re
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")  # before Keras is imported

import keras
import numpy as np
from keras import ops

E, F = 8, 11
PADDING, UNKNOWN, START, END = range(4)
WORDS = 4000  # of each language; rarer ones are [unknown]


def token_accuracy(y, logits):
    """The share of words that are right, padding left out."""
    counts = ops.cast(ops.not_equal(y, PADDING), "float32")
    right = ops.cast(ops.equal(ops.cast(y, "int32"), ops.argmax(logits, axis=-1)), "float32")
    return ops.sum(right * counts) / ops.sum(counts)


def build(hp):
    units, dropout = 128, hp.Float("dropout", 0.1, 0.4)
    english = keras.Input((E,), dtype="int32", name="english")
    french = keras.Input((F,), dtype="int32", name="french")
    read = keras.layers.Embedding(WORDS, units, mask_zero=True)(english)
    read, state = keras.layers.GRU(units, return_sequences=True, return_state=True)(read)
    said = keras.layers.Embedding(WORDS, units)(french)
    said = keras.layers.GRU(units, return_sequences=True)(said, initial_state=state)
    seen = keras.layers.Attention()([said, read])
    joined = keras.layers.Concatenate()([said, seen])
    joined = keras.layers.Dense(units, activation="tanh")(keras.layers.Dropout(dropout)(joined))
    logits = keras.layers.Dense(WORDS)(joined)
    model = keras.Model({"english": english, "french": french}, logits)
    model.compile(
        optimizer=keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-2, sampling="log")),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING),
        metrics=[token_accuracy],
    )
    return model


def words(text):
    """A sentence in small letters as a list of words and signs."""
    return re.findall(r"[\w'\u2019-]+|[^\w\s]", text.lower())


def pairs(n):
    """N pairs of short sentences, shuffled: two lists of words each."""
    path = Path(os.environ.get("PACELINE_DATA", ".")) / "fra_eng.tsv"
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    found = [(words(english), words(french)) for english, french in lines]
    short = [pair for pair in found if len(pair[0]) < E and len(pair[1]) < F]
    order = np.random.default_rng(0).permutation(len(short))
    return [short[i] for i in order[:n]]


def vocabulary(sentences):
    """The most frequent words, by number; the first four numbers stand for no word."""
    counts = {}
    for sentence in sentences:
        for word in sentence:
            counts[word] = counts.get(word, 0) + 1
    kept = sorted(counts, key=lambda word: (-counts[word], word))[: WORDS - 4]
    return ["", "[unknown]", "[start]", "[end]", *kept]


def prepared(n=20_000, n_val=2_000):
    """Training and validation data, and both vocabularies; no English sentence is in both parts."""
    found = pairs(n + n_val)
    held = {tuple(english) for english, _ in found[n:]}
    train = [pair for pair in found[:n] if tuple(pair[0]) not in held]
    names = [vocabulary(column) for column in zip(*train, strict=True)]
    number = [{word: i for i, word in enumerate(some)} for some in names]

    def arrays(some):
        english = np.zeros((len(some), E), "int32")
        french = np.zeros((len(some), F + 1), "int32")
        for row, (source, target) in enumerate(some):
            read = [*(number[0].get(word, UNKNOWN) for word in source), END]
            said = [START, *(number[1].get(word, UNKNOWN) for word in target), END]
            english[row, : len(read)], french[row, : len(said)] = read, said
        return {"english": english, "french": french[:, :-1]}, french[:, 1:]

    return arrays(train), arrays(found[n:]), names


def data():
    """Return (x, y), (x_val, y_val): English and, so far, French words; the next French ones."""
    return prepared()[:2]


def translate(model, english):
    """The likeliest next word, again and again: i32[N, F]."""
    french = np.full((len(english), F + 1), PADDING, "int32")
    french[:, 0] = START
    for at in range(F):
        logits = model.predict({"english": english, "french": french[:, :-1]}, verbose=0)
        french[:, at + 1] = np.argmax(logits[:, at], axis=-1)
    return french[:, 1:]


def text(numbers, names):
    """Words up to [end]."""
    kept = []
    for number in numbers:
        if number in (END, PADDING):
            break
        kept.append(names[number])
    return " ".join(kept)


def main():
    import paceline

    (x, y), (x_val, y_val), (english, french) = prepared()
    print(f"{len(y):,} pairs to train on, {len(y_val):,} to validate on")
    tuner = paceline.Tuner(
        build, objective="max:val_token_accuracy", study="translation", sampler="random"
    )
    tuner.search(x, y, validation_data=(x_val, y_val), epochs=10, batch_size=64, n_trials=4)
    best = tuner.best_trial
    print(f"trial {best.number}: {best.value:.1%} of the words are right, with {best.hparams}")
    found = translate(tuner.best_model(), x_val["english"][:10])
    for source, ours, theirs in zip(x_val["english"], found, y_val, strict=False):
        print(f"{text(source, english)}  ->  {text(ours, french)}   ({text(theirs, french)})")


if __name__ == "__main__":
    main()
