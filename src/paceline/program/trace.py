"""A user's model as traced steps: what Keras' own ``train_step`` and ``test_step`` compute.

Notation
    B: examples of a batch. L: number of logs.
    batch: ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, nests of shapes and dtypes [B, ...].
    state: four lists of arrays, as Keras orders them: trainable, non-trainable, optimizer and
        metric variables. Seeds of dropout are among the non-trainable ones.
    logs: float[L], one number per metric, in the order of ``log_names``.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.errors import UsageError
from paceline.program import keras_private
from paceline.program.canonical import Canonical, Unpackable, canonicalise, lift
from paceline.program.foreign.tensorflow import accept_tensorflow
from paceline.program.foreign.wide_results import without_marks

#: Numbers of an array among the logs that are reported one by one, at most.
_MOST_NUMBERS = 1000
#: Precision as users name it -> Keras' dtype policy.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


@dataclass(frozen=True)
class State:
    """The values of one trial's variables: four lists of arrays, with the variables' shapes."""

    trainable: list[Any]
    non_trainable: list[Any]
    optimizer: list[Any]
    metrics: list[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of one trial's variables."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.lists()))

    def lists(self) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """The four lists, in Keras' order."""
        return self.trainable, self.non_trainable, self.optimizer, self.metrics


@dataclass(frozen=True)
class Step:
    """One traced step on one batch shape."""

    # The flat state and batch are inputs of the closed jaxpr, logs and the flat state its results.
    closed: Any
    canonical: Canonical  # its fingerprint and constants
    log_names: tuple[str, ...]  # of the L logs, in the order in which the model reports them
    # Whether the optimizer's variables follow the trainable ones in a validation step's state.
    reads_optimizer: bool = field(default=False, kw_only=True)

    @property
    def always_lifted(self) -> tuple[int, ...]:
        """Numbers of the constants that are inputs whatever has been seen of them."""
        return ()

    def lift(self, indices: Sequence[int]) -> Any:
        """The step with constants as inputs; see ``canonical.lift``."""
        return lift(self.closed, indices)


def variables_of(model: Any) -> tuple[list[Any], ...]:
    """The four lists of a compiled model's variables, in the order of ``State.lists``."""
    return (
        list(model.trainable_variables),
        list(model.non_trainable_variables),
        list(model.optimizer.variables),
        list(model.metrics_variables),
    )


def refusal() -> str | None:
    """Why no trial can be packed on Keras' backend; None on JAX."""
    backend = keras.backend.backend()
    return (
        None if backend == "jax" else f"Keras runs on {backend}, but packs need KERAS_BACKEND=jax"
    )


def check_packable(model: Any, *, preprocessed: bool = False) -> None:
    """Checks what keeps a compiled model out of a pack and shows before anything is traced.

    ``preprocessed``: whether the data are those that the ``fit`` of a task of KerasHub makes of the
    user's; else that ``fit`` does more than train. The message of the Unpackable that it raises is
    the reason, to follow "trial 3 runs in fit: ".
    """
    if (why := refusal()) is not None:
        raise Unpackable(why)
    if model.run_eagerly:
        raise Unpackable("it is compiled with run_eagerly=True")
    if keras.distribution.distribution() is not None:
        raise Unpackable(
            "a keras.distribution is set, which already spreads each model over the devices"
        )
    for name in ("fit", "evaluate", "make_train_function", "make_test_function", "reset_metrics"):
        own = getattr(type(model), name)
        if own is not getattr(keras.Model, name) and not (preprocessed and _is_task_s(name, own)):
            raise Unpackable(f"its class {type(model).__name__} has its own {name}()")


def _is_task_s(name: str, method: Any) -> bool:
    """Whether a method is that of all tasks of KerasHub, which runs the preprocessor."""
    hub = sys.modules.get("keras_hub")  # without it there are no tasks
    return hub is not None and method is getattr(hub.models.Task, name)


