"""A compiled model, sent as it is to the session's process, whose Keras runs on JAX.

Keras' own format needs a ``get_config`` of every class of the user. It forgets what such a method
leaves out, and cannot hold a loss that is a closure. So a model is sent object by object: the
attributes of each, variables and tensors as arrays, the user's classes and functions by value.
Keras' own classes go by name, and are those of JAX in the other process.

For this, attributes are read that Keras does not publish. This was read for Keras 3.10 to 3.15:

- ``Tracker.config`` and ``stored_ids``: which of an object's attributes are variables, layers and
  so on. Its functions are of a backend, and its ids of a process.
- ``Operation._inbound_nodes`` and ``_outbound_nodes``: the graph of a functional model. They are
  sent apart, else each layer would be pickled within the layer after it.
- ``Optimizer._trainable_variables_indices``, whose keys are ids.
- What a backend adds to objects: ``_OF_BACKENDS``.

If anything else belongs to a backend, sending fails, and the model trains in the session. After
reading, the variables are compared with those that were sent.
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import jax
import keras
import numpy as np

from paceline.executor.session.user_modules import send_classes_anew, sent_by_value
from paceline.program import keras_private
from paceline.program.canonical import Unpackable

#: Packages of backends: what they make is sent as arrays, or not at all.
_BACKENDS = ("tensorflow", "torch", "torch_xla")
#: Attributes that a backend's classes add to Keras' objects, or that another process makes itself.
_OF_BACKENDS = frozenset(
    "train_function test_function predict_function unrolled_steps_per_execution "
    "_distribute_strategy _distribution_strategy _distribute_reduction_method _tracked "
    "_saved_model_inputs_spec _saved_model_arg_spec _obj_reference_counts_dict _torch_params "
    "_inbound_nodes _outbound_nodes _losses _loss_ids _losses_override".split()
)
#: What the names of attributes begin with that TensorFlow gives to what it tracks.
_OF_TRACKABLES = tuple(
    f"_self_{name}"
    for name in (
        "setattr_tracking",
        "unconditional_",
        "update_uid",
        "name_based_restores",
        "saveable_object_factories",
    )
)
#: Attributes of a variable that its new one has of its own.
_MADE_ANEW = ("_value", "_initializer", "_dtype")
_OBJECTS = (keras.Operation, keras.metrics.Metric, keras.optimizers.Optimizer)


@dataclass(frozen=True)
class SentModel:
    """A model as it is sent; ``read`` makes it again, in a process on JAX."""

    pickled: bytes
    buffers: list[Any]  # the arrays in it

    @classmethod
    def of(cls, model: Any) -> SentModel:
        """Of a compiled model of this process, as it is now."""
        buffers: list[pickle.PickleBuffer] = []
        written = io.BytesIO()
        try:
            with sent_by_value():
                send_classes_anew()
                pickler = _ModelPickler(written, protocol=5, buffer_callback=buffers.append)
                pickler.dump((model, _described(model)))
                pickler.dump(list(pickler.graph()))
        except Unpackable:
            raise
        except Exception as error:  # an object may raise anything when it is pickled
            raise Unpackable(
                f"its model cannot be sent to another process: {type(error).__name__}: {error}"
            ) from error
        return cls(written.getvalue(), buffers)

    def read(self) -> tuple[Any, list[Any]]:
        """The model, in this process, and all variables that came with it."""
        _read.clear()
        unpickler = pickle.Unpickler(io.BytesIO(self.pickled), buffers=self.buffers)
        model, described = unpickler.load()
        for operation, inbound, outbound in unpickler.load():
            operation.__dict__.update(_inbound_nodes=inbound, _outbound_nodes=outbound)
        variables = [each for each in _read if isinstance(each, keras.Variable)]
        for each in _read:
            _with_ids_of_here(each)
        _read.clear()
        if _described(model) != described:
            raise Unpackable("the model has other variables after it was sent")
        return model, variables


def _described(model: Any) -> list[tuple[str, tuple[int, ...], bool]]:
    """What is known of a model's variables, in order."""
    optimizer = getattr(model, "optimizer", None)
    own = [] if optimizer is None else optimizer.variables
    return [
        (each.path, tuple(each.shape), bool(each.trainable))
        for each in (*model.trainable_variables, *model.non_trainable_variables, *own)
    ]


