"""TensorFlow's functions in steps that JAX traces; read for TensorFlow 2.18 to 2.21.

A function of TensorFlow that is given an array of JAX fails, and then asks its dispatchers. Ours
traces the call into a graph, whose primitive operations it computes in JAX (``operations.py``). So
types and shapes are TensorFlow's own.

Some things have no public way:

``GlobalOpDispatcher``
    answers for every public function. What TensorFlow publishes asks for each function by name.
``op_callbacks``
    show which operations run while JAX traces. Random numbers would be drawn once, and a variable
    read once, for all batches. Such a step is refused.
``py_func_common``
    is ``tf.numpy_function``. Outside of a graph it calls the Python function with no operation.
``in_symbolic_scope``
    tells whether Keras infers shapes, with sizes left open, or an export keeps what it traces.
``tf.keras.backend``
    has functions (``K.mean``) that read attributes of tensors before TensorFlow sees them. They
    are replaced by functions that look for arrays of JAX first.
``tf.function`` and constants
    ask no dispatcher. While JAX traces, a ``tf.function`` is the Python function that it was made
    of, and a constant is an array of JAX.

Without these names everything is as before: such steps do not train on JAX.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.core import Tracer

from paceline.program import jax_compat as jv
from paceline.program.foreign import wide_results
from paceline.program.foreign.operations import OPERATIONS, ForeignOperationError

#: Operations of 64-bit integers whose results may need more than 32 bits.
_GROWING = frozenset(
    "AddN AddV2 BatchMatMulV2 Cumsum Einsum MatMul Mul Pow Prod Square SquaredDifference Sub "
    "Sum".split()
)
#: Functions whose own gradient is the usual one, computed in another way.
_USUAL_GRADIENT = frozenset({"silu", "swish"})
#: Types that operations of JAX cannot have.
_ELSEWHERE = frozenset({"float64", "uint64", "complex64", "complex128"})
_INT32 = np.iinfo(np.int32)
#: The state of tracing where JAX traces nothing.
_OUTSIDE = jv.trace_state()
_lock = threading.RLock()  # importing TensorFlow may run a user's code
#: ``.accepts``: whether this thread's steps hold operations of TensorFlow. ``.watched``: whether
#: operations that run in this thread are watched, so that it has some.
_here = threading.local()


def accept_tensorflow() -> None:
    """Has this thread's steps on JAX hold operations of TensorFlow.

    It never imports TensorFlow: the user's code does, or its first function of ``keras.backend``.
    """
    if keras.backend.backend() != "jax":
        return
    _here.accepts = True
    with _lock:
        _replace_backend_functions()
    if "tensorflow" in sys.modules:
        _watch_here()


def _watch_here() -> None:
    """Has operations of this thread be watched, and its arrays of JAX be answered for."""
    if _watched() or not getattr(_here, "accepts", False):
        return
    with _lock:
        begin = _prepare()
    if begin is not None:
        begin()
        _here.watched = True


def _framework(name: str) -> Any:
    """A module of TensorFlow's that is not published."""
    return importlib.import_module(f"tensorflow.python.framework.{name}")


@functools.cache
def _prepare() -> Callable[[], None] | None:
    """Changes TensorFlow, once; returns what begins to watch a thread, None without the names."""
    try:
        import tensorflow as tf

        base, constant = tf.__internal__.dispatch.GlobalOpDispatcher, tf.__internal__.EagerTensor
        scripts: Any = importlib.import_module("tensorflow.python.ops.script_ops")
        scripts.py_func_common = _not_once(scripts.py_func_common)
        add = _framework("op_callbacks").add_op_callback
        watch = functools.partial(_watch, _framework("op_def_registry").get)
    except (ImportError, AttributeError):
        return None

    class Dispatcher(base):
        """Answers for functions of TensorFlow that are given arrays of JAX."""

        def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
            """As TensorFlow has it."""
            if not _has_tracers((args, kwargs)):
                return self.NOT_SUPPORTED
            return _translated(op, args, kwargs)

    Dispatcher().register()
    constant.__jax_array__ = property(_converter)
    compiled: Any = type(tf.function(lambda: None))
    compiled.__call__ = _not_compiled(compiled.__call__)
    for device in tf.config.list_physical_devices("GPU"):
        with suppress(RuntimeError, ValueError):  # it has begun, or the user has divided it
            tf.config.experimental.set_memory_growth(device, True)
    return functools.partial(add, watch)


