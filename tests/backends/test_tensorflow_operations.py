"""TensorFlow's functions under JAX: values and gradients are TensorFlow's, at kinks too."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import export
from jax.extend.core import jaxpr_as_fun

import paceline
from paceline.program.foreign.operations import OPERATIONS, ForeignOperationError
from paceline.program.foreign.tensorflow import accept_tensorflow
from paceline.program.foreign.wide_results import without_marks
from paceline.tuner.search.session import foreign_calls
from streams import alone, same, search

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="packs need JAX")
tf: Any = pytest.importorskip("tensorflow", reason="these are TensorFlow's functions")
K: Any = tf.keras.backend

#: Ordinary numbers, and those at which functions have kinks, twice each.
X = np.array([[0.3, -1.2, 0.0, 1.0], [2.5, 0.0, 6.0, -1.0], [1.0, 1.0, -0.5, 0.5]], "float32")
Y = np.array([[0.7, -1.2, 0.0, -1.0], [0.5, 2.0, 6.0, 1.5], [1.0, 0.0, -0.5, 3.0]], "float32")
IMAGE = np.random.default_rng(0).normal(size=(2, 6, 6, 2)).astype("float32")
KERNEL = np.random.default_rng(1).normal(size=(3, 3, 2, 2)).astype("float32")

#: What is called in a test -> functions of one array.
OF_ONE: dict[str, Callable[[Any], Any]] = {
    name: getattr(tf.math, name)
    for name in (
        "abs atan ceil cos cosh digamma erf erfc exp expm1 floor is_finite is_inf is_nan lgamma "
        "log log1p negative reciprocal round rsqrt sigmoid sign sin sinh softplus softsign sqrt "
        "square tan tanh reduce_max reduce_mean reduce_min reduce_prod "
        "reduce_sum reduce_std reduce_logsumexp reduce_variance count_nonzero"
    ).split()
}
OF_ONE |= {
    name: getattr(tf.nn, name)
    for name in "elu gelu leaky_relu relu relu6 selu silu softmax log_softmax l2_loss".split()
}
OF_ONE |= {
    "all": lambda x: tf.reduce_all(x > 0, axis=0),
    "any": lambda x: tf.reduce_any(x > 0, axis=0, keepdims=True),
    "argmax": lambda x: tf.argmax(x, axis=-1),
    "argmin": lambda x: tf.argmin(x, axis=0, output_type=tf.int32),
    "band": lambda x: tf.linalg.band_part(x, -1, 0),
    "bias": lambda x: tf.nn.bias_add(x, tf.constant([1.0, 2.0, 3.0, 4.0])),
    "broadcast": lambda x: tf.broadcast_to(x, [2, 3, 4]),
    "cast": lambda x: tf.cast(tf.cast(x > 0.4, tf.int32), "float32"),
    "clip": lambda x: tf.clip_by_value(x, -1.0, 1.0),
    "clip_by_norm": lambda x: tf.clip_by_norm(x, 1.0),
    "constant": lambda x: tf.constant(2.0) * x + x * tf.constant([1.0, 2.0, 3.0, 4.0]),
    "cumsum": lambda x: tf.cumsum(x, axis=1, exclusive=True, reverse=True),
    "diagonal": tf.linalg.diag_part,
    "einsum": lambda x: tf.einsum("bi,bj->bij", x, x),
    "expand": lambda x: tf.expand_dims(x, 1),
    "fill": lambda x: tf.fill(tf.shape(x), 2.0) * x,
    "function": tf.function(lambda x: tf.square(x) + tf.constant(1.0)),
    "gather": lambda x: tf.gather(x, [2, 0], axis=1),
    "gather of each": lambda x: tf.gather(x, tf.argmax(x, -1), axis=1, batch_dims=1),
    "gather_nd": lambda x: tf.gather_nd(x, [[0, 1], [2, 3]]),
    "gather_nd of a constant": lambda x: tf.gather_nd(
        tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.cast(x > 0, tf.int32)[:, :2]
    ),
    "gather of sizes": lambda x: tf.reshape(x, tf.gather(tf.shape(x), [1, 0])),
    "in_top_k": lambda x: tf.math.in_top_k(tf.constant([0, 2, 7]), x, 2),
    "l2_normalize": lambda x: tf.math.l2_normalize(x, -1),
    "moments": lambda x: tf.nn.moments(x, [0]),
    "norm": lambda x: tf.norm(x, axis=1),
    "one_hot": lambda x: tf.one_hot(tf.cast(x, tf.int32), 3, on_value=2.0, off_value=-1.0),
    "pad": lambda x: tf.pad(x, [[1, 0], [0, 2]], constant_values=1.0),
    "mirrored": lambda x: tf.pad(x, [[1, 1], [0, 2]], "REFLECT"),
    "plain pad": lambda x: tf.pad(x, [[1, 0], [0, 2]]),
    "power": lambda x: tf.pow(x, 2.0),
    "power of one": lambda x: tf.pow(2.0, x),
    "root": lambda x: tf.pow(x, 0.5),
    "range": lambda x: tf.cast(tf.range(tf.shape(x)[0]), tf.float32)[:, None] * x,
    "repeat": lambda x: tf.repeat(x, 2, axis=0),
    "reshape": lambda x: tf.reshape(x, [tf.shape(x)[0], 2, -1]),
    "reverse": lambda x: tf.reverse(x, [1]),
    "roll": lambda x: tf.roll(x, 1, 0),
    "size": lambda x: x / tf.cast(tf.size(x), tf.float32),
    "slice": lambda x: tf.slice(x, [0, 1], [2, -1]),
    "softmax over rows": lambda x: tf.nn.softmax(x, axis=0),
    "sort": lambda x: tf.sort(x, direction="DESCENDING"),
    "split": lambda x: tf.split(x, 2, axis=1),
    "split by sizes": lambda x: tf.split(x, [1, 3], axis=1),
    "squeeze": lambda x: tf.squeeze(tf.reshape(x, [1, 3, 4, 1]), 0),
    "stack": lambda x: tf.stack([x, 2 * x], axis=1),
    "stop": lambda x: x * tf.stop_gradient(x),
    "tensordot": lambda x: tf.tensordot(x, x, [[1], [1]]),
    "tile": lambda x: tf.tile(x, [2, 1]),
    "top_k": lambda x: tf.math.top_k(x, 2),
    "transpose": tf.transpose,
    "trace": lambda x: tf.linalg.trace(tf.matmul(x, x, transpose_a=True)),
    "unstack": lambda x: tf.unstack(x, axis=1),
    "zeros": lambda x: tf.zeros_like(x) + tf.ones_like(x) * x,
    "of K": lambda x: K.mean(K.square(K.clip(x, 0, 1)), axis=-1) + K.sum(K.abs(K.flatten(x))),
    "f1 of K": lambda x: K.sum(K.round(x)) / (K.sum(K.cast(K.greater(x, 0.5), K.floatx())) + 1e-7),
    "shape of K": lambda x: K.int_shape(x)[1] * x + K.cast(K.shape(x)[0], "float32"),
    "more of K": lambda x: K.sqrt(K.exp(K.maximum(x, 0.0))) + K.log(K.abs(x) + K.epsilon()),
    "std of K": lambda x: K.std(x, axis=0) + K.var(x) + K.max(x) - K.min(x) + K.prod(x),
    "dot of K": lambda x: K.dot(x, K.transpose(x)),
    "classes of K": lambda x: K.cast(K.equal(K.argmax(x), K.argmax(-x)), "float32"),
    "joined by K": lambda x: K.concatenate([x, K.l2_normalize(x, axis=-1)], axis=-1),
}
OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(tf.math, name)
    for name in (
        "add subtract multiply divide divide_no_nan floordiv floormod maximum minimum "
        "squared_difference xlogy pow equal not_equal greater greater_equal less less_equal"
    ).split()
}
OF_TWO |= {
    "add_n": lambda x, y: tf.add_n([x, y, x]),
    "batches of matrices": lambda x, y: tf.matmul(x[None], y[None], transpose_b=True),
    "broadcast": lambda x, y: tf.maximum(x, y[:, :1]),
    "concat": lambda x, y: tf.concat([x, y], axis=-1),
    "cosine": lambda x, y: K.sum(K.l2_normalize(x, -1) * K.l2_normalize(y, -1), axis=-1),
    "logical": lambda x, y: tf.logical_or(tf.logical_and(x > 0, y > 0), tf.logical_not(x > y)),
    "matmul": lambda x, y: tf.matmul(x, y, transpose_b=True),
    "select": lambda x, y: tf.where(x > y, x, y),
    "select by rows": lambda x, y: tf.compat.v1.where(tf.reduce_sum(x, 1) > 2, x, y),
    "sigmoid entropy": lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(y, x),
    "softmax entropy": lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x),
    "sparse entropy": lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(
        tf.argmax(y, -1), x
    ),
    "weighted entropy": lambda x, y: tf.nn.weighted_cross_entropy_with_logits(y, x, 2.0),
    "entropy of K": lambda x, y: K.binary_crossentropy(K.sigmoid(x), K.sigmoid(y)),
}
OF_IMAGES: dict[str, Callable[[Any, Any], Any]] = {
    "average": lambda x, k: tf.nn.avg_pool2d(x, 2, 2, "SAME"),
    "convolution": lambda x, k: tf.nn.conv2d(x, k, 2, "SAME"),
    "depthwise": lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "VALID"),
    "dilated": lambda x, k: tf.nn.conv2d(x, k, 1, "VALID", dilations=2),
    "maximum": lambda x, k: tf.nn.max_pool2d(x, 3, 2, "VALID"),
    "ssim": lambda x, k: tf.image.ssim(tf.sigmoid(x), tf.sigmoid(-x), 1.0, filter_size=3),
}
CASES = [
    *((f"{name}(x)", f, (X,)) for name, f in OF_ONE.items()),
    *((f"{name}(x, y)", f, (X, Y)) for name, f in OF_TWO.items()),
    *((f"{name} of images", f, (IMAGE, KERNEL)) for name, f in OF_IMAGES.items()),
]


@pytest.fixture(autouse=True)
def accepted():
    accept_tensorflow()


def outputs_and_gradients(function: Any, arrays: Any) -> tuple[list[Any], list[Any]]:
    """TensorFlow's results, and the gradients of their weighted sum."""
    given = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(given)
        results = tf.nest.flatten(function(*given))
        floats = [r for r in results if r.dtype.is_floating]
        total = sum((tf.reduce_sum(r * weights(r.shape)) for r in floats), tf.constant(0.0))
    gradients = tape.gradient(total, given, unconnected_gradients="zero")
    return [r.numpy() for r in results], [tf.convert_to_tensor(g).numpy() for g in gradients]