class _ModelPickler(cloudpickle.Pickler):
    """Pickles Keras' objects attribute by attribute."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._operations: list[Any] = []
        self._nodes: dict[int, Any] = {}

    def graph(self) -> Iterator[tuple[Any, list[Any], list[Any]]]:
        """The nodes of all operations that were pickled: (operation, inbound, outbound).

        Models that share a layer with this one have nodes of their own there, which stay here.
        """
        for each in self._operations:
            inbound = [node if id(node) in self._nodes else None for node in each._inbound_nodes]
            while inbound and inbound[-1] is None:
                inbound.pop()
            yield each, inbound, [node for node in each._outbound_nodes if id(node) in self._nodes]

    def reducer_override(self, obj: Any) -> Any:
        """See ``pickle.Pickler``."""
        kind = type(obj)
        if isinstance(obj, keras.Variable):
            return _variable, _facts(obj), _own(obj, *_MADE_ANEW), None, None, _put
        if isinstance(obj, _OBJECTS) or _is_saveable(kind):
            if isinstance(obj, keras.Operation):
                self._operations.append(obj)
            return _new, (_class_of_keras(kind),), _state(obj), None, None, _put_object
        if isinstance(obj, keras.KerasTensor):
            history = getattr(obj, "_keras_history", None)
            state = {**_own(obj), "_keras_history": history and list(history)}
            return _new, (kind,), state, None, None, _put_tensor
        package = kind.__module__.partition(".")[0]
        if package in _BACKENDS and not isinstance(obj, type | types.ModuleType):
            if isinstance(obj, list):  # TensorFlow wraps the containers of what it tracks
                return list, (), None, iter(obj)
            if isinstance(obj, Mapping):
                return dict, (), None, None, iter(obj.items())
            return _tensor, (_array(obj),)
        if kind.__module__.startswith(keras_private.OWN):
            if (reduced := self._reduced(obj, kind)) is not None:
                return reduced
        elif isinstance(obj, types.ModuleType | types.FunctionType | type):
            name = obj.__name__ if isinstance(obj, types.ModuleType) else obj.__module__
            if f"{name}.".startswith(_of_backend()):
                raise Unpackable(f"its model holds {obj!r}, which is of this backend alone")
        return super().reducer_override(obj)

    def _reduced(self, obj: Any, kind: type) -> Any:
        """Of objects of Keras' that are not in its public interface; None: as any object."""
        name = kind.__name__
        if name == "Node":
            self._nodes[id(obj)] = obj
        elif name == "Tracker":
            stores = {of: store for of, (_, store) in obj.config.items()}
            state = {**_own(obj, "config", "stored_ids"), "config": stores}
            return _new, (kind,), state, None, None, _put_tracker
        elif name.startswith("Tracked"):
            base = _plain(kind)
            items = list(obj.items() if issubclass(base, dict) else obj)
            return _new, (kind,), (obj.tracker, items), None, None, _fill
        elif name == "DynamicBackend":
            return kind, ()
        elif kind.__module__.startswith(_of_backend()):
            raise Unpackable(f"its model holds a {name}, which is of this backend alone")
        return None


def _of_backend() -> str:
    """What the names of modules begin with that are of this session's backend alone."""
    return f"{keras_private.OWN}backend.{keras.backend.backend()}."


def _is_saveable(kind: type) -> bool:
    """Whether Keras would pickle objects of a class by its own format."""
    return (getattr(kind.__reduce__, "__module__", None) or "").startswith("keras.")


def _class_of_keras(kind: type) -> type:
    """A class, or the one of all backends that a backend puts its own in place of."""
    own = _of_backend()
    if not kind.__module__.startswith(own):
        return kind
    for base in kind.__mro__:
        if base.__module__.startswith(keras_private.OWN) and not base.__module__.startswith(own):
            if base.__name__ == kind.__name__:
                return base
    raise Unpackable(f"its model holds a {kind.__name__}, which is of this backend alone")


def _own(obj: Any, *without: str) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(obj).items()
        if name not in without and not name.startswith(_OF_TRACKABLES)
    }


def _state(obj: Any) -> dict[str, Any]:
    """The attributes of an object of Keras', without those of its backend."""
    state = _own(obj, *_OF_BACKENDS)
    for name in ("build", "quantize"):  # Keras wraps them for each object
        if hasattr(state.get(name), "__wrapped__"):
            del state[name]
    if keras.backend.backend() == "torch" and isinstance(obj, keras.Layer):
        parts: Any = state.get("_modules", {})  # layers that are attributes
        state |= {name: part for name, part in parts.items() if name != "_torch_params"}
        torch: Any = sys.modules["torch"]
        for name in vars(torch.nn.Module()):
            state.pop(name, None)
    if isinstance(obj, keras.Model):
        state["_jit_compile"] = None  # each backend has a choice of its own
        if isinstance(state.get("history"), keras.callbacks.History):
            del state["history"]  # with its model, and its numbers
    return state


