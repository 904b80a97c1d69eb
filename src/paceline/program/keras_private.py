"""The only place that touches what Keras does not publish; read for Keras 3.10 to 3.15.

``check_names`` looks for the names without which no search can run, before a user's code does.

Some things have no public way:

``Model._symbolic_build``
    creates the state of metrics, loss and optimizer exactly when and as ``fit`` does, without
    training a step. ``train_on_batch`` creates it too, but changes the weights.
Keras' global state
    ``object_name_uids`` numbers automatic layer names. Every trial must give its outputs the same
    names, because metrics are named after them. ``clear_session`` also resets the numbers, but
    loses the user's dtype policy and distribution. ``set_random_seed`` sets ``global_random_seed``
    and ``global_seed_generator``, which have no getter: a search leaves them as they were.
    Functions of users that take turns in threads (``compat/interception``) each have their own
    global state, which replaces Keras' at their turn. The state is ``threading.local``, so that a
    new thread sees none of the user's settings, and ``clear_session`` replaces it for all threads
    at once.
``Model._compile_metrics``
    knows whether metrics have been created, and creates them without a trace.
The layers of a model, also within layers, and the arguments of ``compile``
    for a copy of a model with the user's layers (``initial_weights.py``). Without them the user's
    layers take the weights, and a note says so.
Names of attributes and classes
    that ``model_structure.py`` meets on its walk over a model's objects. If Keras changes them,
    equal models look different, and their trials are traced; nothing worse happens.
TensorFlow's table of gradients
    grows with every function that is traced; ``gradients_forgotten`` keeps it as it was.
The calls of layers in a graph
    show which layers make numbers of text (``leading_layers.py``). A layer that several models
    share knows of its first call alone. Without the calls ``fit`` reads the text.
The array of a variable
    is one attribute that Keras reads and writes, ``VALUE``. ``bind`` puts a property in its place,
    so that a callback of a trial in a pack finds the variables of its slot (``pack/callbacks``).
Whether TensorFlow is installed
    Keras finds out by importing it, even for a seed or to save a model. On JAX that takes seconds
    of every search where it is installed. ``no_tensorflow`` answers for it until the user's code
    has imported TensorFlow. Until then, draws of TensorFlow's own have no seed.
``get_data_adapter``
    returns what ``fit``, ``evaluate`` and ``predict`` read batches from. ``batches_through`` looks
    at each batch there: later its integers of 64 bits have lost half of them
    (``executor/batch_checks.py``).

``RefCountedPatch`` is how this package replaces functions of Keras and JAX: once, for as long as
any search needs the change.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, Protocol

from paceline.errors import PacelineError

#: The oldest and the newest minor version of Keras that this module was read for.
SUPPORTED = ((3, 10), (3, 15))

#: Classes whose instances no step consults: lists of what an object tracks, arguments kept for
#: ``get_config``, and the signature of ``call``, which is the class's.
NO_PART_OF_A_STEP = frozenset(
    {
        "inspect.Signature",
        "keras.src.saving.serialization_lib.SerializableDict",
        "keras.src.utils.tracking.Tracker",
    }
)
#: Attribute of a variable that holds its array.
VALUE = "_value"
#: A variable's shape, read as an attribute among the others: ``Variable.shape`` has no place there.
SHAPE = "_shape"
#: The module of operations on tensors that a functional model records, such as ``x + y``.
OPERATIONS = "keras.src.ops.numpy"
#: Attribute of a seed generator that holds the number it started from.
FIRST_SEED = "_initial_seed"
#: Name of the variable that holds a seed generator's state.
SEED_STATE = "seed_generator_state"
#: Methods that ``symbolic_build`` replaces in a model of Keras 3.10 or 3.11: they record the
#: shardings of the state and pin the state to them. A pack places the state itself. Its model has
#: no arrays of metrics, whose shardings ``evaluate`` and ``predict`` would record.
SHARDINGS = frozenset({"_record_training_state_sharding_spec", "_enforce_jax_state_sharding"})

#: Attribute of a TensorBoard callback: whether it profiles batches.
PROFILES = "_should_trace"
#: Attribute of a TensorBoard callback that holds its open files.
WRITERS = "_writers"
#: Attributes of a TensorBoard callback that follow from ``log_dir`` when it is given its model.
LOG_FOLDERS = frozenset({"_log_write_dir", "_train_dir", "_val_dir"})
#: Attributes that Keras' callbacks make in each ``on_epoch_begin``.
OF_THE_EPOCH = frozenset({"_current_epoch", "_epoch_start_time"})

#: Modules of Keras' own classes, whatever public name they are used by.
OWN = "keras.src."


#: Global state that is made again for each function of a user's: names, and what seeds set.
_FRESH = ("object_name_uids", "global_random_seed", "global_seed_generator")


def check_names() -> None:
    """Checks that Keras has the private names that every search needs."""
    missing = _missing_names()
    if missing:
        import keras

        (major, oldest), (_, newest) = SUPPORTED
        raise PacelineError(
            f"Keras {keras.__version__} has no {' and no '.join(missing)}, which Paceline needs. "
            f"Paceline supports Keras {major}.{oldest} to {major}.{newest}: pip install "
            f'"keras>={major}.{oldest},<{major}.{newest + 1}".'
        )


@functools.cache
def _missing_names() -> tuple[str, ...]:
    import keras

    missing = []
    build = getattr(keras.Model, "_symbolic_build", None)
    if build is None or not {"iterator", "data_batch"} <= set(inspect.signature(build).parameters):
        missing.append("Model._symbolic_build(iterator, data_batch)")
    variable = keras.Variable(0.0, name="checked")
    missing += [f"Variable.{name}" for name in (VALUE, SHAPE) if not hasattr(variable, name)]
    try:
        from keras.src.backend.common import global_state
    except ImportError:  # names of layers then differ between trials, and nothing worse
        return tuple(missing)
    for name in ("get_global_attribute", "set_global_attribute"):
        if not hasattr(global_state, name):
            missing.append(f"global_state.{name}")
    return tuple(missing)


@contextmanager
def no_tensorflow() -> Iterator[None]:
    """A block in which Keras does not import TensorFlow to see whether it is installed."""
    from keras.src.utils import module_utils

    lazy: Any = getattr(module_utils, "tensorflow", None)
    if "tensorflow" in sys.modules or getattr(lazy, "_available", True) is not None:
        yield
        return
    lazy._available = False
    try:
        yield
    finally:
        lazy._available = None


def symbolic_build(model: Any, batch: Any, drawn: Callable[[], None] | None = None) -> None:
    """Creates all variables of a compiled model as ``fit`` would on its first batch.

    ``batch`` is ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, nests of things with ``shape``
    [B, ...] and ``dtype``. ``drawn`` is called when ``fit`` would take a batch from its data to
    inspect it.
    """
    from paceline.program.foreign.tensorflow import accept_tensorflow  # which loads JAX

    accept_tensorflow()
    if drawn is None:
        model._symbolic_build(data_batch=batch)
    else:
        model._symbolic_build(iterator=_OneBatch(batch, drawn))
    for name in SHARDINGS:
        if hasattr(type(model), name):
            object.__setattr__(model, name, _as_it_is)


def build_metrics(model: Any, batch: Any) -> bool:
    """Creates the metrics of a compiled model with one output, without a trace.

    ``batch`` is as of ``symbolic_build``. Returns False for other models. TensorFlow traces a step
    of ``evaluate`` twice if it creates variables.
    """
    # The user's own steps may give metrics other labels than those of the batch.
    if not _takes_stock_steps(model, batch, "call", "compute_metrics", "train_step", "test_step"):
        return False
    metrics = getattr(model, "_compile_metrics", None)
    if metrics is not None and not metrics.built:
        metrics.build(batch[1], model.outputs[0])
    return True


def build_untraced(model: Any, batch: Any) -> bool:
    """Creates the metrics and the loss of a stock model as ``symbolic_build`` does, but untraced.

    That takes three traces there. Returns whether something was created, all of whose results are
    numbers; False: ``symbolic_build`` has to do it.
    """
    import jax
    import keras

    names = ("call", "compute_metrics", "compute_loss", "train_step", "test_step")
    if not _takes_stock_steps(model, batch, *names) or not hasattr(batch[1], "shape"):
        return False
    if not all(layer.built and _is_own(layer) for layer in all_layers(model)):
        return False
    metrics, loss = model._compile_metrics, model._compile_loss
    output, used = model.outputs[0], []
    if metrics is not None:
        used = jax.tree.leaves([metrics._user_metrics, metrics._user_weighted_metrics])
    # Others may create variables when they are first updated.
    if not all(each in _MEANS or _is_own(each, keras.metrics.Mean) for each in used):
        return False
    chosen = None if loss is None else loss._user_loss
    if not (chosen is None or isinstance(chosen, str) or _is_own(chosen, keras.losses.Loss)):
        return False
    unbuilt = [part for part in (metrics, loss) if part is not None and not part.built]
    if not unbuilt or None in output.shape[1:]:
        return False
    predicted = jax.ShapeDtypeStruct((batch[1].shape[0], *output.shape[1:]), output.dtype)
    for part in unbuilt:
        part.build(batch[1], predicted)
    model._called = True  # as after a trace: ``model_structure.py`` reads all attributes
    return True


#: Names of metrics that are means of numbers.
_MEANS = frozenset(
    "accuracy acc binary_accuracy categorical_accuracy sparse_categorical_accuracy mae mse "
    "mean_absolute_error mean_squared_error".split()
)


def _is_own(value: Any, kind: type = object) -> bool:
    """Whether a value is of this kind, and of one of Keras' own classes."""
    return isinstance(value, kind) and type(value).__module__.startswith(OWN)


