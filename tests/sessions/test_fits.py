"""Functions that call ``fit`` themselves, in sessions that are not on JAX: their fits pack there.

`make test-sessions` runs this where TensorFlow is installed, and where PyTorch is.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sessions.test_sessions import run

TESTS = str(Path(__file__).parents[1])
NOT_ON_JAX = ["tensorflow.keras", "torch"]

#: Functions of tests, without shuffling and dropout: from the same weights, in a pack and in Keras'
#: own ``fit`` on the session's backend, they compute the same.
BEGIN = f"""
import ast, json, sys
from functools import partial

sys.path.insert(0, {TESTS!r})
import compat.interception.alone as beside
import compat.interception.functions as zoo
from paceline.compat.interception import Engine, FunctionCall


class Plain(ast.NodeTransformer):
    def visit_Call(self, node):
        self.generic_visit(node)
        name = getattr(node.func, "attr", "")
        if name == "fit" and all(k.arg != "shuffle" for k in node.keywords):
            node.keywords.append(ast.keyword("shuffle", ast.Constant(False)))
        if name == "Dropout":
            node.args = [ast.Constant(0.0)]
        return node


def plain(module):
    tree = ast.fix_missing_locations(Plain().visit(ast.parse(open(module.__file__).read())))
    exec(compile(tree, module.__file__, "exec"), vars(module))


def compared(function, alone, first=0):
    # What differs between calls in packs and alone, the notes, and why fits were alone.
    calls = [FunctionCall(i, partial(function, i), 20 + i) for i in range(2)]
    notes = []
    with Engine(notes=notes.append) as engine:
        outcomes = {{each.number: each for each in engine.run(calls)}}
    why = [fit.why_alone for each in outcomes.values() for fit in each.fits]
    try:
        for i in range(first, 2):
            if outcomes[i].error is not None:
                raise outcomes[i].error
            wanted = beside.alone(partial(alone, i), 20 + i)
            beside.assert_same(outcomes[i].value, wanted)
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}", notes, why
    return "", notes, why


plain(zoo)
found = {{}}
"""

#: Every function of ``tests/compat/interception/functions.py``.
MANY_KINDS = """
# Beyond 1e-7, a loss is of logits on TensorFlow, and of clipped probabilities on JAX.
del zoo.FUNCTIONS["ended_by_a_loss_that_is_no_number"]
# On TensorFlow, a model without an Input has no weights before its first batch.
del zoo.FUNCTIONS["weights_written_by_a_callback"]
for name, function in zoo.FUNCTIONS.items():
    found[name] = compared(function, function, first=1)
print("FOUND" + json.dumps(found))
"""
#: Some of ``sharing.py``, where a backend's variables matter: each function finds what they share
#: as if those before it had ended.
SHARING = """
import keras
import compat.interception.sharing as sharing

plain(sharing)
for kind, names in (
    (sharing.MAKERS, ("layer_made_outside", "model_made_outside", "checkpoint_of_one_name")),
    (sharing.HARMLESS, ("layer_that_training_leaves_as_it_is",)),
    (sharing.IN_ORDER, ("list_that_grows_after", "folds_of_which_a_list_keeps_the_mean")),
):
    for name in names:
        make = kind[name]
        keras.utils.set_random_seed(9)
        function = make()
        keras.utils.set_random_seed(9)
        found[name] = [kind is not sharing.MAKERS, *compared(function, make())]
print("FOUND" + json.dumps(found))
"""


@pytest.mark.parametrize("session", NOT_ON_JAX)
def test_a_function_in_a_pack_is_that_function(session: str, fresh_folder: Path) -> None:
    found = run(session, BEGIN + MANY_KINDS, fresh_folder)
    found.pop("stderr")
    assert len(found) == 30
    differ = {name: error for name, (error, _, _) in found.items() if error}
    alone = {name: [notes, why] for name, (_, notes, why) in found.items() if any(why) or notes}
    assert not differ and not alone


#: Data sets of the session: each yields the same examples in every epoch.
SETS = """
import keras
import tensorflow as tf

X, Y = zoo.X, zoo.Y
rows = tf.data.Dataset.from_tensor_slices


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, number):
        return X[24 * number : 24 * number + 24], Y[24 * number : 24 * number + 24]


def fits(make, **more):
    def function(i):
        model = zoo.network(i)
        return model.fit(make(), epochs=3, verbose=0, **more), model

    return function


