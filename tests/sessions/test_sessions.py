"""The same scripts in every kind of session: trials train in packs, with the same numbers.

`make test-sessions` runs this where TensorFlow is installed, and where PyTorch is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

#: How a session begins -> the package that it needs, variables of its environment, and its lines.
SESSIONS: dict[str, tuple[str, dict[str, str], str]] = {
    "fresh": ("jax", {}, "import paceline\nimport keras"),
    "keras.json is there": ("tensorflow", {"KERAS_HOME": "written"}, "import paceline, keras"),
    "keras first": ("tensorflow", {"KERAS_HOME": "written"}, "import keras\nimport paceline"),
    "tensorflow first": ("tensorflow", {}, "import tensorflow as tf\nimport keras, paceline"),
    "tensorflow.keras": ("tensorflow", {}, "from tensorflow import keras\nimport paceline"),
    "a model was trained": (
        "tensorflow",
        {},
        "import keras, numpy as np\n"
        "before = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])\n"
        "before.compile('sgd', 'mse')\n"
        "before.fit(np.ones((8, 6)), np.ones((8, 1)), verbose=0)\n"
        "import paceline",
    ),
    "torch": ("torch", {"KERAS_BACKEND": "torch"}, "import paceline, keras"),
}
ON_JAX = ("fresh", "keras.json is there")

SCRIPT = """
import json, os, sys
import numpy as np
from paceline.compat import keras_tuner as kt

rng = np.random.default_rng(0)
Y = rng.integers(0, 3, 60)
X = rng.normal(size=(60, 6)).astype("float32")
X[np.arange(60), Y] += 2.0
DATA = dict(validation_data=(X[40:], Y[40:]), epochs=2, batch_size=10)
pids, best = set(), []
found = {}


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.factor


def layers(hp):
    width = hp.Int("units", 4, 8, step=4)
    yield from (Scale(), keras.layers.Dense(width, activation="relu"), keras.layers.Dropout(0.2))


def sequential(hp):
    pids.add(os.getpid())
    model = keras.Sequential([keras.Input((6,)), *layers(hp), keras.layers.Dense(3, "softmax")])
    adam = keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1, sampling="log"))
    model.compile(adam, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Subclassed(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.hidden = keras.layers.Dense(units, activation="tanh")
        self.out = keras.layers.Dense(3)

    def call(self, x):
        return self.out(self.hidden(x))


def own_loss(y, logits):
    loss = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    return loss + 1e-3 * keras.ops.mean(keras.ops.square(logits), axis=-1)


class Margin(keras.metrics.Metric):
    def __init__(self, name="margin", **more):
        super().__init__(name=name, **more)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y, logits, sample_weight=None):
        self.total.assign(self.total + keras.ops.mean(keras.ops.max(logits, axis=-1)))

    def result(self):
        return self.total + 0.0


def subclassed(hp):
    model = Subclassed(hp.Int("units", 4, 6))
    sgd = keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1))
    model.compile(sgd, loss=own_loss, metrics=[Margin()])
    return model


def functional(hp):
    first, second = keras.Input((4,), name="first"), keras.Input((2,), name="second")
    x = keras.layers.Concatenate()([keras.layers.Dense(hp.Int("units", 2, 4))(first), second])
    out = {"label": keras.layers.Dense(3)(x), "sum": keras.layers.Dense(1)(x)}
    model = keras.Model({"first": first, "second": second}, out)
    cross = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1)), {"label": cross, "sum": "mse"})
    return model


def recurrent(hp):
    model = keras.Sequential([keras.Input((3, 2)), keras.layers.GRU(hp.Int("units", 2, 4))])
    model.add(keras.layers.BatchNormalization())
    model.add(keras.layers.Dense(3, activation="softmax"))
    rate = keras.optimizers.schedules.ExponentialDecay(hp.Float("lr", 1e-3, 1e-1), 4, 0.9)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    return model


