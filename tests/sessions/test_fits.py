"""Functions that call ``fit`` themselves, in sessions that are not on JAX: their fits pack there.

`make test-sessions` runs this where TensorFlow is installed, and where PyTorch is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sessions.test_sessions import run

TESTS = str(Path(__file__).parents[1])
NOT_ON_JAX = ["tensorflow.keras", "torch"]

#: Every function of ``tests/compat/interception/functions.py`` alone, in Keras' own ``fit`` on the
#: session's backend, and in a pack. Both begin from the same weights; without shuffling and dropout
#: they compute the same.
MANY_KINDS = f"""
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


tree = ast.fix_missing_locations(Plain().visit(ast.parse(open(zoo.__file__).read())))
exec(compile(tree, zoo.__file__, "exec"), vars(zoo))
# Beyond 1e-7, a loss is of logits on TensorFlow, and of clipped probabilities on JAX.
del zoo.FUNCTIONS["ended_by_a_loss_that_is_no_number"]
# On TensorFlow, a model without an Input has no weights before its first batch.
del zoo.FUNCTIONS["weights_written_by_a_callback"]
beside.RTOL, beside.ATOL = 1e-4, 1e-5
found = {{}}
for name, function in zoo.FUNCTIONS.items():
    calls = [FunctionCall(i, partial(function, i), 20 + i) for i in range(2)]
    notes = []
    with Engine(notes=notes.append) as engine:
        outcomes = {{each.number: each for each in engine.run(calls)}}
    found[name] = [notes, [fit.why_alone for each in outcomes.values() for fit in each.fits], ""]
    try:
        for outcome in outcomes.values():
            if outcome.error is not None:
                raise outcome.error
        beside.assert_same(outcomes[1].value, beside.alone(partial(function, 1), 21))
    except Exception as error:
        found[name][2] = f"{{type(error).__name__}}: {{error}}"
print("FOUND" + json.dumps(found))
"""


@pytest.mark.parametrize("session", NOT_ON_JAX)
def test_a_function_in_a_pack_is_that_function(session: str, fresh_folder: Path) -> None:
    found = run(session, MANY_KINDS, fresh_folder)
    found.pop("stderr")
    assert len(found) > 30
    differ = {name: error for name, (_, _, error) in found.items() if error}
    alone = {name: [notes, why] for name, (notes, why, _) in found.items() if any(why) or notes}
    assert not differ and not alone


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
    def on_epoch_end(self, epoch, logs=None):
        norms.setdefault(os.getpid(), []).append(float(np.linalg.norm(self.model.get_weights()[0])))
        if os.path.exists("kill") and epoch == 1:
            os.remove("kill")
            for path in glob.glob("/proc/[0-9]*/status"):
                if f"PPid:\\t{os.getpid()}\\n" in open(path).read():
                    os.kill(int(path.split("/")[2]), signal.SIGKILL)


norms, found, kept = {}, {}, {}


def train(build, i):
    model = build(i)
    weights = np.random.default_rng(i)
    for variable in model.trainable_variables:
        variable.assign(weights.normal(size=variable.shape).astype("float32") / 2)
    stop = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    slower = keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0)
    callbacks = [] if i == 0 else [stop, Seen()] if build is sequential else [slower, Seen()]
    drawn = np.random.random()
    first = model.fit(X[:40], Y[:40], callbacks=callbacks, **DATA)
    second = model.fit(X[:40], Y[:40], epochs=2, verbose=0)
    loss = model.evaluate(X[40:], Y[40:], verbose=0, return_dict=True)["loss"]
    return drawn, [first.history, second.history, second.params], loss, float(
        model.optimizer.iterations
    )


for build in (sequential, functional, subclassed):
    notes = []
    if build is functional and os.path.exists("killing"):
        os.rename("killing", "kill")
    calls = paceline.map(lambda i: train(build, i), range(3), seeds=5, notes=notes.append)
    found[build.__name__] = [list(calls), notes]
print("FOUND" + json.dumps({**found, "norms": list(norms.values()), "pids": len(norms)}))
"""


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the functions return in a session on JAX."""
    return run("fresh", SAME, tmp_path_factory.mktemp("on_jax"))


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("session", NOT_ON_JAX)
def test_fits_of_equal_weights_are_those_of_a_session_on_jax(
    session: str,
    killed: bool,
    on_jax: dict[str, Any],
    fresh_folder: Path,
) -> None:
    if killed:
        (fresh_folder / "killing").touch()
    found = run(session, SAME, fresh_folder)
    assert found["pids"] == 1  # callbacks run in the session
    for kind in ("sequential", "functional", "subclassed"):
        here, notes = found[kind]
        there, others = on_jax[kind]
        ended = [note for note in notes if "SIGKILL" in note]
        assert [note for note in notes if note not in ended] == others == []
        assert len(ended) == (killed and kind == "functional")
        for (drawn, fits, loss, steps), (its_drawn, its_fits, its_loss, its_steps) in zip(
            here, there, strict=True
        ):
            assert (drawn, fits, steps) == (its_drawn, its_fits, its_steps)
            # 4e-7 measured: the weights are the same, and each backend evaluates them.
            assert loss == pytest.approx(its_loss, abs=1e-5)
    np.testing.assert_allclose(found["norms"], on_jax["norms"], rtol=1e-6)