def validated(i):
    model, ends = zoo.network(i), []
    for data, more in (
        (rows((X, Y)).shuffle(64, seed=3).batch(40), {}),
        (rows((X, Y)).batch(20).repeat(), {"validation_steps": 2}),
    ):
        more |= {"validation_data": data, "epochs": 2, "shuffle": False, "verbose": 0}
        ends.append(model.fit(X, Y, **more))
    return *ends, model


shared = rows((X, Y)).shuffle(64, seed=3).batch(16)
for name, function in {
    "in order": fits(lambda: rows((X, Y)).batch(24), validation_data=rows((X, Y)).batch(40)),
    "shuffled": fits(lambda: rows((X, Y)).shuffle(64, seed=3).batch(24).prefetch(1)),
    "repeated": fits(lambda: rows((X, Y)).batch(16).repeat(), steps_per_epoch=4),
    "PyDataset": fits(Batches, shuffle=False),
    "shared": fits(lambda: shared),
    "validated": validated,
}.items():
    found[name] = compared(function, function)
print("FOUND" + json.dumps(found))
"""


def test_fits_on_data_sets_of_the_session_train_in_packs(fresh_folder: Path) -> None:
    pytest.importorskip("tensorflow")
    found = run("tensorflow.keras", BEGIN + SETS, fresh_folder)
    found.pop("stderr")
    assert len(found) == 6
    (note,) = found["shared"][1]
    assert "run one at a time" in note and "they share one" in note
    found["shared"][1].clear()
    for name, (error, notes, why) in found.items():
        # With a seed, TensorFlow's fit has the orders of every second pass.
        assert not error or name in ("shuffled", "shared"), name
        assert not notes and not any(why), name


#: Callbacks that act between batches, and a function of TensorFlow that no slot reaches.
BY_BATCH = """
import keras
import tensorflow as tf
import compat.interception.test_batch_callbacks as batches

plain(batches)
del batches.FUNCTIONS["smaller_last"]  # it gives ``shuffle`` itself
for name, function in batches.FUNCTIONS.items():
    found[name] = compared(function, function)


class Norms(keras.callbacks.Callback):
    def __init__(self, norm):
        super().__init__()
        self.norm, self.norms = norm, []

    def on_train_batch_end(self, batch, logs=None):
        self.norms.append(float(self.norm()))


def compiled(i):
    model = zoo.network(i)
    norms = Norms(tf.function(lambda: tf.norm(model.trainable_variables[0])))
    model.fit(zoo.X, zoo.Y, callbacks=[norms], shuffle=False, verbose=0)
    return norms.norms


found["compiled"] = compared(compiled, compiled)
print("FOUND" + json.dumps(found))
"""


def test_callbacks_between_batches_act_in_the_session(fresh_folder: Path) -> None:
    """Their fits train in packs, and equal those of Keras' own ``fit`` on TensorFlow."""
    pytest.importorskip("tensorflow")
    found = run("tensorflow.keras", BEGIN + BY_BATCH, fresh_folder)
    found.pop("stderr")
    assert len(found) == 7
    error, (note,), why = found.pop("compiled")
    assert not error and all(why) and "Norms has its own on_train_batch_end()" in note
    for name, (error, notes, why) in found.items():
        assert not error and not notes and not any(why), name


@pytest.mark.parametrize("session", NOT_ON_JAX)
def test_what_functions_share_is_as_one_after_the_other(session: str, fresh_folder: Path) -> None:
    found = run(session, BEGIN + SHARING, fresh_folder)
    found.pop("stderr")
    assert len(found) == 6
    differ = {name: error for name, (_, error, _, _) in found.items() if error}
    alone = {name: why for name, (_, _, _, why) in found.items() if any(why)}
    assert not differ and not alone
    for name, (harmless, _, notes, _) in found.items():
        assert harmless != any("run one at a time" in note for note in notes), name


