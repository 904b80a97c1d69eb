"""What ``test_text.py`` runs in a session on TensorFlow: models that begin with text."""

import json
import os

import keras
import numpy as np
import tensorflow as tf

import paceline
from paceline.compat import keras_tuner as kt

WORDS = ["good film", "bad film indeed", "fine and good", "a bad one", "not good at all", "bad bad"]
X = tf.constant(WORDS * 10)  # Keras' fit takes no array of texts
Y = np.array([1, 0, 1, 0, 0, 0] * 10)
DATA = dict(validation_data=(X[:12], Y[:12]), epochs=2, batch_size=10)
vectorize = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=5)
vectorize.adapt(X)
found, pids, seen = {}, set(), []


def behind(hp, inputs, x):
    pids.add(os.getpid())
    x = keras.layers.Embedding(20, hp.Int("width", 4, 8, step=4))(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(x))
    adam = keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1))
    model.compile(adam, "binary_crossentropy", metrics=["accuracy"])
    return model


def build(hp):
    inputs = keras.Input((1,), dtype=tf.string)
    return behind(hp, inputs, vectorize(inputs))


def sequential(hp):
    model = keras.Sequential([keras.Input((1,), dtype="string"), vectorize])
    model.add(keras.layers.Embedding(20, hp.Int("width", 4, 8, step=4)))
    model.add(keras.layers.GlobalAveragePooling1D())
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def numbers(hp):  # what ``build`` trains behind its first layer
    inputs = keras.Input((5,), dtype="int32")
    return behind(hp, inputs, inputs)


def two(hp):
    text, size = keras.Input((), dtype="string", name="text"), keras.Input((1,), name="size")
    lookup = keras.layers.StringLookup(vocabulary=["good film", "bad bad"], output_mode="one_hot")
    x = keras.layers.Concatenate()([lookup(text), size])
    model = keras.Model({"text": text, "size": size}, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1)), "mse")
    return model


def by_hp(hp):
    own = keras.layers.TextVectorization(
        max_tokens=hp.Choice("tokens", [20, 6]), output_sequence_length=5
    )
    own.adapt(X)
    inputs = keras.Input((1,), dtype="string")
    return behind(hp, inputs, own(inputs))


def ragged(hp):
    own = keras.layers.TextVectorization(max_tokens=20)
    own.adapt(X)
    inputs = keras.Input((1,), dtype="string")
    return behind(hp, inputs, own(inputs))


class Seen(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen.append(epoch)


class Looks(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        self.model.predict(X[:2], verbose=0)


def searched(name, build, x=X, y=Y, data=DATA, n_trials=3, **more):
    notes = []
    tuner = paceline.Tuner(build, "val_loss", name, sampler="random", on_note=notes.append)
    tuner.search(x, y, **data, n_trials=n_trials, **more)
    trials = tuner.results()
    plans = trials["plan"].tolist()
    histories = [tuner.history(n) for n in sorted(trials["number"])]
    found[name] = {"plans": plans, "histories": histories, "notes": notes}
    if "tokens" in trials:
        found["tokens"] = trials["tokens"].tolist()
    return tuner


tuner = searched("build", build, callbacks=[Seen()])
model = tuner.best_model()
found["best"] = [tuner.best_trial.value, float(model.evaluate(X[:12], Y[:12], verbose=0)[0])]
found["shape"] = list(np.shape(model.predict(X, verbose=0)))
as_numbers = {**DATA, "validation_data": (np.asarray(vectorize(X[:12])), Y[:12])}
searched("numbers", numbers, np.asarray(vectorize(X)), data=as_numbers)
searched("sequential", sequential)
batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)
searched("batches", build, batches, None, {**DATA, "batch_size": None})
as_dict = {"text": X, "size": np.ones((60, 1), "float32")}
searched("two", two, as_dict, Y, dict(validation_data=(as_dict, Y), epochs=1))
searched("by_hp", by_hp, n_trials=6)
searched("ragged", ragged, n_trials=2)
searched("looks", build, n_trials=2, callbacks=[Looks()])
tuner = kt.RandomSearch(build, "val_loss", max_trials=3, directory="kt", seed=1)
tuner.search(X, Y, **DATA, verbose=0)
(best,) = tuner.get_best_models(1)
score = tuner.oracle.get_best_trials(1)[0].score
found["kt"] = [score, float(best.evaluate(X[:12], Y[:12], verbose=0)[0])]
found |= {"seen": len(seen), "processes": len(pids - {os.getpid()})}
print("FOUND" + json.dumps(found))  # noqa: T201