class Best(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        best.append(round(logs["val_loss"], 6))


def histories(tuner):
    trials = tuner.results()
    return [trials["plan"].tolist(), [tuner.history(n) for n in sorted(trials["number"])]]


def searched(name, build, data=DATA, x=X, y=Y, **more):
    tuner = paceline.Tuner(build, "val_loss", name, sampler="random", on_note=notes.append)
    tuner.search(x, y, **data, n_trials=3, **more)
    found[name] = histories(tuner)
    return tuner


notes = []
tuner = searched("sequential", sequential, callbacks=[Best(), keras.callbacks.EarlyStopping()])
model = tuner.best_model()
found["best"] = [tuner.best_trial.value, np.asarray(model.predict(X, verbose=0)).tolist()]
searched("subclassed", subclassed)
parts = {"first": X[:, :4], "second": X[:, 4:]}
labels = {"label": Y, "sum": X.sum(axis=1)}
searched("functional", functional, dict(validation_split=0.2, epochs=2), parts, labels)
weights = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}
steps = {**DATA, "validation_data": (X[40:].reshape(20, 3, 2), Y[40:])} | weights
searched("recurrent", recurrent, steps, X.reshape(60, 3, 2))
folds = {name: DATA[name] for name in ("epochs", "batch_size")}
searched("folds", sequential, data=folds, folds=2)
as_tensors = {**DATA, "validation_data": tuple(map(keras.ops.convert_to_tensor, (X[40:], Y[40:])))}
searched("tensors", sequential, as_tensors, *map(keras.ops.convert_to_tensor, (X, Y)))
pairs = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 40, 10)]
if "tensorflow" in sys.modules:
    import tensorflow as tf

    batches = tf.data.Dataset.from_tensor_slices((X[:40], Y[:40])).batch(10)
elif keras.backend.backend() == "torch":
    import torch

    whole = torch.utils.data.TensorDataset(*map(torch.tensor, (X[:40], Y[:40])))
    batches = torch.utils.data.DataLoader(whole, 10)
else:
    batches = None


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return pairs[i]


data = {**DATA, "batch_size": None}
searched("py_dataset", sequential, data, Batches(), None, shuffle=False)
if batches is not None:
    searched("batches", sequential, data, batches, None)
    assert found["batches"][1] == found["py_dataset"][1]
tuner = kt.Hyperband(sequential, "val_loss", max_epochs=4, seed=2, directory="kt")
tuner.search(X, Y, validation_data=DATA["validation_data"], verbose=0)
found["hyperband"] = [trial.score for trial in tuner.oracle.get_best_trials(20)]
first = kt.RandomSearch(sequential, objective="val_loss", max_trials=3, seed=4)  # KerasTuner's own
first.search(X, Y, epochs=2, validation_data=DATA["validation_data"], verbose=0)
found["first"] = [trial.score for trial in first.oracle.get_best_trials(3)]
found["loaded"] = tuner.get_best_models(1)[0].evaluate(X[40:], Y[40:], verbose=0)[0]
found |= {
    "notes": notes,
    "callback": sorted(best),
    "processes": len(pids - {os.getpid()}),
    "backend": keras.backend.backend(),
}
print("FOUND" + json.dumps(found))
"""


def run(session: str, script: str, folder: Path) -> dict[str, Any]:
    """What a script prints of its searches in a session, in a folder of its own."""
    package, variables, begin = SESSIONS[session]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(f"{begin}\n{script}", encoding="utf-8")
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_HOME": "none"}
    for name in ("JAX_NUM_CPU_DEVICES", "KERAS_BACKEND"):
        environment.pop(name, None)
    environment |= variables
    if variables.get("KERAS_HOME"):  # the file that Keras writes at its first import
        code = "import keras"
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=folder, check=True)
        assert '"backend": "tensorflow"' in (folder / "written/keras.json").read_text()
    done = subprocess.run(
        [sys.executable, "script.py"],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("FOUND")]
    return {**json.loads(line.removeprefix("FOUND")), "stderr": done.stderr}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script finds in a fresh session, which is on JAX."""
    if not (find_spec("tensorflow") or find_spec("torch")):
        pytest.skip("neither TensorFlow nor PyTorch is installed")
    return run("fresh", SCRIPT, tmp_path_factory.mktemp("fresh"))