#: The same functions, with weights that no backend draws: equal to those of a session on JAX.
SAME = """
import glob, json, os, signal
import numpy as np

rng = np.random.default_rng(0)
Y = rng.integers(0, 3, 60)
X = rng.normal(size=(60, 6)).astype("float32")
X[np.arange(60), Y] += 2.0
DATA = dict(validation_data=(X[40:], Y[40:]), epochs=4, batch_size=16, verbose=0)


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.factor


class Subclassed(keras.Model):
    def __init__(self, units):
        super().__init__()
        self.parts = [keras.layers.Dense(units, activation="tanh"), Scale()]
        self.out = keras.layers.Dense(3)
        self.norm = keras.metrics.Mean(name="norm")

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return self.out(x)


def weighed(factor):
    def loss(y, logits):
        return factor * keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)

    return loss


class Margin(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="margin")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y, logits, sample_weight=None):
        self.total.assign(self.total + keras.ops.mean(keras.ops.max(logits, axis=-1)))

    def result(self):
        return self.total + 0.0


def sequential(i):
    hidden = keras.layers.Dense(8, activation="relu", kernel_regularizer="l2")
    norm = keras.layers.Normalization()
    norm.adapt(X)
    layers = [norm, hidden, keras.layers.BatchNormalization(), keras.layers.Dropout(0.1 + i / 10)]
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])
    rate = keras.optimizers.schedules.CosineDecay(0.01 * (i + 1), 12)
    model.compile(keras.optimizers.Adam(rate), weighed(i + 1.0), metrics=[Margin(), "accuracy"])
    return model


def functional(i):
    x = inputs = keras.Input((6,))
    for _ in range(3):
        x = keras.layers.Dense(6, activation="elu")(x) * 0.5 + x
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    model.compile(keras.optimizers.SGD(0.1 * (i + 1), momentum=0.9), weighed(1.0))
    return model


def subclassed(i):
    model = Subclassed(5)
    model(X[:2])
    model.compile(keras.optimizers.RMSprop(0.01 * (i + 1)), weighed(1.0))
    return model


class Seen(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.norms = [os.getpid()]

    def on_epoch_end(self, epoch, logs=None):
        self.norms.append(float(np.linalg.norm(self.model.get_weights()[0])))
        kill = os.environ.get("KILL", "")
        if os.path.exists(kill) and epoch == 1:
            os.remove(kill)
            for path in glob.glob("/proc/[0-9]*/status"):
                if f"PPid:\\t{os.getpid()}\\n" in open(path).read():
                    os.kill(int(path.split("/")[2]), signal.SIGKILL)


found = {}


def train(build, i):
    model = build(i)
    weights = np.random.default_rng(i)
    for variable in model.trainable_variables:
        variable.assign(weights.normal(size=variable.shape).astype("float32") / 2)
    stop = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    slower = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0)
    seen = Seen()
    callbacks = [] if i == 0 else [stop, seen] if build is sequential else [slower, seen]
    drawn = np.random.random()
    first = model.fit(X[:40], Y[:40], callbacks=callbacks, **DATA)
    second = model.fit(X[:40], Y[:40], epochs=2, verbose=0)
    loss = model.evaluate(X[40:], Y[40:], verbose=0, return_dict=True)["loss"]
    fits = [drawn, first.history, second.history, second.params, float(model.optimizer.iterations)]
    pid, *norms = getattr(seen, "norms", [os.getpid()])
    return fits, [loss, *norms], pid == os.getpid()


for build in (sequential, functional, subclassed):
    notes = []
    if build is functional and "KILL" in os.environ:
        open(os.environ["KILL"], "w").close()
    calls = paceline.map(lambda i: train(build, i), range(3), seeds=5, notes=notes.append)
    found[build.__name__] = [list(calls), notes]
print("FOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the functions return in a session on JAX."""
    if not any(map(find_spec, ("tensorflow", "torch"))):
        pytest.skip("neither TensorFlow nor PyTorch is installed")
    return run("fresh", SAME, tmp_path_factory.mktemp("on_jax"))


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("session", NOT_ON_JAX)
def test_fits_of_equal_weights_are_those_of_a_session_on_jax(
    session: str,
    killed: bool,
    on_jax: dict[str, Any],
    fresh_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if killed:
        monkeypatch.setenv("KILL", str(fresh_folder / "kill"))
    found = run(session, SAME, fresh_folder)
    for kind in ("sequential", "functional", "subclassed"):
        here, notes = found[kind]
        there, others = on_jax[kind]
        ended = [note for note in notes if "SIGKILL" in note]
        assert [note for note in notes if note not in ended] == others == []
        assert len(ended) == (killed and kind == "functional")
        for one, other in zip(here, there, strict=True):
            assert one[0] == other[0]
            # Each backend evaluates the same weights.
            np.testing.assert_allclose(one[1], other[1], rtol=1e-5)
            assert one[2]  # callbacks run in the session


#: Every door through which people hand over functions that fit.
DOORS = """
import json, os
import joblib, numpy as np
from keras.wrappers import SKLearnClassifier
from sklearn.model_selection import GridSearchCV
from paceline.compat import optuna, talos
from paceline.compat import keras_tuner as kt

rng = np.random.default_rng(0)
Y = rng.integers(0, 3, 120)
X = rng.normal(size=(120, 6)).astype("float32")
X[np.arange(120), Y] += 2.0
VALID = dict(validation_data=(X[90:], Y[90:]), verbose=0)
found = {}


def net(units=8, lr=1e-2, loss="sparse_categorical_crossentropy"):
    layers = [keras.layers.Dense(units, activation="relu"), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile(keras.optimizers.Adam(lr), loss, metrics=["accuracy"])
    return model


class Prune(keras.callbacks.Callback):
    def __init__(self, trial):
        super().__init__()
        self.trial = trial

    def on_epoch_end(self, epoch, logs=None):
        self.trial.report(logs["val_loss"], epoch)
        if self.trial.should_prune() or (self.trial.number == 3 and epoch == 1):
            raise optuna.TrialPruned()


def objective(trial):
    model = net(trial.suggest_int("units", 4, 8, step=4), trial.suggest_float("lr", 1e-3, 1e-1))
    model.fit(X[:90], Y[:90], epochs=3, callbacks=[Prune(trial)], **VALID)
    return model.evaluate(X[90:], Y[90:], verbose=0)[0]


study = optuna.create_study(pruner=optuna.pruners.NopPruner())
study.optimize(objective, n_trials=5)
found["optuna"] = [[trial.state.name, len(trial.intermediate_values)] for trial in study.trials]


def model(x, y, x_val, y_val, params):
    one = net(params["units"], params["lr"])
    return one.fit(x, y, validation_data=(x_val, y_val), epochs=2, verbose=0), one


scan = talos.Scan(
    X, Y, {"units": [4, 8], "lr": [0.01, 0.1]}, model, "talos", disable_progress_bar=True
)
found["talos"] = [len(scan.data), bool(np.isfinite(scan.data["val_loss"]).all())]


class Hyper(kt.HyperModel):
    def build(self, hp):
        return net(hp.Int("units", 4, 8, step=4), hp.Float("lr", 1e-3, 1e-1))

    def fit(self, hp, model, *args, **kwargs):
        return model.fit(*args, batch_size=hp.Choice("batch_size", [16, 32]), **kwargs)


class Own(kt.RandomSearch):
    def run_trial(self, trial, x, y):
        model = net(trial.hyperparameters.Int("units", 4, 12, step=4))
        pids.append(os.getpid())
        return model.fit(x, y, epochs=2, **VALID).history["val_loss"]


pids = []
for kind, data in ((kt.RandomSearch, dict(epochs=2, **VALID)), (Own, {})):
    name = kind.__name__
    hyper = Hyper() if kind is kt.RandomSearch else None
    tuner = kind(hyper, "val_loss", max_trials=3, seed=1, directory=name)
    tuner.search(X[:90], Y[:90], **data)
    trials = tuner.oracle.trials.values()
    found[name] = [sorted(trial.status for trial in trials), len({t.score for t in trials})]
    if hyper is not None:
        best = tuner.get_best_models(1)[0].evaluate(X[90:], Y[90:], verbose=0)[0]
        found["best"] = [best, min(trial.score for trial in trials)]
found["pids"] = len({*pids, os.getpid()})


def classifier(X, y, lr):
    return net(lr=lr, loss="categorical_crossentropy")


estimator = SKLearnClassifier(classifier, {"lr": 0.1}, {"epochs": 3, "verbose": 0})
grid = {"model_kwargs": [{"lr": 0.1}, {"lr": 1e-5}]}
with joblib.parallel_config(backend="paceline"):
    search = GridSearchCV(estimator, grid, cv=3, refit=False).fit(X, Y)
scores = search.cv_results_["mean_test_score"]
found["joblib"] = [search.best_params_, bool(np.isfinite(scores).all())]
with paceline.PackPoolExecutor(seed=1) as pool:
    futures = [pool.submit(lambda lr: net(lr=lr).fit(X, Y, verbose=0), lr) for lr in (0.1, 0.01)]
found["pool"] = [len(each.result().epoch) for each in futures]
print("FOUND" + json.dumps(found, default=float))
"""


@pytest.mark.parametrize("session", NOT_ON_JAX)
def test_fits_of_every_door_pack(session: str, fresh_folder: Path) -> None:
    for package in ("sklearn", "joblib"):
        pytest.importorskip(package)
    found = run(session, DOORS, fresh_folder)
    assert found["optuna"] == [["COMPLETE", 3]] * 3 + [["PRUNED", 2]] + [["COMPLETE", 3]]
    assert "5 trials, 5 fits in packs" in found["stderr"]
    assert found["talos"] == [4, True]
    for name in ("RandomSearch", "Own"):
        assert found[name] == [["COMPLETED"] * 3, 3]
    assert found["best"][0] == pytest.approx(found["best"][1], abs=1e-5)
    assert found["pids"] == 1  # run_trial runs in the session
    assert found["joblib"] == [{"model_kwargs": {"lr": 0.1}}, True]
    assert "6 jobs, 6 fits in packs (1 program)" in found["stderr"]
    assert found["pool"] == [1, 1]
    assert "2 functions, 2 fits in packs (1 program)" in found["stderr"]
    assert "Keras' own fit" not in found["stderr"] and "one after another" not in found["stderr"]


#: What JAX cannot run, or would compute otherwise; the last kind packs.
IN_SESSION = """
import json, threading
import numpy as np
import tensorflow as tf

X, Y = np.random.default_rng(0).normal(size=(40, 6)).astype("float32"), np.arange(40) % 3
found = {}


def tf_loss(y, p):
    own = tf.gather(p, tf.cast(tf.reshape(y, [-1]), tf.int32), axis=1, batch_dims=1)
    return -tf.math.log(tf.math.cumprod(own, axis=0)[:1])


class TfLayer(keras.layers.Layer):
    def call(self, x):
        return tf.math.cumprod(tf.nn.elu(x), axis=-1)


class Holds(keras.layers.Layer):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def call(self, x):
        return x


class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


class Anneal(keras.callbacks.Callback):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def on_epoch_end(self, epoch, logs=None):
        self.weight.assign(0.0)


def model(*layers, loss="sparse_categorical_crossentropy", kind=keras.Model):
    inputs = x = keras.Input((6,))
    for layer in (*layers, keras.layers.Dense(3, activation="softmax")):
        x = layer(x)
    made = kind(inputs, x)
    made.compile(keras.optimizers.SGD(0.1), loss)
    return made


def annealed():
    weight = keras.Variable(1.0)
    crossentropy = keras.losses.sparse_categorical_crossentropy
    made = model(loss=lambda y, p: weight * crossentropy(y, p))
    return made.fit(X, Y, epochs=2, verbose=0, callbacks=[Anneal(weight)]).history["loss"]


def fitted(*layers, data=(X, Y), **more):
    return model(*layers, **more).fit(*data, epochs=2, verbose=0).history["loss"]


def augmented():
    # With TensorFlow's seed set, tf.random.normal would be the same in each epoch.
    random = tf.random.Generator.from_seed(3)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    return data.map(lambda x, y: (x + random.normal(tf.shape(x)), y))


KINDS = {
    "loss": lambda: fitted(loss=tf_loss),
    "layer": lambda: fitted(TfLayer()),
    "step": lambda: fitted(kind=Own),
    "lock": lambda: fitted(Holds(threading.Lock())),
    "variable": lambda: fitted(Holds(tf.Variable(1.0))),
    "annealed": annealed,
    "wide": lambda: fitted(keras.layers.Dense(4, dtype="float64")),
    "dataset": lambda: fitted(data=[tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)]),
    "augmented": lambda: fitted(data=[augmented()]),
    "tensors": lambda: fitted(data=[tf.convert_to_tensor(X), tf.convert_to_tensor(Y)]),
}
for name, function in KINDS.items():
    notes = []
    losses = list(paceline.map(lambda i: function(), range(2), seeds=1, notes=notes.append))
    found[name] = [notes, losses]
notes = []
mixed = paceline.map(lambda i: fitted(*([TfLayer()] * (i % 2))), range(4), notes=notes.append)
found["mixed"] = [notes, list(mixed)]
print("FOUND" + json.dumps(found))
"""


def test_what_jax_cannot_run_trains_in_the_session_with_one_note(fresh_folder: Path) -> None:
    pytest.importorskip("tensorflow")
    found = run("tensorflow.keras", IN_SESSION, fresh_folder)
    found.pop("stderr")
    for name, said in {
        "loss": "keras.ops.cumprod",
        "layer": "keras.ops.cumprod",
        "step": "train_step(self, data), which is written for tensorflow",
        "lock": "cannot be sent to another process",
        "variable": "tensorflow.ResourceVariable",
        "annealed": "which isn't part of the model",
        "wide": "float64",
        "dataset": "",
        "augmented": "the examples of x differ from epoch to epoch",
        "mixed": "keras.ops.cumprod",
        "tensors": "",
    }.items():
        notes, losses = found[name]
        assert [len(each) for each in losses] == [2] * (4 if name == "mixed" else 2), name
        assert len(notes) == (said != ""), (name, notes)
        assert all(said in note and "train in Keras' own fit" in note for note in notes), notes
    assert found["annealed"][1][0][1] == 0.0  # what the callback assigns has its effect