def _takes_stock_steps(model: Any, batch: Any, *names: str) -> bool:
    """Whether a model with one output has labels, and these methods of Keras' own."""
    import keras

    if len(getattr(model, "outputs", None) or ()) != 1 or len(batch) < 2:
        return False
    kinds = functional_class(), keras.Sequential
    return all(
        getattr(type(model), name) in [getattr(kind, name) for kind in kinds] for name in names
    )


class _OneBatch:
    """Stands for the iterator of ``fit``, as far as building a model reads it."""

    def __init__(self, batch: Any, drawn: Callable[[], None]) -> None:
        self._batch, self._drawn = batch, drawn

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self._drawn()
        batches = [self._batch]
        # Keras 3.10 has one number before the batches, later ones have two.
        yield (*[0] * _numbers_before_batches(), batches)


@functools.cache
def _numbers_before_batches() -> int:
    """One in Keras 3.10 (a step), two in later ones (of its batches, the first and the last)."""
    import numpy as np
    from keras.src.trainers.epoch_iterator import EpochIterator

    return len(next(iter(EpochIterator(x=np.zeros((1, 1)))))) - 1


def all_layers(model: Any) -> list[Any]:
    """A model and all its layers, with those that layers hold; the model where Keras hides them."""
    layers = getattr(model, "_flatten_layers", None)
    return [model] if layers is None else list(layers())


