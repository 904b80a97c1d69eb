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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.errors import UsageError
from paceline.program import keras_private
from paceline.program.canonical import Canonical, Unpackable, canonicalise

#: Layers of Keras that have ``supports_jit = False`` and can be traced on JAX all the same.
_AUGMENTING = tuple(
    getattr(keras.layers, name)
    for name in (
        "RandomCrop",
        "RandomPerspective",
        "RandomRotation",
        "RandomShear",
        "RandomTranslation",
        "RandomZoom",
    )
    if hasattr(keras.layers, name)  # Keras 3.10 has not all of them
)

#: Precision as users name it -> Keras' dtype policy.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


@dataclass(frozen=True)
class State:
    """The values of one trial's variables, four lists of arrays.

    Attributes:
        trainable, non_trainable, optimizer, metrics: Arrays with the shapes of the variables.
    """

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
    """One traced step on one batch shape.

    Attributes:
        closed: The closed jaxpr: the flat state and batch are its inputs, logs and the flat state
            its results.
        canonical: Its fingerprint and constants.
        log_names: Names of the L logs, in the order in which the model reports them.
    """

    closed: Any
    canonical: Canonical
    log_names: tuple[str, ...]


def check_packable(model: Any) -> None:
    """Checks what keeps a model out of a pack and shows before anything is traced.

    Args:
        model: A compiled model.

    Raises:
        Unpackable: The model cannot be packed. The message is the reason, to follow "trial 3 runs
            in fit: ".
    """
    if keras.backend.backend() != "jax":
        raise Unpackable(
            f"Keras runs on {keras.backend.backend()}, and packs need KERAS_BACKEND=jax"
        )
    if model.run_eagerly:
        raise Unpackable("it is compiled with run_eagerly=True")
    if not model.jit_compile and not _augments(model):
        raise Unpackable("it is compiled with jit_compile=False")
    if keras.distribution.distribution() is not None:
        raise Unpackable(
            "a keras.distribution is set, which spreads each model over the devices itself"
        )
    for name in ("fit", "evaluate", "make_train_function", "make_test_function", "reset_metrics"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise Unpackable(f"its class {type(model).__name__} has its own {name}()")


def _augments(model: Any) -> bool:
    """Whether layers that change images at random are why Keras does not compile a model.

    Keras marks these layers as not to be compiled on any backend, because they also run in
    ``tf.data``; JAX traces them like other layers.
    """
    slow = [layer for layer in _layers(model) if not layer.supports_jit]
    return bool(slow) and all(type(layer) in _AUGMENTING for layer in slow)


def _layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        yield layer
        if isinstance(layer, keras.Model):
            yield from _layers(layer)


def build_state(model: Any, batch: Any) -> State:
    """Creates the variables of a model as ``fit`` would on this batch, and takes their values.

    Args:
        model: A compiled model.
        batch: Shapes and dtypes of the first batch.
    """
    keras_private.symbolic_build(model, batch)
    model.reset_metrics()
    return State(*(_values(variables) for variables in _variables(model)))


def optimizer_start(model: Any, batch: Any) -> tuple[State, list[Any] | None]:
    """As ``build_state``, and from what the optimizer's own variables start.

    Args:
        model: A compiled model.
        batch: Shapes and dtypes of the first batch.

    Returns:
        The state; and the shapes and dtypes of the variables that building the optimizer adds, if
        all of them are zero, since they are zero for models of the same structure too. Else None.
    """
    before = list(model.optimizer.variables)
    state = build_state(model, batch)
    after, added = model.optimizer.variables, state.optimizer[len(before) :]
    first = all(a is b for a, b in zip(before, after, strict=False))
    zero = first and not any(np.any(np.asarray(array)) for array in added)
    return state, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in added] if zero else None


def quick_state(
    model: Any, like: State, metrics: list[Any], start: list[Any] | None = None
) -> State | None:
    """The state of a stock model whose structure is known, without tracing its forward pass.

    Args:
        model: A compiled, built model of stock classes.
        like: Shapes and dtypes of the state of a model of the same structure.
        metrics: That model's metric variables as they were at first.
        start: From ``optimizer_start`` of that model.

    Returns:
        The state; None where its shapes are not those of ``like``.
    """
    if start is None:
        model.optimizer.build(model.trainable_variables)
    trainable, non_trainable, optimizer, _ = _variables(model)
    values = [*_values(optimizer), *(np.zeros(a.shape, a.dtype) for a in start or ())]
    state = State(_values(trainable), _values(non_trainable), values, metrics)

    def shapes(one: State) -> list[Any]:
        return [(a.shape, a.dtype) for part in one.lists() for a in part]

    return state if shapes(state) == shapes(like) else None


def weighed_shapes(batch: Any, class_weight: np.ndarray | None) -> Any:
    """A batch's shapes as a step sees them: with class weights, ``sample_weight`` [B] is added.

    Args:
        batch: Shapes and dtypes of a batch.
        class_weight: float[classes], or None.
    """
    if class_weight is None:
        return batch
    size = jax.tree.leaves(batch)[0].shape[0]
    return (*batch, jax.ShapeDtypeStruct((size,), class_weight.dtype))