@contextlib.contextmanager
def _compilable(model: Any) -> Iterator[None]:
    """A block that traces a step; of one that ``fit`` would not compile, it says what is missing.

    Keras does not compile models with ``jit_compile=False``, and models with layers that change
    images at random, because those also run in ``tf.data``. JAX traces most of them. Raises
    Unpackable where the step cannot be compiled, or would be another one if it were.
    """
    if model.jit_compile:
        yield
        return
    before = random.getstate(), _numpy_state()
    try:
        yield
    except Unpackable:
        raise
    except Exception as error:
        why = " ".join(str(error).split()).partition(". ")[0]
        raise Unpackable(
            f"its step cannot be compiled, so Keras runs it uncompiled ({type(error).__name__}: "
            f"{why})"
        ) from error
    if (random.getstate(), _numpy_state()) != before:
        raise Unpackable(
            "its step draws random numbers from Python or NumPy in each batch, like the layer "
            "AugMix, but a compiled step would draw only once"
        )


def _numpy_state() -> tuple[bytes, int]:
    state: Any = np.random.get_state()
    return state[1].tobytes(), state[2]


def build_state(model: Any, batch: Any) -> State:
    """Creates a compiled model's variables as ``fit`` would on this batch, and takes their values.

    ``batch``: shapes and dtypes. Raises Unpackable where a metric keeps values from epoch to epoch.
    """
    keras_private.symbolic_build(model, batch)
    model.reset_metrics()
    for metric in _metrics(model):
        _check_reset(metric)
    return State(*(_values(variables) for variables in variables_of(model)))


def _metrics(model: Any) -> Iterator[Any]:
    """The metrics of a model, with those that metrics hold."""
    left = list(model.metrics)
    while left:
        metric = left.pop()
        yield metric
        left += getattr(metric, "metrics", ())


def _check_reset(metric: Any) -> None:
    """Checks that a metric begins each epoch alike, as packs have it.

    Raises Unpackable where its own ``reset_state`` leaves values as they are.
    """
    if type(metric).reset_state.__module__.startswith("keras."):
        return
    first = [np.asarray(variable) for variable in metric.variables]
    for variable in metric.variables:
        variable.assign(variable + 1)
    metric.reset_state()
    now = [np.asarray(variable) for variable in metric.variables]
    for variable, value in zip(metric.variables, first, strict=True):
        variable.assign(value)
    if not all(map(np.array_equal, first, now)):
        raise Unpackable(f"its metric {metric.name!r} keeps values from epoch to epoch")


def optimizer_start(model: Any, batch: Any) -> tuple[State, list[Any] | None]:
    """As ``build_state``, and from what the optimizer's own variables start.

    The latter are the shapes and dtypes of the optimizer's new variables, if all of them are zero.
    They are then zero for all models of the same structure. Else None.
    """
    before = list(model.optimizer.variables)
    state = build_state(model, batch)
    after, added = model.optimizer.variables, state.optimizer[len(before) :]
    first = all(a is b for a, b in zip(before, after, strict=False))
    zero = first and not any(np.any(np.asarray(array)) for array in added)
    return state, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in added] if zero else None


def quick_state(
    model: Any, like: State | None, metrics: list[Any], start: list[Any] | None = None
) -> State | None:
    """The state of a stock model whose structure is known, without tracing its forward pass.

    None if its shapes are not those of ``like``, the state of a model of the same structure;
    without ``like`` they are not compared. ``metrics`` are that model's metric variables as they
    were at first, ``start`` is its ``optimizer_start``.
    """
    if start is None:
        model.optimizer.build(model.trainable_variables)
    trainable, non_trainable, optimizer, _ = variables_of(model)
    values = [*_values(optimizer), *(np.zeros(a.shape, a.dtype) for a in start or ())]
    state = State(_values(trainable), _values(non_trainable), values, metrics)

    def shapes(one: State) -> list[Any]:
        return [(a.shape, a.dtype) for part in one.lists() for a in part]

    return state if like is None or shapes(state) == shapes(like) else None