def _converter(constant: Any) -> Callable[[], Any]:
    """What JAX calls for a constant among its operands; outside of a trace there is none."""
    if not _tracing():
        raise AttributeError("__jax_array__")
    return lambda: jnp.asarray(_narrow(constant.numpy()))


def _watched() -> bool:
    return getattr(_here, "watched", False)


def _tracing() -> bool:
    """Whether JAX traces in this thread, and it is watched."""
    return _watched() and jv.trace_state() != _OUTSIDE


@functools.cache
def _replace_backend_functions() -> None:
    """Has functions of ``keras.backend`` look for arrays of JAX first."""
    published: Any = sys.modules.get("keras._tf_keras.keras.backend")
    for name, function in list(vars(published).items()) if published else ():
        if inspect.isfunction(function) and function.__module__.endswith(".legacy.backend"):
            looking = _looking(function)
            setattr(published, name, looking)
            own = sys.modules[function.__module__]  # where pickles look for it
            if getattr(own, function.__name__, None) is function:
                setattr(own, function.__name__, looking)


def _looking(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that looks for arrays of JAX among its arguments."""

    @functools.wraps(function)
    def looking(*args: Any, **kwargs: Any) -> Any:
        _watch_here()
        if _has_tracers((args, kwargs)):
            return _translated(function, args, kwargs)
        return function(*args, **kwargs)

    return looking


def _not_compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a ``tf.function``; while JAX traces, that of its Python function.

    The operations that it runs are then watched one by one.
    """

    @functools.wraps(call)
    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        _watch_here()
        if _tracing():
            return function.python_function(*args, **kwargs)
        return call(function, *args, **kwargs)

    return called


def _not_once(call: Callable[..., Any]) -> Callable[..., Any]:
    """``tf.numpy_function``, which raises ForeignOperationError while JAX traces."""
    signature = inspect.signature(call)

    @functools.wraps(call)
    def called(*args: Any, **kwargs: Any) -> Any:
        stateful = signature.bind(*args, **kwargs).arguments.get("stateful", True)
        if stateful and _tracing():
            raise ForeignOperationError(_of_effects("PyFunc"))
        return call(*args, **kwargs)

    return called


def _watch(
    definition_of: Callable[[str], Any],
    op_type: Any,
    inputs: Any,
    attrs: Any,
    outputs: Any,
    op_name: Any = None,
    graph: Any = None,
) -> None:
    """Raises ForeignOperationError if an operation with effects runs while JAX traces."""
    if graph is not None or not _tracing():
        return
    kind = op_type if isinstance(op_type, str) else op_type.decode()
    definition = definition_of(kind)
    if definition is None:  # a compiled function, which may have any effects
        kind = "PartitionedCall"
    elif not definition.is_stateful:
        return
    raise ForeignOperationError(_of_effects(kind))


def _of_effects(kind: str) -> str:
    return (
        f"TensorFlow's operation {kind} runs once while JAX traces the step, but must run in each "
        "batch"
    )


def _leaves(tree: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(tree, is_leaf=lambda leaf: isinstance(leaf, keras.Variable))


def _has_tracers(arguments: Any) -> bool:
    """Whether JAX traces the arguments of a call, in a thread that is watched."""
    if not _watched():
        return False
    found = _leaves(arguments)[0]
    return any(isinstance(_array(leaf), Tracer) for leaf in found)


def _array(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, keras.Variable) else leaf


def _translated(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a function of TensorFlow gives for arrays of JAX."""
    import tensorflow as tf

    name = getattr(function, "__name__", type(function).__name__).removesuffix("_v2")
    try:
        given: dict[str, Any] = {}
        leaves, tree = _leaves((args, kwargs))
        with tf.Graph().as_default() as graph:
            symbolic = [_symbolic(leaf, given) for leaf in leaves]
            symbolic_args, symbolic_kwargs = jax.tree.unflatten(tree, symbolic)
            results = function(*symbolic_args, **symbolic_kwargs)
        tensors = [each for each in tf.nest.flatten(results) if _is_tensor(each)]
        if open_sizes := _open_sizes(given):
            values = {each.name: _of_shape(each, open_sizes) for each in tensors}
        else:
            values = _values(graph, tensors, given, usual=name in _USUAL_GRADIENT)
    except ForeignOperationError as error:
        error.function = error.function or name  # in the innermost error, where it is looked for
        raise

    def value_of(result: Any) -> Any:
        return _returned(values[result.name], result) if _is_tensor(result) else result

    return tf.nest.map_structure(value_of, results)


def _open_sizes(given: dict[str, Any]) -> list[Any]:
    """The sizes that Keras leaves open while it infers shapes.

    Raises ForeignOperationError if another trace, whose numbers count, leaves a size open.
    """
    sizes = [size for array in given.values() for size in array.shape]
    found = [size for size in sizes if not isinstance(size, int)]
    if found and not _infers_shapes():
        raise ForeignOperationError(
            "an export with open sizes needs keras.ops instead of TensorFlow's functions"
        )
    return found


def _infers_shapes() -> bool:
    try:
        from keras.src.backend.common.symbolic_scope import in_symbolic_scope
    except ImportError:
        return False
    return bool(in_symbolic_scope())


def _of_shape(tensor: Any, open_sizes: list[Any]) -> Any:
    """Stands for a result where only its shape counts: Keras forgets open sizes afterwards."""
    import tensorflow as tf

    if tensor.shape.rank is None:
        raise ForeignOperationError("its result has no known number of axes")
    if (known := tf.get_static_value(tensor)) is not None:
        return np.asarray(known, tensor.dtype.as_numpy_dtype)
    _check_width(tensor.op)
    kind = jax.dtypes.canonicalize_dtype(tensor.dtype.as_numpy_dtype)
    names = {str(size) for size in open_sizes}

    def sizes_of(sizes: Any) -> list[Any]:
        return [open_sizes[0] if size is None else int(size) for size in sizes]

    if tensor.op.type == "Reshape" and len(names) == 1 and names.pop().isidentifier():
        # If one size is open, and not a multiple of another, -1 follows from the others.
        whole, wanted = tensor.op.inputs
        with suppress(Exception):  # JAX may not find it
            zeros = jnp.zeros(sizes_of(whole.shape), kind)
            found = jnp.reshape(zeros, sizes_of(tf.get_static_value(wanted, partial=True)))
            if all(isinstance(size, int) or size == open_sizes[0] for size in found.shape):
                return found
    return jnp.zeros(sizes_of(tensor.shape), kind)


def _symbolic(leaf: Any, given: dict[str, Any]) -> Any:
    """What stands for an argument in the graph; ``given`` notes the arrays of JAX by name."""
    import tensorflow as tf

    array = _array(leaf)
    if isinstance(array, jax.Array):
        shape = [size if isinstance(size, int) else None for size in array.shape]
        wide = wide_results.unmarked(array)
        array, of_truth = wide or (array, False)
        dtype = tf.int64 if wide and not of_truth else tf.as_dtype(array.dtype)
        stand_in = tf.compat.v1.placeholder(dtype, shape)
        given[stand_in.name] = array
        return tf.cast(stand_in, tf.int64) if of_truth else stand_in
    if isinstance(leaf, tf.Variable):
        raise ForeignOperationError("it reads a tf.Variable, whose value may change")
    if not isinstance(leaf, tf.Tensor):
        return leaf
    if not hasattr(leaf, "numpy"):
        raise ForeignOperationError("it is called in a function that TensorFlow calls")
    return tf.constant(leaf.numpy(), leaf.dtype)


def _is_tensor(result: Any) -> bool:
    import tensorflow as tf

    if isinstance(result, tf.Operation | tf.RaggedTensor | tf.SparseTensor | tf.IndexedSlices):
        raise ForeignOperationError(f"it returns {type(result).__name__}")
    return isinstance(result, tf.Tensor)


def _values(
    graph: Any, tensors: list[Any], given: dict[str, Any], *, usual: bool
) -> dict[str, Any]:
    """The values of tensors of a graph, by name: of NumPy where they are known, else of JAX.

    ``usual``: whether gradients of the function's own are the usual ones.
    """
    import tensorflow as tf

    values = dict(given)
    needed: set[str] = set()
    assertions = [op for op in graph.get_operations() if op.type == "Assert"]
    waiting = [*tensors, *(op.inputs[0] for op in assertions)]
    while waiting:
        tensor = waiting.pop()
        if tensor.name in values:
            continue
        if (value := tf.get_static_value(tensor)) is not None:
            values[tensor.name] = np.asarray(value, tensor.dtype.as_numpy_dtype)
        elif tensor.op.name not in needed:
            needed.add(tensor.op.name)
            waiting += tensor.op.inputs
    for op in graph.get_operations():
        if op.op_def.is_stateful and op not in assertions:
            raise ForeignOperationError(_of_effects(op.type))
        if op.name not in needed:
            continue
        if op.type not in OPERATIONS:
            raise ForeignOperationError(f"TensorFlow's operation {op.type} has no counterpart")
        if "_gradient_op_type" in op.node_def.attr and not usual:
            raise ForeignOperationError("its gradient is not the usual one")
        for tensor, value in zip(op.outputs, _computed(op, values), strict=True):
            values.setdefault(tensor.name, value)
    for op in assertions:
        condition = values[op.inputs[0].name]
        if not (isinstance(condition, np.ndarray) and condition.all()):
            raise ForeignOperationError(_of_effects(op.type))
    return values


def _computed(op: Any, values: dict[str, Any]) -> list[Any]:
    """The results of an operation, in the types that TensorFlow gives them.

    Integers of 64 bits are of 32 on JAX. Raises ForeignOperationError where one may need more.
    """
    wide = not jax.config.jax_enable_x64  # type: ignore[attr-defined]
    inputs = [_narrow(values[tensor.name]) if wide else values[tensor.name] for tensor in op.inputs]
    known = bool(inputs) and all(isinstance(value, np.ndarray) for value in inputs)
    if wide and not known:
        _check_width(op)
    with jax.ensure_compile_time_eval() if known else nullcontext():
        results = OPERATIONS[op.type](op, *inputs)
    results = list(results) if isinstance(results, list | tuple) else [results]
    for i, (tensor, result) in enumerate(zip(op.outputs, results, strict=True)):
        if isinstance(result, np.ndarray):  # a shape
            continue
        wanted = jax.dtypes.canonicalize_dtype(tensor.dtype.as_numpy_dtype)
        if result.dtype != wanted or not tensor.shape.is_compatible_with(result.shape):
            raise ForeignOperationError(
                f"TensorFlow's operation {op.type} gives {tensor.dtype.name}{tensor.shape}, but "
                f"JAX gives {result.dtype}{list(result.shape)}"
            )
        if known:
            results[i] = np.asarray(result, tensor.dtype.as_numpy_dtype)
    return results


def _narrow(value: Any) -> Any:
    """A known value as JAX has it."""
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int64, np.uint64):
        return value
    if value.size and not _INT32.min <= value.min() <= value.max() <= _INT32.max:
        raise ForeignOperationError("it has an integer beyond 32 bits")
    return value.astype(np.int32)


def _check_width(op: Any) -> None:
    for tensor in op.outputs:
        name = tensor.dtype.name
        if name in _ELSEWHERE or not (tensor.dtype.is_numpy_compatible and name != "string"):
            raise ForeignOperationError(f"its result is of the type {name}")
        if name != "int64":
            continue
        source = op.inputs[0]
        if op.type == "Cast" and source.dtype.is_floating:
            raise ForeignOperationError("it makes 64-bit integers of floats; cast to tf.int32")
        if op.type in _GROWING and not (op.type == "Sum" and _is_of_truth(source)):
            raise ForeignOperationError("it calculates with 64-bit integers; cast to tf.int32")


def _is_of_truth(tensor: Any) -> bool:
    """Whether numbers were made of truth values: a sum of them needs no 64 bits."""
    return tensor.op.type == "Cast" and tensor.op.inputs[0].dtype.is_bool


def _returned(value: Any, tensor: Any) -> Any:
    """A result as the user's code gets it: known integers, such as a shape, are TensorFlow's."""
    import tensorflow as tf

    if not isinstance(value, np.ndarray):
        if tensor.dtype.name == "int64" and value.dtype == np.int32:
            return wide_results.marked(value, of_truth=_is_of_truth(tensor))
        return value
    if tensor.dtype.is_integer:
        with tf.init_scope():
            return tf.constant(value, tensor.dtype)
    if tensor.dtype.name in _ELSEWHERE | {"string"}:
        raise ForeignOperationError(f"its result is of the type {tensor.dtype.name}")
    return jnp.asarray(value)