def trace_train(
    model: Any, state: State, batch: Any, class_weight: np.ndarray | None = None
) -> Step:
    """Traces ``model.train_step`` on one batch shape.

    Args:
        model: A compiled, built model.
        state: Its variables, or their shapes and dtypes.
        batch: Shapes and dtypes of a batch.
        class_weight: float[classes], becomes a constant of the step, which weighs each example of
            ``(x, y)`` by its class as Keras does.

    Raises:
        Unpackable: The step has side effects, changes the shape of its state, or reports something
            else than numbers.
    """
    own = type(model).train_step is not keras.Model.train_step

    def step(trainable: Any, non_trainable: Any, optimizer: Any, metrics: Any, data: Any) -> Any:
        if class_weight is not None:
            data = (*data, _weights(data[1], jnp.asarray(class_weight)))
        logs, new = model.train_step((trainable, non_trainable, optimizer, metrics), data)
        return _results(model, logs, new[-1], own), new

    return _trace(step, state.lists(), batch)


def trace_test(model: Any, state: State, batch: Any) -> Step:
    """Traces ``model.test_step`` on one batch shape; the optimizer's variables are no inputs.

    Args:
        model: A compiled, built model.
        state: Its variables, or their shapes and dtypes.
        batch: Shapes and dtypes of a batch.

    Raises:
        Unpackable: As for ``trace_train``.
    """
    own = type(model).test_step is not keras.Model.test_step

    def step(trainable: Any, non_trainable: Any, metrics: Any, data: Any) -> Any:
        logs, new = model.test_step((trainable, non_trainable, metrics), data)
        return _results(model, logs, new[-1], own), new

    return _trace(step, (state.trainable, state.non_trainable, state.metrics), batch)


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


def shapes_only(state: State) -> State:
    """The state's shapes and dtypes, without its arrays."""
    return State(
        *([jax.ShapeDtypeStruct(a.shape, a.dtype) for a in part] for part in state.lists())
    )


def _trace(step: Callable[..., Any], state: tuple[list[Any], ...], batch: Any) -> Step:
    names: list[str] = []

    def flat(*args: Any) -> Any:
        logs, new = step(*args)
        logs = flat_logs(logs)
        names[:] = logs
        for name, value in logs.items():
            if np.shape(value) != ():
                raise Unpackable(
                    f"its step reports {name!r} with shape {np.shape(value)}, not a number"
                )
        dtype = jnp.result_type(float)
        return jnp.stack([jnp.asarray(v, dtype) for v in logs.values()]), [
            list(part) for part in new
        ]

    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), list(state))
    closed, out = jax.make_jaxpr(flat, return_shape=True)(*shapes, batch)
    before, after = jax.tree.leaves(shapes), jax.tree.leaves(out[1])
    if [(a.shape, a.dtype) for a in before] != [(a.shape, a.dtype) for a in after]:
        raise Unpackable("its step changes the shape or dtype of its state")
    return Step(closed, canonicalise(closed), tuple(names))


def _weights(y: Any, table: Any) -> Any:
    """The weight of each example's class, float[B]; y is classes [B], [B, 1] or one-hot rows."""
    if y.ndim > 1:
        y = jnp.argmax(y, axis=-1) if y.shape[-1] != 1 else jnp.squeeze(y, axis=-1)
    return table[jnp.round(y).astype("int32")]


def _results(model: Any, logs: Any, metrics: Any, own: bool) -> dict[str, Any]:
    """The logs that ``fit`` puts into the history.

    After a ``train_step`` of the user's these are the metrics' results, where they have the same
    names as the logs that the step returns.
    """
    if not isinstance(logs, dict) or not logs:
        raise Unpackable(
            f"its step returns {type(logs).__name__} for logs, not a dict with entries"
        )
    if own:
        with keras.StatelessScope(
            state_mapping=list(zip(model.metrics_variables, metrics, strict=True))
        ):
            results = model.get_metrics_result()
        if set(results) == set(logs):
            return results
    return logs


def _variables(model: Any) -> tuple[list[Any], ...]:
    return (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )


def _values(variables: list[Any]) -> list[Any]:
    return [variable.value for variable in variables]


def check_precision(name: str | None) -> str | None:
    """Returns the name of a precision, or None.

    Raises:
        UsageError: No precision has this name.
    """
    if name is not None and name not in POLICIES:
        raise UsageError(f"precision: {name!r} is not one of {', '.join(POLICIES)}.")
    return name


@contextlib.contextmanager
def policy_of(name: str | None) -> Iterator[None]:
    """A block in which Keras' dtype policy is that of a precision; None changes nothing.

    A ``build`` that sets a policy itself, or gives layers a dtype, overrides it.
    """
    if name is None:
        yield
        return
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[name])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