def weighed_shapes(batch: Any, class_weight: np.ndarray | None) -> Any:
    """A batch's shapes as a step sees them: with class weights, ``sample_weight`` [B] is added.

    ``class_weight``: float[classes], or None.
    """
    if class_weight is None:
        return batch
    size = jax.tree.leaves(batch)[0].shape[0]
    return (*batch, jax.ShapeDtypeStruct((size,), class_weight.dtype))


def trace_train(
    model: Any, state: State, batch: Any, class_weight: np.ndarray | None = None
) -> Step:
    """Traces ``model.train_step`` on one batch shape.

    As in ``fit``, the model's variables are empty meanwhile: the step is given their values. If it
    reads a variable itself, Keras raises, and its value now must not become a constant of the step.
    Those of the optimizer can be read, as in TensorFlow, where metrics report a learning rate.

    ``state`` are its variables, or their shapes and dtypes; ``batch`` has the shapes and dtypes of
    a batch, as ``fit`` hands it to the step. ``class_weight``, float[classes], becomes a constant
    of the step, which weighs each example of ``(x, y)`` by its class as Keras does.

    Raises Unpackable where the step has side effects, changes the shape of its state, or reports
    something else than numbers.
    """
    own = type(model).train_step is not keras.Model.train_step

    def step(trainable: Any, non_trainable: Any, optimizer: Any, metrics: Any, data: Any) -> Any:
        if class_weight is not None:
            data = (*data, _weights(data[1], jnp.asarray(class_weight)))
        with _readable(model.optimizer, optimizer):
            logs, new = model.train_step((trainable, non_trainable, optimizer, metrics), data)
            return _results(model, logs, variables_of(model), new, own), new

    variables = [v for part in variables_of(model) for v in part]
    with _compilable(model), _emptied(variables):
        return _trace(step, state.lists(), batch)


def trace_test(model: Any, state: State, batch: Any) -> Step:
    """Traces ``model.test_step`` as ``trace_train`` does.

    The optimizer's variables are inputs only if the step reads them. Raises Unpackable as
    ``trace_train`` does.
    """
    place = _Unreadable()
    try:
        with keras_private.bound([(variable, place) for variable in model.optimizer.variables]):
            return _trace_test(model, state, batch, reads_optimizer=False)
    except Exception:
        if not place.read:
            raise
    return _trace_test(model, state, batch, reads_optimizer=True)


def _trace_test(model: Any, state: State, batch: Any, *, reads_optimizer: bool) -> Step:
    own = type(model).test_step is not keras.Model.test_step
    more = state.optimizer if reads_optimizer else []

    def step(fixed: Any, non_trainable: Any, metrics: Any, data: Any) -> Any:
        trainable, optimizer = fixed[: len(state.trainable)], fixed[len(state.trainable) :]
        with _readable(model.optimizer, optimizer) if more else contextlib.nullcontext():
            logs, new = model.test_step((trainable, non_trainable, metrics), data)
            results = _results(model, logs, given, new, own)
        return results, ([*new[0], *optimizer], *new[1:])

    *given, _, metrics = variables_of(model)
    given = [*given, metrics]
    with _compilable(model), _emptied([v for part in given for v in part]):
        inputs = [*state.trainable, *more], state.non_trainable, state.metrics
        return replace(_trace(step, inputs, batch), reads_optimizer=reads_optimizer)


def trace_predict(model: Any, state: State | None, batch: Any) -> Step:
    """Traces ``model.predict_step``, for which the model need not be compiled, nor has a state."""
    del state  # an argument as of the other steps

    def step(trainable: Any, non_trainable: Any, data: Any) -> Any:
        return model.predict_step((trainable, non_trainable), data)

    given = [list(model.trainable_variables), list(model.non_trainable_variables)]
    shapes = [[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in part] for part in given]
    with _emptied([v for part in given for v in part]):
        closed = jax.make_jaxpr(step)(*shapes, batch)
    return Step(closed, canonicalise(closed), ())


