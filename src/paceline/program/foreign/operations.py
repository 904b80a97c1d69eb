"""TensorFlow's primitive operations in JAX: equal values, and equal gradients also at kinks.

Public functions of TensorFlow consist of these. A function of ``OPERATIONS`` is given the operation
of a graph, for its attributes, and the values of its inputs. An input whose value is known before
the step runs, such as an axis or a constant, is a NumPy array. All others are arrays of JAX.

What is missing here has no counterpart, or its gradient differs and nobody needed it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

from paceline.program.canonical import Unpackable


class ForeignOperationError(Unpackable):
    """Raised for an operation that a step on JAX cannot hold; ``function`` is what the user calls.

    The message says why.
    """

    def __init__(self, message: str, function: str = "") -> None:
        super().__init__(message)
        self.function = function


def _ints(value: Any) -> tuple[int, ...]:
    """The numbers of an input that must be known before the step runs."""
    if not isinstance(value, np.ndarray):
        raise ForeignOperationError("its shape, axis or size depends on the data")
    return tuple(int(number) for number in value.ravel())


def _int(value: Any) -> int:
    return _ints(value)[0]


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operation without attributes."""
    return lambda op, *values: function(*values)


def _by_axes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction."""
    return lambda op, x, axes: function(x, axis=_ints(axes), keepdims=op.get_attr("keep_dims"))


def _derived(primal: Callable[..., Any], *tangents: Callable[..., Any]) -> Callable[..., Any]:
    """An operation with TensorFlow's gradients.

    ``tangents`` has a function for each input: its share of the result's tangent, from the input's
    tangent, the result and all inputs.
    """

    def called(op: Any, *values: Any) -> Any:
        if not jnp.issubdtype(values[0].dtype, jnp.inexact):
            return primal(*values)
        # A constant has no gradient. One of zero times infinity would be NaN.
        places = [i for i, value in enumerate(values) if not isinstance(value, np.ndarray)]
        known = {i: value for i, value in enumerate(values) if isinstance(value, np.ndarray)}

        def every(given: Any) -> list[Any]:
            found = known | dict(zip(places, given, strict=True))
            return [found[i] for i in range(len(values))]

        @jax.custom_jvp
        def function(*given: Any) -> Any:
            return primal(*every(given))

        @function.defjvp
        def derivative(given: Any, moved: Any) -> Any:
            inputs = every(given)
            result = primal(*inputs)
            parts = (tangents[i](t, result, *inputs) for i, t in zip(places, moved, strict=True))
            return result, functools.reduce(jnp.add, parts)

        return function(*(values[i] for i in places)) if places else primal(*values)

    return called


_SELU, _SELU_ALPHA = 1.0507009873554804934193349852946, 1.7580993408473768599402175208123


def _divided_no_nan(x: Any, y: Any) -> Any:
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


def _floor_divide(op: Any, x: Any, y: Any) -> Any:
    if jnp.issubdtype(x.dtype, jnp.floating):  # Python's 1.0 // 0.1 is 9, TensorFlow's is 10
        return jnp.floor(x / y)
    return jnp.floor_divide(x, y)


def _x_log_y(op: Any, x: Any, y: Any) -> Any:
    used = x != 0
    return jnp.where(used, x * jnp.log(jnp.where(used, y, jnp.ones_like(y))), 0)


def _select(op: Any, condition: Any, x: Any, y: Any) -> Any:
    if op.type == "Select" and condition.ndim == 1:  # one for each row
        condition = condition.reshape(condition.shape + (1,) * (x.ndim - 1))
    return jnp.where(condition, x, y)


def _matmul(first: str, second: str) -> Callable[..., Any]:
    def product(op: Any, a: Any, b: Any) -> Any:
        a = jnp.swapaxes(a, -1, -2) if op.get_attr(first) else a
        return jnp.matmul(a, jnp.swapaxes(b, -1, -2) if op.get_attr(second) else b)

    return product


def _softmax_cross_entropy(op: Any, logits: Any, labels: Any) -> Any:
    """Loss [B] and its gradient [B, C], as if the labels of an example had the sum 1."""
    logits, labels = jnp.broadcast_arrays(logits, labels)

    @jax.custom_jvp
    def loss(logits: Any, labels: Any) -> Any:
        terms = jnp.where(labels == 0, 0, labels * jax.nn.log_softmax(logits))
        return -jnp.sum(terms, -1)

    @loss.defjvp
    def derivative(values: Any, given: Any) -> Any:
        logits, labels = values
        by_logits = given[0] * (jax.nn.softmax(logits) - labels)
        return loss(*values), jnp.sum(by_logits - given[1] * jax.nn.log_softmax(logits), -1)

    return loss(logits, labels), jax.nn.softmax(logits) - labels


def _sparse_cross_entropy(op: Any, logits: Any, labels: Any) -> Any:
    labels = jnp.where(labels < 0, logits.shape[-1], labels)  # NaN, as beyond the last class
    each = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1, mode="fill")
    return -each[:, 0], jax.nn.softmax(logits) - jax.nn.one_hot(labels, logits.shape[-1])


def _check_table(x: Any, indices: Any, sizes: Any) -> None:
    """Refuses indices that may be beyond the end of a table, whose numbers cannot become NaN.

    TensorFlow refuses such an index when it runs. ``sizes`` are those of the axes of the indices.
    """
    if jnp.issubdtype(x.dtype, jnp.inexact):
        return
    if not (isinstance(indices, np.ndarray) and np.all((indices >= 0) & (indices < sizes))):
        raise ForeignOperationError("it takes integers or truth values by indices from data")


def _gather(op: Any, x: Any, indices: Any, axis: Any) -> Any:
    batch, place = op.get_attr("batch_dims"), _int(axis)
    place = place + x.ndim if place < 0 else place
    _check_table(x, indices, x.shape[place])

    def take(x: Any, indices: Any) -> Any:
        # TensorFlow refuses an index beyond the end: here its numbers are NaN.
        indices = jnp.where(indices < 0, x.shape[place - batch], indices)
        return jnp.take(x, indices, place - batch, mode="fill")

    for _ in range(batch):
        take = jax.vmap(take)
    return take(x, indices)


def _gather_nd(op: Any, x: Any, indices: Any) -> Any:
    _check_table(x, indices, x.shape[: indices.shape[-1]])
    parts = jnp.moveaxis(jnp.asarray(indices), -1, 0)
    place = tuple(
        jnp.where(part < 0, size, part) for part, size in zip(parts, x.shape, strict=False)
    )
    return jnp.asarray(x).at[place].get(mode="fill")


def _one_hot(op: Any, indices: Any, depth: Any, on: Any, off: Any) -> Any:
    hot = jax.nn.one_hot(indices, _int(depth), axis=op.get_attr("axis"), dtype=bool)
    return jnp.where(hot, on, off)


def _strided_slice(op: Any, x: Any, begin: Any, end: Any, strides: Any) -> Any:
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    masks = [op.get_attr(name) for name in names]
    index: list[Any] = []
    for i, (b, e, s) in enumerate(zip(_ints(begin), _ints(end), _ints(strides), strict=True)):
        open_begin, open_end, rest, new, one = (mask >> i & 1 for mask in masks)
        if rest:
            index.append(Ellipsis)
        elif new:
            index.append(None)
        elif one:
            index.append(b)
        else:
            index.append(slice(None if open_begin else b, None if open_end else e, s))
    return x[tuple(index)]


def _slice(op: Any, x: Any, begin: Any, size: Any) -> Any:
    places = zip(_ints(begin), _ints(size), strict=True)
    return x[tuple(slice(b, None if n < 0 else b + n) for b, n in places)]


def _split_v(op: Any, x: Any, sizes: Any, axis: Any) -> Any:
    return jnp.split(x, np.cumsum(_ints(sizes))[:-1].tolist(), _int(axis))


def _unpack(op: Any, x: Any) -> Any:
    axis = op.get_attr("axis")
    return [lax.index_in_dim(x, i, axis, keepdims=False) for i in range(op.get_attr("num"))]


def _padded(op: Any, x: Any, paddings: Any, value: Any = 0) -> Any:
    widths = np.reshape(_ints(paddings), (-1, 2)).tolist()
    if op.type == "MirrorPad":
        mode = {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[op.get_attr("mode").decode()]
        return jnp.pad(x, widths, mode=mode)
    return jnp.pad(x, widths, constant_values=value)


def _squeeze(op: Any, x: Any) -> Any:
    axes = tuple(op.get_attr("squeeze_dims"))
    return jnp.squeeze(x, axes or None)


def _cumsum(op: Any, x: Any, axis: Any) -> Any:
    place = _int(axis)
    x = jnp.flip(x, place) if op.get_attr("reverse") else x
    if op.get_attr("exclusive"):  # a difference would lose small numbers beside large ones
        place, n = place % x.ndim, x.shape[place]
        widths = [(int(i == place), 0) for i in range(x.ndim)]
        x = lax.slice_in_dim(jnp.pad(x, widths), 0, n, axis=place)
    total = jnp.cumsum(x, place, dtype=x.dtype)
    return jnp.flip(total, place) if op.get_attr("reverse") else total


def _in_top_k(op: Any, scores: Any, targets: Any, k: Any) -> Any:
    inside = (targets >= 0) & (targets < scores.shape[-1])
    own = jnp.take_along_axis(scores, jnp.where(inside, targets, 0)[:, None], -1)
    finite = jnp.all(jnp.isfinite(scores), -1)
    return inside & finite & (jnp.sum(scores > own, -1) < _int(k))


def _band_part(op: Any, x: Any, lower: Any, upper: Any) -> Any:
    below, above = _int(lower), _int(upper)
    rows, columns = np.ogrid[: x.shape[-2], : x.shape[-1]]
    kept = ((below < 0) | (rows - columns <= below)) & ((above < 0) | (columns - rows <= above))
    return jnp.where(kept, x, 0)


def _diagonal(op: Any, x: Any, which: Any, padding: Any) -> Any:
    if _ints(which) != (0,):
        raise ForeignOperationError("it takes another diagonal than the main one")
    return jnp.diagonal(x, axis1=-2, axis2=-1)


def _convolution(op: Any, x: Any, kernel: Any) -> Any:
    padding = op.get_attr("padding").decode()
    if op.get_attr("data_format") != b"NHWC" or padding == "EXPLICIT":
        raise ForeignOperationError("its data format or padding is another one than Keras' own")
    groups = x.shape[-1] // kernel.shape[2]
    if op.type == "DepthwiseConv2dNative":
        groups = x.shape[-1]
        kernel = jnp.reshape(kernel, (*kernel.shape[:2], 1, -1))
    return lax.conv_general_dilated(
        x,
        jnp.asarray(kernel),
        op.get_attr("strides")[1:3],
        padding,
        rhs_dilation=op.get_attr("dilations")[1:3],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _pool(pool: Callable[..., Any]) -> Callable[..., Any]:
    def pooled(op: Any, x: Any) -> Any:
        padding, sizes, strides = (op.get_attr(n) for n in ("padding", "ksize", "strides"))
        if op.get_attr("data_format") != b"NHWC" or padding == b"EXPLICIT" or sizes[3] != 1:
            raise ForeignOperationError("its data format or padding is another one than Keras' own")
        window, steps = tuple(sizes[1:3]), tuple(strides[1:3])
        return pool(x, window, steps, padding.decode().lower(), "channels_last")

    return pooled


def _bias_add(op: Any, x: Any, bias: Any) -> Any:
    if op.get_attr("data_format") != b"NHWC":
        bias = bias.reshape((-1,) + (1,) * (x.ndim - 2))
    return x + bias


def _arg(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda op, x, axis: function(x, _int(axis)).astype(
        jax.dtypes.canonicalize_dtype(op.get_attr("output_type").as_numpy_dtype)
    )


def _shapes(op: Any, *values: Any) -> list[Any]:
    kind = op.get_attr("out_type").as_numpy_dtype
    return [np.asarray(value.shape, kind) for value in values]


def _cast(op: Any, x: Any) -> Any:
    return x.astype(jax.dtypes.canonicalize_dtype(op.get_attr("DstT").as_numpy_dtype))


#: Type of an operation -> its values, of the operation and the values of its inputs.
OPERATIONS: dict[str, Callable[..., Any]] = {
    name: _plain(function)
    for name, function in {
        "AddV2": jnp.add,
        "Atan": jnp.arctan,
        "Ceil": jnp.ceil,
        "Cos": jnp.cos,
        "Cosh": jnp.cosh,
        "Digamma": jax.scipy.special.digamma,
        "Elu": jax.nn.elu,
        "Equal": jnp.equal,
        "Erf": jax.scipy.special.erf,
        "Erfc": jax.scipy.special.erfc,
        "Exp": jnp.exp,
        "Expm1": jnp.expm1,
        "Floor": jnp.floor,
        "FloorMod": jnp.mod,
        "Greater": jnp.greater,
        "GreaterEqual": jnp.greater_equal,
        "Identity": lambda x: x,
        "IsFinite": jnp.isfinite,
        "IsInf": jnp.isinf,
        "IsNan": jnp.isnan,
        "L2Loss": lambda x: jnp.sum(jnp.square(x)) / 2,
        "Less": jnp.less,
        "LessEqual": jnp.less_equal,
        "Lgamma": jax.scipy.special.gammaln,
        "Log": jnp.log,
        "Log1p": jnp.log1p,
        "LogSoftmax": jax.nn.log_softmax,
        "LogicalAnd": jnp.logical_and,
        "LogicalNot": jnp.logical_not,
        "LogicalOr": jnp.logical_or,
        "Mul": jnp.multiply,
        "Neg": jnp.negative,
        "NotEqual": jnp.not_equal,
        "OnesLike": jnp.ones_like,
        "Reciprocal": jnp.reciprocal,
        "Relu": jax.nn.relu,
        "Round": jnp.round,
        "Rsqrt": lax.rsqrt,
        "Sigmoid": jax.nn.sigmoid,
        "Sign": jnp.sign,
        "Sin": jnp.sin,
        "Sinh": jnp.sinh,
        "Softmax": jax.nn.softmax,
        "Softplus": jax.nn.softplus,
        "Softsign": jax.nn.soft_sign,
        "Sqrt": jnp.sqrt,
        "Square": jnp.square,
        "SquaredDifference": lambda x, y: jnp.square(x - y),
        "StopGradient": lax.stop_gradient,
        "Sub": jnp.subtract,
        "Tan": jnp.tan,
        "Tanh": jnp.tanh,
        "ZerosLike": jnp.zeros_like,
    }.items()
}
OPERATIONS |= {
    "All": _by_axes(jnp.all),
    "Any": _by_axes(jnp.any),
    "Max": _by_axes(jnp.max),
    "Mean": _by_axes(jnp.mean),
    "Min": _by_axes(jnp.min),
    "Prod": _by_axes(lambda x, **how: jnp.prod(x, dtype=x.dtype, **how)),
    "Sum": _by_axes(lambda x, **how: jnp.sum(x, dtype=x.dtype, **how)),
    # Where two inputs are equal, the first one has the whole gradient; JAX gives half to each.
    "Maximum": _derived(
        jnp.maximum,
        lambda t, _, x, y: jnp.where(x >= y, t, 0),
        lambda t, _, x, y: jnp.where(x >= y, 0, t),
    ),
    "Minimum": _derived(
        jnp.minimum,
        lambda t, _, x, y: jnp.where(x <= y, t, 0),
        lambda t, _, x, y: jnp.where(x <= y, 0, t),
    ),
    # At their kinks these have other gradients in JAX.
    "Abs": _derived(jnp.abs, lambda t, _, x: t * jnp.sign(x)),
    "LeakyRelu": lambda op, x: jnp.where(x > 0, x, op.get_attr("alpha") * x),
    "Relu6": _derived(
        lambda x: jnp.clip(x, 0, 6), lambda t, _, x: jnp.where((x > 0) & (x < 6), t, 0)
    ),
    "Selu": _derived(
        lambda x: jnp.where(x < 0, _SELU_ALPHA * jnp.expm1(x), _SELU * x),
        lambda t, y, x: jnp.where(y < 0, t * (y + _SELU_ALPHA), t * _SELU),
    ),
    "Pow": _derived(
        jnp.power,
        lambda t, _, x, y: t * (y * jnp.power(x, y - 1)),
        lambda t, z, x, y: t * (z * jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), 0)),
    ),
    # JAX divides by the square of a small number, which is zero. So would XLA, of (x / y) / y.
    "RealDiv": _derived(jnp.divide, lambda t, _, x, y: t / y, lambda t, _, x, y: t / y * (-x / y)),
    "DivNoNan": _derived(
        _divided_no_nan,
        lambda t, _, x, y: _divided_no_nan(t, y),
        lambda t, _, x, y: t * _divided_no_nan(_divided_no_nan(-x, y), y),
    ),
    "FloorDiv": _floor_divide,
    "Xlogy": _x_log_y,
    "AddN": lambda op, *values: functools.reduce(jnp.add, values),
    "ArgMax": _arg(jnp.argmax),
    "ArgMin": _arg(jnp.argmin),
    "AvgPool": _pool(keras.ops.average_pool),
    "BatchMatMulV2": _matmul("adj_x", "adj_y"),
    "BiasAdd": _bias_add,
    "BroadcastTo": lambda op, x, shape: jnp.broadcast_to(x, _ints(shape)),
    "Cast": _cast,
    "ConcatV2": lambda op, *values: jnp.concatenate(values[:-1], _int(values[-1])),
    "Conv2D": _convolution,
    "Cumsum": _cumsum,
    "DepthwiseConv2dNative": _convolution,
    "Einsum": lambda op, *values: jnp.einsum(op.get_attr("equation").decode(), *values),
    "ExpandDims": lambda op, x, axis: jnp.expand_dims(x, _int(axis)),
    "Fill": lambda op, shape, value: jnp.full(_ints(shape), value),
    "GatherNd": _gather_nd,
    "GatherV2": _gather,
    "IdentityN": lambda op, *values: list(values),
    "InTopKV2": _in_top_k,
    "MatMul": _matmul("transpose_a", "transpose_b"),
    "MatrixBandPart": _band_part,
    "MatrixDiagPartV3": _diagonal,
    "MaxPool": _pool(keras.ops.max_pool),
    "MirrorPad": _padded,
    "OneHot": _one_hot,
    "Pack": lambda op, *values: jnp.stack(values, op.get_attr("axis")),
    "Pad": _padded,
    "PadV2": _padded,
    "Range": lambda op, *values: jnp.arange(*(v.item() for v in values), dtype=values[0].dtype),
    "Reshape": lambda op, x, shape: jnp.reshape(x, _ints(shape)),
    "ReverseV2": lambda op, x, axes: jnp.flip(x, _ints(axes)),
    "Roll": lambda op, x, shift, axis: jnp.roll(x, _ints(shift), _ints(axis)),
    "Select": _select,
    "SelectV2": _select,
    "Shape": _shapes,
    "ShapeN": _shapes,
    "Slice": _slice,
    "SoftmaxCrossEntropyWithLogits": _softmax_cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
    "Split": lambda op, axis, x: jnp.split(x, op.get_attr("num_split"), _int(axis)),
    "SplitV": _split_v,
    "Squeeze": _squeeze,
    "StridedSlice": _strided_slice,
    "Tile": lambda op, x, times: jnp.tile(x, _ints(times)),
    "TopKV2": lambda op, x, k: lax.top_k(x, _int(k)),
    "Transpose": lambda op, x, axes: jnp.transpose(x, _ints(axes)),
    "Unpack": _unpack,
}