def _facts(variable: Any) -> tuple[Any, ...]:
    value = np.asarray(keras.ops.convert_to_numpy(variable.value))
    seeds = variable.name == keras_private.SEED_STATE
    return value, keras.backend.standardize_dtype(variable.dtype), bool(variable.trainable), seeds


def _array(value: Any) -> np.ndarray:
    # What can be assigned may change while the model trains: a tf.Variable, a torch Parameter.
    is_variable = hasattr(value, "assign") or type(value).__name__ == "Parameter"
    if is_variable or not keras.ops.is_tensor(value) or not hasattr(value, "shape"):
        kind = type(value)
        package = kind.__module__.partition(".")[0]
        hint = ". Use a weight of a layer instead" if is_variable else ""
        raise Unpackable(f"its model holds a {package}.{kind.__name__}{hint}")
    try:
        return np.asarray(keras.ops.convert_to_numpy(value))
    except Exception as error:  # a tensor of a graph has no value
        raise Unpackable(f"its model holds a tensor without a value: {value!r}") from error


# -- in the process on JAX -----------------------------------------------------------------------

#: Objects of the model that is being read, whose ids are known once all of it is there.
_read: list[Any] = []


def _new(kind: Any) -> Any:
    return kind.__new__(kind)


def _put(obj: Any, state: dict[str, Any]) -> None:
    obj.__dict__.update(state)


def _variable(value: np.ndarray, dtype: str, trainable: bool, seeds: bool) -> Any:
    if seeds:  # TensorFlow's are of 64 bits
        dtype = str(keras.random.SeedGenerator(0).state.dtype)
    elif (
        value.dtype.kind in "iuf" and (kept := jax.dtypes.canonicalize_dtype(value.dtype)) != dtype
    ):
        if value.dtype.kind == "f":
            raise Unpackable(
                f"the model has {dtype} variables, of which JAX makes {kept}; build it in float32, "
                "or call jax.config.update('jax_enable_x64', True) before"
            )
        if not np.array_equal(value.astype(kept), value):
            raise Unpackable(f"a variable holds integers that {kept} cannot")
        dtype = str(kept)
    made = keras.Variable(value.astype(dtype), dtype=dtype, trainable=trainable)
    _read.append(made)
    return made


def _tensor(value: np.ndarray) -> Any:
    return keras.ops.convert_to_tensor(value)


def _put_object(obj: Any, state: dict[str, Any]) -> None:
    own: dict[str, Any] = obj.__dict__
    own.update(state)
    if isinstance(obj, keras.Layer):
        own.update(_losses=[], _loss_ids=set(), _losses_override=[])
    if isinstance(obj, keras.Operation):
        own.update(_inbound_nodes=[], _outbound_nodes=[])
    if isinstance(obj, keras.Model):
        # What the backend's own part of a model begins with.
        for name, value in vars(keras.Sequential()).items():
            if value is None or isinstance(value, bool | int):
                own.setdefault(name, value)
    _read.append(obj)


def _put_tensor(obj: Any, state: dict[str, Any]) -> None:
    history = state.pop("_keras_history")
    _put(obj, state)
    if history is not None:
        like: Any = keras.Input((1,))
        obj._keras_history = type(like._keras_history)(*history)


def _put_tracker(obj: Any, state: dict[str, Any]) -> None:
    stores = state.pop("config")
    _put(obj, state)
    like = keras.layers.Layer() if "layers" in stores else keras.metrics.Mean()
    config: Any = like._tracker.config
    obj.config = {name: (config[name][0], store) for name, store in stores.items()}
    _read.append(obj)


def _plain(kind: type) -> type:
    return next(base for base in kind.__mro__ if base in (list, OrderedDict, dict, set))


def _fill(obj: Any, state: tuple[Any, list[Any]]) -> None:
    obj.tracker, items = state
    base: Any = _plain(type(obj))
    if base is list:
        base.extend(obj, items)
    elif base is set:
        base.update(obj, items)
    else:
        for key, value in items:
            base.__setitem__(obj, key, value)


def _with_ids_of_here(obj: Any) -> None:
    if type(obj).__name__ == "Tracker":
        obj.stored_ids = {name: set(map(id, store)) for name, (_, store) in obj.config.items()}
    indices = vars(obj).get("_trainable_variables_indices")
    if indices is not None:
        found = enumerate(obj._trainable_variables)
        obj._trainable_variables_indices = {obj._var_key(each): i for i, each in found}