@contextlib.contextmanager
def _emptied(variables: Sequence[Any]) -> Iterator[None]:
    """A block in which variables have no values, and Keras' error about one says what it means."""
    with keras_private.emptied(variables):
        try:
            yield
        except TypeError as error:
            if "'NoneType' object is not callable" not in str(error):
                raise
            raise TypeError(
                f"{error} (the step reads a variable that it is not given. While a step runs, a "
                "model's variables are empty: read values from the step's state)"
            ) from error


class _Unreadable:
    """The place of a variable that a validation step is not given; notes that it was read."""

    read = False

    def get(self) -> Any:
        self.read = True
        raise Unpackable("its test_step() reads variables of the optimizer")

    def set(self, value: Any) -> None:
        raise Unpackable("its test_step() changes variables of the optimizer")


class _ValueInStep:
    """The place of a variable of the optimizer: its value at that point of the step."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value

    def set(self, value: Any) -> None:
        raise Unpackable("its step changes variables of the optimizer outside of the optimizer")


@contextlib.contextmanager
def _readable(optimizer: Any, values: Sequence[Any]) -> Iterator[None]:
    """A block of a step in which the optimizer's variables can be read.

    They have these values, and after an update of the optimizer's those that it returned.
    """
    places = [_ValueInStep(value) for value in values]
    apply = optimizer.stateless_apply

    def applied(*args: Any, **kwargs: Any) -> Any:
        trainable, new = apply(*args, **kwargs)
        for place, value in zip(places, new, strict=True):
            place.value = value
        return trainable, new

    # Past Keras' own __setattr__, which tracks what an optimizer has.
    object.__setattr__(optimizer, "stateless_apply", applied)
    try:
        with keras_private.bound(list(zip(optimizer.variables, places, strict=True))):
            yield
    finally:
        object.__delattr__(optimizer, "stateless_apply")


def flat_logs(logs: dict[str, Any]) -> dict[str, Any]:
    """Logs as Keras' history has them: a metric that reports a dict is replaced by its entries."""
    names: list[str] = []
    for name, value in logs.items():
        names += flat_logs(value) if isinstance(value, dict) else [name]
    values: dict[str, Any] = {}
    for name in sorted(logs):  # where two entries share a name, Keras keeps the last in this order
        value = logs[name]
        values.update(flat_logs(value) if isinstance(value, dict) else {name: value})
    return {str(name): values[name] for name in names}


def metric_results(model: Any) -> dict[str, Any]:
    """The results of a model's metrics, as of ``flat_logs``; of use are their names and shapes."""
    found = flat_logs(results_of(model.get_metrics_result))
    if keras.backend.backend() == "jax":
        return {name: np.zeros(np.shape(value)) for name, value in found.items()}
    return {name: keras.ops.convert_to_numpy(value) for name, value in found.items()}


def results_of(compute: Callable[[], Any]) -> Any:
    """The results of metrics that a function computes; on JAX their shapes alone.

    For the numbers, XLA would compile each operation by itself.
    """
    return jax.eval_shape(compute) if keras.backend.backend() == "jax" else compute()


def each_number(logs: Mapping[str, Any], beside: Collection[str] = ()) -> dict[str, Any]:
    """Logs with arrays by their mean and by their numbers: ``f1``, ``f1_0``, ``f1_1`` and so on.

    The names of an array's numbers have its indices; ``f1_at_0`` where another log, of these or of
    the names ``beside``, is called ``f1_0``. Of an array of more than a thousand numbers there is
    the mean alone.
    """
    taken = {*logs, *beside}
    found: dict[str, Any] = {}
    for name, value in logs.items():
        shape = np.shape(value)
        found[name] = value if shape == () else value.mean()
        if not 1 < math.prod(shape) <= _MOST_NUMBERS:
            continue
        indices = list(np.ndindex(*shape))
        ends = ["_".join(map(str, index)) for index in indices]
        mark = "_at_" if any(f"{name}_{end}" in taken for end in ends) else "_"
        found |= {f"{name}{mark}{e}": value[i] for e, i in zip(ends, indices, strict=True)}
    return found