@pytest.mark.parametrize("session", [name for name in SESSIONS if name != "fresh"])
def test_trials_train_in_packs_with_the_numbers_of_a_session_on_jax(
    session: str, alone: dict[str, Any], fresh_folder: Path
) -> None:
    found = run(session, SCRIPT, fresh_folder)
    assert alone["backend"] == "jax" and alone["processes"] == 0
    assert (found["backend"] == "jax") == (session in ON_JAX)
    assert found["processes"] == (session not in ON_JAX)  # one, for all searches of the session
    searches = "sequential subclassed functional recurrent folds tensors py_dataset"
    for search in searches.split():
        plans, histories = found[search]
        assert (plans, histories) == tuple(alone[search]), search
        assert "fit" not in plans and len(plans) == 3
    assert found["callback"] == alone["callback"] and found["callback"]
    assert found["hyperband"] == alone["hyperband"] and len(found["hyperband"]) == 10
    assert found["first"] == alone["first"] and len(found["first"]) == 3
    assert found["best"][0] == alone["best"][0]
    # 1e-7 measured: one float32 product on each backend.
    np.testing.assert_allclose(found["best"][1], alone["best"][1], atol=1e-5)
    assert found["loaded"] == pytest.approx(found["hyperband"][0], abs=1e-5)
    assert found["notes"] == alone["notes"]
    assert "one after another in Keras' fit" not in found["stderr"]


IN_SESSION = """
import json, os, threading
import numpy as np
import tensorflow as tf
from paceline.compat import keras_tuner as kt

X, Y = np.random.default_rng(0).normal(size=(40, 6)).astype("float32"), np.arange(40) % 3
DATA = dict(validation_data=(X, Y), epochs=1, batch_size=10)
found = {}


def tf_loss(y, p):
    own = tf.gather(p, tf.cast(tf.reshape(y, [-1]), tf.int32), axis=1, batch_dims=1)
    return -tf.math.log(tf.math.cumprod(own, axis=0)[:1])


class TfLayer(keras.layers.Layer):
    def call(self, x):
        return tf.math.cumprod(tf.nn.elu(x), axis=-1)


class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def model(hp, *layers, loss="sparse_categorical_crossentropy", kind=keras.Model):
    inputs = x = keras.Input((6,))
    for layer in (*layers, keras.layers.Dense(3, activation="softmax")):
        x = layer(x)
    made = kind(inputs, x)
    made.compile(keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1)), loss)
    return made


def loss(hp):
    return model(hp, loss=tf_loss)


def layer(hp):
    return model(hp, TfLayer())


def step(hp):
    return model(hp, kind=Own)


seen = []


class Seen(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        seen.append([os.getpid(), round(logs["loss"], 6)])


def some(hp):
    layers = []
    if hp.Choice("kind", ["keras", "tensorflow"]) == "tensorflow":
        layers = [TfLayer(), keras.layers.Dense(hp.Int("units", 4, 9))]  # declared after the error
    return model(hp, *layers)


def traced(hp):
    kind = Own if hp.Choice("kind", ["tensorflow", "keras"]) == "tensorflow" else keras.Model
    return model(hp, kind=kind)


def wider(hp):
    dtype = "float64" if hp.Choice("kind", ["keras", "tensorflow"]) == "tensorflow" else None
    return model(hp, keras.layers.Dense(4, dtype=dtype))


def fails(hp):
    raise LookupError("of the user")


def held(hp, lock=threading.Lock()):
    return model(hp)


def wide(hp):
    return model(hp, keras.layers.Dense(4, dtype="float64"))


for build in (loss, layer, step, held, wide):
    notes = []
    tuner = paceline.Tuner(build, "loss", build.__name__, sampler="random", on_note=notes.append)
    tuner.search(X, Y, **DATA, n_trials=3)
    trials = tuner.results()
    found[build.__name__] = [notes, trials["plan"].tolist(), trials["state"].tolist()]
for build in (some, traced, wider):
    notes, looks = [], []
    tuner = paceline.Tuner(
        build,
        "loss",
        build.__name__,
        sampler="random",
        seed=1,
        keep_best=8,
        on_note=notes.append,
        on_progress=lambda progress: looks.append(len(seen)),
    )
    tuner.search(X, Y, **{**DATA, "epochs": 2}, n_trials=8, callbacks=[Seen()])
    trials = tuner.results()
    found[build.__name__] = [notes, *(trials[name].tolist() for name in ("plan", "state", "kind"))]
    values = sorted(trials["value"])
    losses = [tuner.best_model(i).evaluate(X, Y, verbose=0) for i in range(1, 9)]
    found["live"] = looks
    if build is some:  # the other's own step leaves Keras' mean of the loss at zero
        np.testing.assert_allclose(sorted(losses), values, atol=0.1)  # means over the epoch
found["seen"] = len(seen), len({pid for pid, _ in seen})
tuner = kt.RandomSearch(some, "val_loss", max_trials=4, directory="kt", seed=1)
tuner.search(X, Y, **DATA, verbose=0)
found["keras_tuner"] = [trial.status for trial in tuner.oracle.trials.values()]
notes = []
tuner = paceline.Tuner(model, "loss", study="generator", sampler="random", on_note=notes.append)
batches = ((X[i : i + 10], Y[i : i + 10]) for _ in range(9) for i in range(0, 40, 10))
tuner.search(batches, steps_per_epoch=4, epochs=1, n_trials=2)
found["generator"] = [notes, tuner.results()["plan"].tolist(), tuner.results()["state"].tolist()]
try:
    paceline.Tuner(fails, study="fails", on_note=notes.append).search(X, Y, **DATA, n_trials=1)
except paceline.BuildError as error:
    found["fails"] = [str(error), type(error.__cause__).__name__]
print("FOUND" + json.dumps(found))
"""