def embeddings(model: Any) -> list[Any]:
    """The Embeddings of a model, as far as it has made its layers."""
    import keras

    return [e for e in all_layers(model) if isinstance(e, keras.layers.Embedding)]


def slowest_average(model: Any) -> float:
    """The largest momentum of the moving averages that a model trains; 0.0 without any."""
    import keras

    kind = keras.layers.BatchNormalization
    found = [e.momentum for e in all_layers(model) if isinstance(e, kind) and e.trainable]
    return max(map(float, found), default=0.0)


def is_built(model: Any) -> bool:
    """Whether ``symbolic_build`` would add nothing; else ``fit`` looks at a batch first."""
    parts = [getattr(model, n, None) for n in ("_compile_metrics", "_compile_loss", "optimizer")]
    return all(part is None or part.built for part in [*all_layers(model), *parts])


def supports_jit(model: Any) -> bool:
    """Whether Keras would compile a model's steps if nothing is said about it."""
    return all(layer.supports_jit for layer in all_layers(model))


def compile_arguments(model: Any) -> dict[str, Any]:
    """What ``compile`` was given: the objects themselves, and not their configurations."""
    return dict(model._compile_config.config)


def functional_class() -> type:
    """What ``keras.Model(inputs, outputs)`` makes."""
    from keras.src.models.functional import Functional

    return Functional


def graph_calls(model: Any) -> list[tuple[Any, list[Any], list[Any]]]:
    """The calls of layers that a graph of layers consists of: layer, tensors in, tensors out."""
    found: dict[int, tuple[Any, list[Any], list[Any]]] = {}
    waiting = list(model.outputs)
    while waiting:
        layer, index, _ = waiting.pop()._keras_history
        node = layer._inbound_nodes[index]
        if id(node) not in found:
            found[id(node)] = layer, list(node.input_tensors), list(node.output_tensors)
            waiting += node.input_tensors
    return list(found.values())


def global_state() -> dict[str, Any]:
    """Name -> object that holds a part of Keras' global state, one for each thread."""
    from keras.src.backend.common import global_state

    return {name: v for name, v in vars(global_state).items() if isinstance(v, threading.local)}