def shapes_only(state: State) -> State:
    """The state's shapes and dtypes, without its arrays."""
    return State(
        *([jax.ShapeDtypeStruct(a.shape, a.dtype) for a in part] for part in state.lists())
    )


def _trace(step: Callable[..., Any], state: tuple[list[Any], ...], batch: Any) -> Step:
    names: list[str] = []

    def flat(*args: Any) -> Any:
        logs, new = step(*args)
        logs = each_number({name: jnp.asarray(v) for name, v in flat_logs(logs).items()})
        names[:] = logs
        dtype = jnp.result_type(float)
        return jnp.stack([jnp.asarray(v, dtype) for v in logs.values()]), [
            list(part) for part in new
        ]

    accept_tensorflow()
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), list(state))
    closed, out = jax.make_jaxpr(flat, return_shape=True)(*shapes, batch)
    closed = without_marks(closed)
    before, after = jax.tree.leaves(shapes), jax.tree.leaves(out[1])
    if [(a.shape, a.dtype) for a in before] != [(a.shape, a.dtype) for a in after]:
        raise Unpackable("its step changes the shape or dtype of its state")
    return Step(closed, canonicalise(closed), tuple(names))


def _weights(y: Any, table: Any) -> Any:
    """The weight of each example's class, float[B]; y is classes [B], [B, 1] or one-hot rows.

    Classes below 0, which mark examples to ignore, have no place in the table, and weigh 1.
    """
    if y.ndim > 1:
        y = jnp.argmax(y, axis=-1) if y.shape[-1] != 1 else jnp.squeeze(y, axis=-1)
    index = (jnp.round(y) if jnp.issubdtype(y.dtype, jnp.floating) else y).astype("int32")
    return jnp.where(index < 0, jnp.ones((), table.dtype), table[index])


def _results(
    model: Any, logs: Any, variables: Sequence[Any], new: Sequence[Any], own: bool
) -> dict[str, Any]:
    """The logs that ``fit`` puts into the history.

    After a ``train_step`` of the user's (``own``) these are the metrics' results, where they have
    the same names as the ``logs`` that the step returns. ``new`` are the values of the lists of
    variables after the step.
    """
    if not isinstance(logs, dict) or not logs:
        raise Unpackable(
            f"its step returns {type(logs).__name__} for logs, not a dict with entries"
        )
    if own:
        parts = zip(variables, new, strict=True)
        state = [pair for part in parts for pair in zip(*part, strict=False)]
        with keras.StatelessScope(state_mapping=state):
            results = model.get_metrics_result()
        if set(results) == set(logs):
            return results
    return logs


def _values(variables: list[Any]) -> list[Any]:
    return [variable.value for variable in variables]


def check_precision(name: str | None) -> str | None:
    """Returns the name of a precision, or None; raises UsageError for another name."""
    if name is not None and name not in POLICIES:
        raise UsageError(f"precision must be one of {', '.join(POLICIES)}, got {name!r}.")
    return name


#: Keras' dtype policies as the blocks of ``policy_of`` began, the innermost last.
_policies: list[Any] = []


@contextlib.contextmanager
def policy_of(name: str | None) -> Iterator[None]:
    """A block that begins with the dtype policy of a precision; None: with Keras' as it is.

    A ``build`` that sets a policy itself, or gives layers a dtype, overrides it for its model. The
    policy is as before afterwards.
    """
    before = keras.config.dtype_policy()
    if name is not None:
        keras.config.set_dtype_policy(POLICIES[name])
    _policies.append(keras.config.dtype_policy())
    try:
        yield
    finally:
        _policies.pop()
        keras.config.set_dtype_policy(before)


def put_policy_back() -> None:
    """Sets the policy that the block of ``policy_of`` began with: a build may have changed it."""
    if _policies:
        keras.config.set_dtype_policy(_policies[-1])