def test_what_jax_cannot_run_trains_in_the_session_with_one_note(fresh_folder: Path) -> None:
    found = run("tensorflow.keras", IN_SESSION, fresh_folder)
    for name, said in {
        "loss": "keras.ops.cumprod",
        "layer": "calls tf.math.cumprod, which",
        "step": "train_step",
        "held": "cannot be sent",
        "wide": "float64",
        "generator": "is read in this process",
    }.items():
        notes, plans, states = found[name]
        assert set(states) == {"complete"}, name
        assert len(plans) == (2 if name == "generator" else 3) and plans[-1] == "fit", name
        told = [note for note in notes if "one after another in Keras' fit on tensorflow" in note]
        assert len(told) == 1, name
        assert said in told[0], told
    for name, said in {
        "some": "tf.math.cumprod",
        "traced": "train_step",
        "wider": "float64",
    }.items():
        notes, plans, states, kinds = found[name]
        assert set(states) == {"complete"} and len(plans) == 8, name
        # Kinds that can train in packs do so after others, too.
        assert [plan == "fit" for plan in plans] == [kind == "tensorflow" for kind in kinds]
        told = [note for note in notes if "in this session, one after another" in note]
        assert len(told) == 1 and said in told[0], notes
    assert found["seen"] == [3 * 2 * 8, 2]  # each epoch once, from both processes
    assert any(32 < n < 48 for n in found["live"])  # while they search
    assert set(found["loss"][1]) == set(found["layer"][1]) == {"fit"}
    assert found["keras_tuner"] == ["COMPLETED"] * 4
    # All notes but those of KerasTuner's drop-in go elsewhere: its third trial does not end packs.
    assert "one after another in Keras' fit on tensorflow" not in found["stderr"]
    assert found["fails"] == ["build(hp) failed: LookupError: of the user", "LookupError"]


TEXT = Path(__file__).with_name("text_script.py").read_text(encoding="utf-8")