def set_global_state(state: dict[str, Any]) -> None:
    """Puts objects from ``global_state`` or ``new_global_state`` into place, for all threads."""
    from keras.src.backend.common import global_state

    for name, value in state.items():
        setattr(global_state, name, value)


def settings() -> dict[str, dict[str, Any]]:
    """Copies of this thread's global state, without numbers of names and seeds."""
    return {
        name: {k: _copied(v) for k, v in vars(local).items() if k not in _FRESH}
        for name, local in global_state().items()
    }


def new_global_state(settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Objects for ``set_global_state`` that hold these settings in this thread."""
    made = {}
    for name, values in settings.items():
        made[name] = threading.local()
        vars(made[name]).update({key: _copied(value) for key, value in values.items()})
    return made


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, (dict, list)) else value


def _as_it_is(
    trainable_variables: Any = None,
    non_trainable_variables: Any = None,
    optimizer_variables: Any = None,
    metrics_variables: Any = None,
) -> tuple[list[Any], ...]:
    return (
        trainable_variables or [],
        non_trainable_variables or [],
        optimizer_variables or [],
        metrics_variables or [],
    )


class ArrayHolder(Protocol):
    """The place of a variable's array."""

    def get(self) -> Any:
        """The array; None if Keras has taken it away for a while."""
        ...

    def set(self, value: Any) -> None:
        """Replaces the array."""
        ...


#: Class of variables -> the same class, but its arrays are in cells.
_BOUND: dict[type, type] = {}
_CELL = "_paceline_cell"


def bind(variable: Any, cell: ArrayHolder) -> None:
    """Makes a variable take its array from a cell from now on; its present array is dropped."""
    cls = type(variable)
    if cls not in _BOUND.values():
        if cls not in _BOUND:
            _BOUND[cls] = type(cls.__name__, (cls,), {VALUE: property(_get, _set)})
        variable.__class__ = _BOUND[cls]
    vars(variable).pop(VALUE, None)
    vars(variable)[_CELL] = cell


def value_of(variable: Any) -> Any:
    """The array of a variable, also while Keras has tracers stand for arrays; None without one."""
    return getattr(variable, VALUE)


def is_bound(variable: Any) -> bool:
    """Whether a variable takes its array from a cell."""
    return _CELL in vars(variable)


@contextmanager
def bound(cells: Sequence[tuple[Any, ArrayHolder]]) -> Iterator[None]:
    """A block in which variables take their arrays from cells; they keep their own meanwhile."""
    before = [(variable, type(variable), _place(variable)) for variable, _ in cells]
    try:
        for variable, cell in cells:
            bind(variable, cell)
        yield
    finally:
        for variable, cls, place in before:
            variable.__class__ = cls
            vars(variable).pop(_CELL, None)
            vars(variable).update(place)


def _place(variable: Any) -> dict[str, Any]:
    """The array of a variable, or the cell that it is bound to, by the name of the attribute."""
    return {key: value for key, value in vars(variable).items() if key in (VALUE, _CELL)}


@contextmanager
def emptied(variables: Sequence[Any]) -> Iterator[None]:
    """A block in which variables have no value, as while ``fit`` runs a step."""
    # A cell is neither read, which fetches the array from a slot, nor written.
    cells = [(variable, _Empty()) for variable in variables if is_bound(variable)]
    with bound(cells):
        before = [getattr(variable, VALUE) for variable in variables]
        try:
            for variable in variables:
                setattr(variable, VALUE, None)
            yield
        finally:
            for variable, value in zip(variables, before, strict=True):
                setattr(variable, VALUE, value)


class _Empty:
    """The place of no array."""

    _value: Any = None

    def get(self) -> Any:
        return self._value

    def set(self, value: Any) -> None:
        self._value = value


def _get(variable: Any) -> Any:
    return vars(variable)[_CELL].get()


def _set(variable: Any, value: Any) -> None:
    vars(variable)[_CELL].set(value)


@contextmanager
def gradients_forgotten() -> Iterator[None]:
    """A block after which TensorFlow forgets the gradients that functions registered in it.

    Each function that Keras traces registers gradients under new names, in a table that never
    shrinks. They hold the function's graph, megabytes for each model.
    """
    registry = sys.modules.get("tensorflow.python.framework.ops")
    table: Any = getattr(getattr(registry, "gradient_registry", None), "_registry", None)
    before = set(table or ())
    try:
        yield
    finally:
        for name in [name for name in table or () if name not in before]:
            del table[name]


@contextmanager
def fresh_names() -> Iterator[None]:
    """A block in which automatic layer names start over; after it they continue where they were."""
    with _kept("object_name_uids") as state:
        if state is not None:
            state.set_global_attribute("object_name_uids", None)
        yield


@contextmanager
def seed_state_kept() -> Iterator[None]:
    """A block after which Keras' own random state is as it was before."""
    with _kept("global_random_seed", "global_seed_generator"):
        yield


@contextmanager
def seed_state_from(seed: int) -> Iterator[None]:
    """A block in which Keras' own random state begins from a seed; afterwards it is as before."""
    with _kept("global_random_seed", "global_seed_generator") as state:
        if state is not None:
            state.set_global_attribute("global_random_seed", seed)
            state.set_global_attribute("global_seed_generator", None)
        yield


def choose_comparison(callback: Any) -> None:
    """Has a callback know whether less of its log is better; Keras does it when an epoch ends."""
    choose = getattr(callback, "_set_monitor_op", None)  # Keras 3.10 does it at once
    if choose is not None and callback.monitor_op is None:
        with suppress(ValueError):  # a metric of the user's own that is not built yet
            choose()


def seed_state() -> Any:
    """A copy of the state of Keras' own generator of seeds, u32[2]; None if it has none yet."""
    with _kept() as state:
        generator = state and state.get_global_attribute("global_seed_generator")
    return None if generator is None else generator.state.numpy().copy()


def set_seed_state(value: Any) -> None:
    """Puts a state that ``seed_state`` has returned into Keras' own generator of seeds."""
    from keras.src.random.seed_generator import global_seed_generator

    global_seed_generator().state.assign(value)


@contextmanager
def _kept(*names: str) -> Iterator[Any]:
    try:
        from keras.src.backend.common import global_state
    except ImportError:  # a later Keras keeps it elsewhere: names then differ between trials
        yield None
        return
    before = {name: global_state.get_global_attribute(name) for name in names}
    try:
        yield global_state
    finally:
        for name, value in before.items():
            global_state.set_global_attribute(name, value)


class RefCountedPatch:
    """A change of another library: made for the first of its users, unmade after the last one.

    If ``install`` raises, the user does not count.
    """

    def __init__(self, install: Callable[[], None], remove: Callable[[], None]) -> None:
        self._install, self._remove = install, remove
        self._lock = threading.Lock()
        self._n_users = 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A block that uses the change; blocks may overlap, in one thread and in several."""
        with self._lock:
            if self._n_users == 0:
                self._install()
            self._n_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                if self._n_users == 0:
                    self._remove()

    @contextmanager
    def applied_in_thread(self, here: threading.local, name: str, value: Any) -> Iterator[None]:
        """The same, with a value by which the change knows this thread; blocks may be nested."""
        before = getattr(here, name, None)
        with self.applied():
            setattr(here, name, value)
            try:
                yield
            finally:
                setattr(here, name, before)


class SharedChange(RefCountedPatch):
    """The same, of a function that changes something, yields, and changes it back."""

    def __init__(self, change: Callable[[], Iterator[None]]) -> None:
        made = ExitStack()
        super().__init__(lambda: made.enter_context(contextmanager(change)()), made.close)


_here = threading.local()
_adapter_before: Any = None


def batches_through(function: Callable[[Any], Any]) -> AbstractContextManager[None]:
    """A block in which this thread's ``fit`` and its like on JAX take batches from a function.

    It is given a batch of NumPy arrays before JAX is, and returns one.
    """
    return _adapter_patch.applied_in_thread(_here, "function", function)


def _hook_adapters() -> None:
    global _adapter_before
    from keras.src.trainers import data_adapters

    _adapter_before = original = data_adapters.get_data_adapter

    @functools.wraps(original)
    def adapter_of(*args: Any, **kwargs: Any) -> Any:
        adapter: Any = original(*args, **kwargs)
        function = getattr(_here, "function", None)
        if function is not None:
            read = adapter.get_jax_iterator
            adapter.get_jax_iterator = lambda: map(function, read())
        return adapter

    data_adapters.get_data_adapter = adapter_of


def _unhook_adapters() -> None:
    from keras.src.trainers import data_adapters

    data_adapters.get_data_adapter = _adapter_before


_adapter_patch = RefCountedPatch(_hook_adapters, _unhook_adapters)