def weights(shape: Any) -> np.ndarray:
    return np.cos(np.arange(np.prod(shape, dtype=int))).reshape(shape).astype("float32")


@pytest.mark.parametrize(("function", "arrays"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_values_and_gradients_are_tensorflow_s(function, arrays):
    wanted, gradients = outputs_and_gradients(function, arrays)

    def total(*given: Any) -> Any:
        results = jax.tree.leaves(function(*given))
        floats = [r for r in results if jnp.issubdtype(r.dtype, jnp.floating)]
        return sum((jnp.sum(r * weights(r.shape)) for r in floats), jnp.zeros(())), results

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take = jax.jit(jax.grad(total, range(len(arrays)), has_aux=True))
        found, results = take(*arrays)
    for a, b in zip(results, wanted, strict=True):
        assert a.dtype == (b.dtype if b.dtype != np.int64 else np.int32)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    for a, b in zip(found, gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_every_operation_of_the_table_is_tested():
    called: set[str] = set()
    for _, function, arrays in CASES:
        with tf.Graph().as_default() as graph:
            function(*(tf.compat.v1.placeholder(tf.float32, [None, *a.shape[1:]]) for a in arrays))
        called |= {operation.type for operation in graph.get_operations()}
    assert OPERATIONS.keys() <= called


NUMBERS = {
    "exclusive sum of large": (
        lambda x: tf.cumsum(x, exclusive=True),
        np.array([1, 1e8, 2], "float32"),
    ),
    "exclusive sum of infinity": (
        lambda x: tf.cumsum(x, -1, exclusive=True),
        np.array([[-1, -np.inf, 2]], "float32"),
    ),
    "floordiv": (
        lambda x: tf.math.floordiv(x, 0.1),
        np.array([1.0, 0.6, 0.7, -2.0], "float32"),
    ),
    "floordiv of integers": (lambda x: tf.math.floordiv(x, 3), np.array([-7, 7, 0], "int32")),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_values_at_special_numbers_are_tensorflow_s(name):
    function, x = NUMBERS[name]
    np.testing.assert_array_equal(jax.jit(function)(x), function(tf.constant(x)))


FAR = np.array([60, 61, 62], "float32")
#: Divisions by numbers whose square is zero.
DIVISIONS = {
    "shares": (lambda d: tf.divide(tf.exp(-d), tf.reduce_sum(tf.exp(-d))), FAR),
    "shares without NaN": (
        lambda d: tf.math.divide_no_nan(tf.exp(-d), tf.reduce_sum(tf.exp(-d))),
        FAR,
    ),
    "shares in 16 bits": (
        lambda x: tf.divide(x, tf.reduce_sum(x)),
        np.array([1e-3, 5e-4, 2e-4], "float16"),
    ),
    "by a constant": (lambda x: tf.divide(x, tf.constant([0.0, 1e-30, 2.0])), FAR),
    "of a constant": (lambda x: tf.divide(tf.constant([[1e-30], [0.0]]), x * 1e-30), FAR),
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_gradients_of_divisions_by_small_numbers_are_tensorflow_s(name):
    function, x = DIVISIONS[name]

    def total(x: Any) -> Any:
        return tf.reduce_sum(function(x) * tf.constant([1.0, 2.0, 3.0], x.dtype.name))

    given = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(given)
        result = total(given)
    wanted = tape.gradient(result, given)
    found = jax.jit(jax.grad(total))(x)
    # Of 16 bits, sums have three digits.
    np.testing.assert_allclose(
        np.asarray(found, "float32"), tf.cast(wanted, tf.float32), rtol=1e-2, atol=1e-3
    )


CLASSES = np.array([5, 40_000, 123_456], "int32")
#: Whose 64-bit integers go from one call to the next, and cannot exceed 32 bits.
OF_CLASSES: dict[str, Callable[[Any], Any]] = {
    "compared": lambda c: tf.equal(tf.cast(c, tf.int64), tf.constant(5, tf.int64)),
    "compared by Python": lambda c: tf.cast(tf.cast(c, tf.int64) > 7, tf.float32),
    "counted": lambda c: K.sum(K.cast(K.equal(c, 5), "int64")) / 3,
    "divided": lambda c: tf.cast(c, tf.int64) / 7,
    "back to 32 bits": lambda c: tf.cast(tf.cast(c, tf.int64), tf.int32) * 73_856_093,
    "largest": lambda c: tf.reduce_max(tf.reshape(tf.cast(c, tf.int64), [3, 1])[1:]),
    "remainders": lambda c: tf.math.floormod(tf.cast(c, tf.int64), 1000),
}
HASH = 73_856_093
#: Those that may exceed 32 bits.
TOO_WIDE: dict[str, Callable[[Any], Any]] = {
    "operator": lambda c: tf.math.floormod(tf.cast(c, tf.int64) * HASH, 1000),
    "index": lambda c: tf.argmax(tf.one_hot(c, 9), -1) * HASH,
    "multiply": lambda c: tf.multiply(tf.cast(c, tf.int64), HASH),
    "square": lambda c: tf.square(tf.cast(c, tf.int64)),
    "sum": lambda c: tf.reduce_sum(tf.cast(c * 10_000, tf.int64)),
    "sum of JAX": lambda c: jnp.sum(tf.cast(c, tf.int64)),
    "in a loop": lambda c: jax.lax.scan(
        lambda total, each: (total, tf.cast(each, tf.int64)), jnp.zeros(()), c
    ),
    "into a loop": lambda c: jax.lax.map(lambda each: each * HASH, tf.cast(c, tf.int64)),
}


@pytest.mark.parametrize("name", OF_CLASSES)
def test_64_bit_integers_go_from_call_to_call(name):
    closed = jax.make_jaxpr(OF_CLASSES[name])(CLASSES)
    assert "name[" in str(closed)
    closed = without_marks(closed)
    assert "name[" not in str(closed)
    wanted = OF_CLASSES[name](tf.constant(CLASSES)).numpy()
    found = jax.jit(jaxpr_as_fun(closed))(CLASSES)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)  # a quotient has 64 bits in TensorFlow


@pytest.mark.parametrize("name", TOO_WIDE)
def test_64_bit_integers_that_may_exceed_32_are_refused(name):
    with pytest.raises(ForeignOperationError, match="64-bit integers.* cast .*to tf.int32"):
        without_marks(jax.make_jaxpr(TOO_WIDE[name])(CLASSES))


def test_a_search_on_jax_does_not_wrap_64_bit_integers():
    def build(hp: Any) -> Any:
        def buckets(y: Any, p: Any) -> Any:
            hashed = tf.cast(tf.argmax(p, -1), tf.int64) * HASH
            return tf.reduce_mean(tf.cast(hashed, tf.float32))

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse", metrics=[buckets])
        return model

    tuner = paceline.Tuner(build, "loss", "buckets")
    with pytest.raises(paceline.BuildError, match="cast them to tf.int32"):
        tuner.search(X, X[:, :3], epochs=1, n_trials=1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_stay_short(dtype):
    x, y = (tf.cast(array, dtype) for array in (X, Y))
    functions = [OF_ONE[name] for name in ("l2_normalize", "softmax", "reduce_mean", "clip")]
    for function in (*(lambda a, b, f=f: f(a * b) for f in functions), OF_TWO["maximum"]):
        found = jax.jit(function)(jnp.asarray(X, dtype), jnp.asarray(Y, dtype))
        wanted = function(x, y).numpy()
        assert found.dtype == dtype
        np.testing.assert_allclose(
            np.asarray(found, "float32"), wanted.astype("float32"), rtol=0.02, atol=0.02
        )


@tf.custom_gradient
def half_gradient(x):
    return x, lambda upstream: upstream / 2


VARIABLE = tf.Variable(2.0)
COMPILED = tf.function(lambda: tf.random.normal([4])).get_concrete_function()
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "random": (lambda x: x + tf.random.normal([4]), "RandomStandardNormal runs once"),
    "random in a function": (
        lambda x: x + tf.function(lambda: tf.random.normal([4]))(),
        "RandomStandardNormal runs once",
    ),
    "variable in a function": (
        lambda x: tf.reduce_sum(x) * tf.function(lambda: VARIABLE * 2.0)(),
        "ReadVariableOp runs once",
    ),
    "compiled function": (lambda x: x + COMPILED(), "PartitionedCall runs once"),
    "random in size": (lambda x: tf.random.uniform(tf.shape(x)), "RandomUniform runs once"),
    "dropout": (lambda x: tf.nn.dropout(x, 0.5), "RandomUniform runs once"),
    "variable": (lambda x: x * VARIABLE, "ReadVariableOp runs once"),
    "variable given": (lambda x: tf.multiply(VARIABLE, x), "ReadVariableOp|tf.Variable"),
    "assigned": (lambda x: (VARIABLE.assign_add(1.0), x)[1], "runs once"),
    "print": (lambda x: (tf.print("loss"), x)[1], "PrintV2 runs once"),
    "print of it": (lambda x: (tf.print(x), x)[1], "PrintV2 runs once"),
    "python": (lambda x: tf.py_function(lambda a: a, [x], tf.float32), "EagerPyFunc runs once"),
    "NumPy": (
        lambda x: x * tf.numpy_function(np.random.beta, [0.4, 0.4], tf.float32),
        "PyFunc runs once",
    ),
    "NumPy of it": (lambda x: tf.numpy_function(np.sin, [x], tf.float32), "PyFunc runs once"),
    "Python of constants": (
        lambda x: x * tf.py_function(lambda: 1.0, [], tf.float32),
        "EagerPyFunc runs once",
    ),
    "assertion": (lambda x: tf.debugging.assert_all_finite(x, "no"), "CheckNumerics"),
    "strings": (tf.strings.as_string, "AsString has no counterpart"),
    "float64": (lambda x: tf.cast(x, tf.float64), "of the type float64"),
    "int64": (lambda x: tf.cast(x, tf.int64), "64-bit integers of floats; cast to tf.int32"),
    "integers by index": (
        lambda x: tf.gather(tf.constant([1, 2, 3]), tf.argmax(x, -1)),
        "takes integers or truth values by indices",
    ),
    "truth by index": (
        lambda x: tf.gather_nd(x > 0, tf.argmax(x, -1)[:, None]),
        "takes integers or truth values by indices",
    ),
    "sizes of values": (lambda x: tf.boolean_mask(x, x > 0), "Where has no counterpart"),
    "rows of values": (lambda x: tf.zeros([tf.cast(x[0, 0], tf.int32)]), "depends on the data"),
    "branch": (lambda x: tf.cond(x[0, 0] > 0, lambda: x, lambda: -x), ""),
    "map": (lambda x: tf.map_fn(lambda row: row * 2, x), ""),
    "own gradient": (half_gradient, ""),
    "tape": (lambda x: tf.GradientTape().__enter__().watch(x), ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_be_the_same_is_refused(name):
    function, why = REFUSED[name]
    kind = ForeignOperationError if why else Exception
    with pytest.raises(kind, match=why or "."):
        jax.jit(function)(X)


def test_an_error_names_the_function_alone_that_is_refused():
    layer = keras.layers.Lambda(lambda x: tf.math.cumprod(tf.nn.elu(x)))
    with pytest.raises(ForeignOperationError, match="Cumprod has no counterpart") as raised:
        jax.jit(layer.call)(X)
    text = foreign_calls(raised.value)
    assert text is not None and "calls tf.math.cumprod, which" in text


def test_a_size_follows_from_an_open_one():
    reshape = keras.layers.Lambda(lambda x: tf.reshape(x, (tf.shape(x)[0], -1, 4, 4)))
    assert reshape(keras.Input((10, 16))).shape == (None, 10, 4, 4)


def test_an_export_with_open_sizes_is_refused():
    layer = keras.layers.Lambda(tf.nn.tanh)
    model = keras.Sequential([keras.Input((4,)), layer])  # Keras infers its shapes
    sizes = export.symbolic_shape("b, 4")
    with pytest.raises(ForeignOperationError, match="open sizes needs keras.ops"):
        export.export(jax.jit(model.call))(jax.ShapeDtypeStruct(sizes, "float32"))


def test_outside_of_a_trace_tensorflow_is_as_it_was():
    assert isinstance(tf.square(jnp.ones(3)), tf.Tensor)
    assert isinstance(K.square(np.ones(3)), tf.Tensor)
    assert (tf.random.normal([3]) + VARIABLE).shape == (3,)
    VARIABLE.assign(2.0)
    with pytest.raises(ValueError, match="unsupported type"):
        tf.square(object())


def test_each_trial_has_its_own_constants():
    labels = np.eye(3, dtype="float32")[np.arange(60) % 3]
    x = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")

    def build(hp: Any) -> Any:
        weight = tf.constant(hp.Float("weight", 0.1, 3.0))

        def loss(y: Any, p: Any) -> Any:
            return tf.reduce_mean(tf.square(y - p) * weight, axis=-1)

        hidden = keras.layers.Dense(4, activation=tf.nn.relu)
        model = keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.05), loss)
        return model

    call = {"epochs": 2, "batch_size": 20, "shuffle": False}
    tuner = search(x, build=build, y=labels, **call)
    assert len({tuner.history(n)["loss"][0] for n in range(4)}) == 4
    same(tuner, 3, alone(tuner.trial(3), build, x, y=labels, **call))
    assert tuner.best_model().predict(x, verbose=0).shape == (60, 3)


SCRIPT = """
import keras
import numpy as np
import paceline

x = np.ones((8, 4), "float32")

def build(hp):
    import tensorflow as tf
    hidden = keras.layers.Dense(8, activation=tf.nn.tanh)
    model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(hp.Float("lr", 1e-3, 1e-2)), "mse")
    return model

tuner = paceline.Tuner(build, "loss", "late", on_note=lambda note: None)
tuner.search(x, x[:, :1], epochs=1, n_trials=1)
print("PLANS", tuner.results()["plan"].tolist())
"""


def test_the_first_build_may_import_tensorflow(fresh_folder):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert "PLANS" in ended.stdout and "fit" not in ended.stdout, ended.stderr


def test_an_error_names_the_line_and_what_to_write():
    def build(hp: Any) -> Any:
        noise = keras.layers.Lambda(lambda x: x + tf.random.normal([4]))
        model = keras.Sequential([keras.Input((4,)), noise, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    tuner = paceline.Tuner(build, "loss", "noisy")
    said = r"line \d+ of .* calls tf\.random\.normal, .*RandomStandardNormal runs once"
    with pytest.raises(paceline.BuildError, match=said):
        tuner.search(X, X[:, 0], epochs=1, n_trials=1)