def test_models_that_begin_with_text_train_in_packs(fresh_folder: Path) -> None:
    found = run("tensorflow first", TEXT, fresh_folder)
    for name in ("build", "numbers", "sequential", "batches", "two"):
        assert "fit" not in found[name]["plans"], name
    # The layers ran once over the data, and all else is as it is for numbers.
    assert found["build"]["histories"] == found["numbers"]["histories"]
    # 2e-8 measured: the whole model, on texts, in the session.
    assert found["best"][0] == pytest.approx(found["best"][1], abs=1e-5)
    assert found["kt"][0] == pytest.approx(found["kt"][1], abs=1e-5)
    assert found["seen"] == 6 and found["processes"] == 1 and found["shape"] == [60, 1]
    by_hp = zip(found["by_hp"]["plans"], found["tokens"], strict=True)
    assert all((plan == "fit") == (tokens == 6) for plan, tokens in by_hp)
    (told,) = found["by_hp"]["notes"]
    assert "begins with other layers for text" in told
    for name, why in {"ragged": "output_sequence_length", "looks": "callback Looks sees"}.items():
        assert set(found[name]["plans"]) == {"fit"} and why in found[name]["notes"][-1]


FREEZES = """
import json
import numpy as np

X = np.random.default_rng(0).normal(size=(48, 3)).astype("float32")
Y = (X @ np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])).astype("float32")
CALL = dict(epochs=2, batch_size=16, shuffle=False)


class Freezes(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.layers[0].trainable = False


def build(hp):
    one, two = [keras.layers.Dense(n, kernel_initializer="ones") for n in (3, 2)]
    made = keras.Sequential([keras.Input((3,)), one, two])
    made.compile(keras.optimizers.SGD(hp.Choice("lr", [0.01, 0.02])), "mse")
    return made


notes = []
tuner = paceline.Tuner(build, "min:loss", "s", sampler="grid", on_note=notes.append)
tuner.search(X, Y, n_trials=2, callbacks=[Freezes()], **CALL)
own, best = build(paceline.HyperParameters(tuner.best_hparams)), tuner.best_model()
loss = own.fit(X, Y, callbacks=[Freezes()], verbose=0, **CALL).history["loss"]
weights = [[w.tolist() for w in made.get_weights()] for made in (best, own)]
trial = max(map(tuner.trial, (0, 1)), key=lambda each: each.hparams == tuner.best_hparams)
found = {"notes": notes, "plan": trial.plan, "losses": [trial.history["loss"], loss]}
print("FOUND" + json.dumps({**found, "weights": weights}))
"""


@pytest.mark.parametrize("session", ["tensorflow first", "torch"])
def test_layers_that_are_frozen_as_training_begins_are_in_the_session(
    session: str, fresh_folder: Path
) -> None:
    found = run(session, FREEZES, fresh_folder)
    assert found["plan"] == "fit"
    assert not [note for note in found["notes"] if "cannot be saved" in note]
    best, own = found["weights"]
    assert best[0] == np.ones((3, 3)).tolist()  # the frozen kernel
    for got, want in (*zip(best, own, strict=True), found["losses"]):
        np.testing.assert_allclose(got, want, rtol=1e-5)


STOPS = """
import json, os, signal
import numpy as np
import tensorflow as tf

X, Y = np.random.default_rng(0).normal(size=(40, 6)).astype("float32"), np.arange(40) % 3
session, pids, notes, todo = os.getpid(), [], [], {"interrupt", "kill"}


class TfLayer(keras.layers.Layer):
    def call(self, x):
        return tf.math.cumprod(tf.nn.elu(x), axis=-1)


def build(hp):
    pids.append(os.getpid())
    tensorflow = hp.Choice("kind", ["keras", "tensorflow"]) == "tensorflow"
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(hp.Int("units", 4, 9))])
    model.add(TfLayer() if tensorflow else keras.layers.ReLU())
    model.add(keras.layers.Dense(3, activation="softmax"))
    sgd = keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-1))
    model.compile(sgd, "sparse_categorical_crossentropy")
    return model


class Stops(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and os.getpid() == session and todo:
            if "interrupt" in todo:
                todo.remove("interrupt")
                os.kill(os.getpid(), signal.SIGINT)
            else:
                todo.remove("kill")
                os.kill(next(pid for pid in reversed(pids) if pid != session), signal.SIGKILL)


def search(**more):
    tuner = paceline.Tuner(
        build, "val_loss", more.pop("study"), sampler="random", seed=1, on_note=notes.append, **more
    )
    call = dict(validation_data=(X, Y), epochs=4, batch_size=10, n_trials=6)
    tuner.search(X, Y, **call, callbacks=[Stops()])
    trials = tuner.results()
    return [trials[n].tolist() for n in ("state", "plan", "kind", "epochs")] + [
        [tuner.history(n) for n in range(6)]
    ]


interrupted = False
try:
    search(study="s")
except KeyboardInterrupt:
    interrupted = True
found = search(study="s")
again = search(study="other")
print("FOUND" + json.dumps({"interrupted": interrupted, "found": found, "again": again,
                            "todo": list(todo), "notes": notes}))
"""


def test_ctrl_c_and_a_kill_while_the_session_trains_a_trial(fresh_folder: Path) -> None:
    found = run("tensorflow first", STOPS, fresh_folder)
    assert found["interrupted"] and not found["todo"]
    assert any(
        "A new process continues from the last checkpoint" in note for note in found["notes"]
    )
    states, plans, kinds, epochs, histories = found["found"]
    assert states == ["complete"] * 6 and epochs == [4] * 6
    assert [plan == "fit" for plan in plans] == [kind == "tensorflow" for kind in kinds]
    assert found["again"][4] == histories and {*plans} > {"fit"}


#: A strategy of one replica, on the only device, around each door; then without it.
STRATEGY = """
import json
import contextlib
import numpy as np
import tensorflow as tf
from paceline.compat import keras_tuner as kt

rng = np.random.default_rng(0)
Y = rng.integers(0, 3, 60)
X = rng.normal(size=(60, 6)).astype("float32")
X[np.arange(60), Y] += 2.0
DATA = dict(validation_data=(X[40:], Y[40:]), epochs=2, batch_size=10)
found, notes = {}, []


def build(hp):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
    adam = keras.optimizers.Adam(hp.Float("lr", 1e-3, 1e-1) if hp else 0.01)
    model.compile(adam, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(i):
    keras.utils.set_random_seed(i)
    model = build(None)
    losses = model.fit(X[:40], Y[:40], verbose=0, **DATA).history["val_loss"]
    return losses, float(model.evaluate(X[40:], Y[40:], verbose=0)[0])


for name, strategy in {"one": tf.distribute.MirroredStrategy(), "none": None}.items():
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        tuner = paceline.Tuner(build, study=name, sampler="random", seed=1, on_note=notes.append)
        tuner.search(X, Y, **DATA, n_trials=2)
        loss = float(tuner.best_model().evaluate(X[40:], Y[40:], verbose=0)[0])
        maps = list(paceline.map(train, range(2), notes=notes.append))
    theirs = kt.RandomSearch(
        build, "val_loss", max_trials=2, seed=2, directory=name, distribution_strategy=strategy
    )
    theirs.search(X, Y, verbose=0, **DATA)
    assert theirs.distribution_strategy is strategy
    plans = tuner.results()["plan"].tolist()
    scores = [float(trial.score) for trial in theirs.oracle.trials.values()]
    found[name] = [[plans, [tuner.history(n) for n in range(2)], scores], [loss, maps]]
print("FOUND" + json.dumps({**found, "notes": notes}))
"""


def test_a_strategy_of_one_replica_lets_trials_pack(fresh_folder: Path) -> None:
    found = run("tensorflow.keras", STRATEGY, fresh_folder)
    assert found["notes"] == [] and "Keras' fit" not in found["stderr"]
    (here, mine), (there, others) = found["one"], found["none"]
    assert here == there and "fit" not in here[0]
    flat = [np.ravel([mine[0], *mine[1][i][0], mine[1][i][1]]) for i in range(2)]
    expected = [np.ravel([others[0], *others[1][i][0], others[1][i][1]]) for i in range(2)]
    np.testing.assert_allclose(flat, expected, rtol=1e-5)
