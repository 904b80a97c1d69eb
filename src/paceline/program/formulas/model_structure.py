"""The structure of a stock model: what its steps follow from, read without a trace.

Tracing a small model's train and test step takes three quarters of the time a trial costs before it
trains. Keras' own code, though, can only use what it can reach: the model's attributes, their
attributes, and so on, and a few global settings. If two models differ there only in some
floating-point numbers, their steps differ only in constants that follow from those numbers.
``constant_formulas.py`` finds out how constants follow from numbers.

A ``ModelStructure`` is that graph of objects, split into structure and numbers. A model that
reaches code of the user's (a class, a function, an object of another package) has none, and its
trial is traced. Configurations (``get_config``) would be shorter to read, but leave much out:
rematerialisation, flash attention, variables excluded from weight decay, attributes set later.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import keras
import numpy as np

from paceline.program import jax_compat, keras_private

_CONTAINERS = (list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict)
#: Packages whose classes a stock model may hold, for instance as a dtype. Whole names: anyone may
#: publish a package whose name begins with one of them, as jaxopt does.
_STOCK = frozenset({"builtins", "numpy", "jax", "jaxlib"})
_ADDRESS = re.compile(r"\d{6,}")


@dataclass(frozen=True)
class ModelStructure:
    """What a stock model's steps follow from."""

    structure: str  # digest of everything but the numbers
    # The floating-point numbers within the model, in one fixed order. The values of variables, such
    # as a constant learning rate, are not among them: they are state.
    numbers: tuple[float, ...]
    # Digest of everything but numbers and integers, so that models of several widths have the same.
    skeleton: str
    integers: tuple[int, ...]  # the integers within the model, in one fixed order
    extents: tuple[int, ...]  # which of these are extents of its variables
    # Whether all classes of the model are known to take the same steps at any widths.
    any_width: bool


def structure_of(model: Any) -> ModelStructure | None:
    """The structure of a compiled model, built or not.

    None if its steps may run code that is not Keras' own.
    """
    state = (*model.variables, *model.optimizer.variables, *model.metrics_variables)
    reader = _Reader({id(variable) for variable in state})
    try:
        reader.read(model)
    except _NotStock:
        return None
    digest = hashlib.sha256("\n".join((_context(), *reader.words)).encode())
    skeleton = digest.hexdigest()
    digest.update(repr(reader.integers).encode())
    return ModelStructure(
        digest.hexdigest(),
        tuple(reader.numbers),
        skeleton,
        tuple(reader.integers),
        tuple(reader.extents),
        reader.any_width,
    )


class _NotStock(Exception):
    """The model reaches something that is not Keras' own."""


def _context() -> str:
    """Settings that Keras and JAX read while a step is traced."""
    config = keras.config
    return repr(
        (
            config.floatx(),
            config.epsilon(),
            config.image_data_format(),
            config.dtype_policy().name,
            config.is_flash_attention_enabled(),
            jax_compat.settings(),
        )
    )


class _Reader:
    """One walk over a graph of objects, in an order that follows from the graph alone.

    ``state``: the ids of the variables whose values are inputs of the step.
    """

    def __init__(self, state: set[int]) -> None:
        self.words: list[str] = []
        self.numbers: list[float] = []
        self.integers: list[int] = []
        self.extents: list[int] = []  # the places of extents of variables among the integers
        self.any_width = True
        self._state = state
        self._places: dict[int, int] = {}  # id of an object -> its place in the walk
        self._sets: list[Any] = []
        self._stack: list[Any] = []

    def read(self, root: Any) -> None:
        """Writes down ``root`` and all that it reaches.

        Each word fixes how many parts follow, so that two graphs with the same words and integers
        are the same.
        """
        write, stack, places = self.words.append, self._stack, self._places
        stack.append(root)
        while stack:
            value = stack.pop()
            kind = type(value)
            if kind is int:
                self.integers.append(value)
                write("int")
            elif kind is str or kind is bool or value is None:
                write(repr(value))
            elif kind is float:
                self._number(value, "float")
            elif isinstance(value, (np.generic, bytes, complex)):
                self._scalar(value)
            elif id(value) in places:
                write(f"@{places[id(value)]}")
            else:
                places[id(value)] = len(places)
                self._object(value, kind)
        # Sets have no order of their own, and Keras keeps addresses in some.
        for value in self._sets:
            write(repr(sorted(map(self._label, value))))

    def _number(self, value: float, word: str) -> None:
        self.numbers.append(value)
        self.words.append(word if math.copysign(1.0, value) > 0 else f"-{word}")

    def _scalar(self, value: Any) -> None:
        if isinstance(value, np.floating):
            self._number(float(value), type(value).__name__)
        else:
            self.words.append(f"{type(value).__name__} {value!r}")

    def _object(self, value: Any, kind: type) -> None:
        if isinstance(value, _CONTAINERS):
            self._container(value, kind)
        elif isinstance(value, keras.Variable):
            self._variable(value, kind)
        elif isinstance(value, (np.ndarray, jax.Array)):
            self._array(value)
        elif isinstance(value, keras.initializers.Initializer):
            self.words.append("initializer")  # decides values of variables only
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._parts("method", (value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            self._parts("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, type):
            self.words.append(_stock_name(value))
        elif isinstance(value, types.ModuleType):
            self.words.append(value.__name__)
        elif isinstance(value, re.Pattern):
            self.words.append(repr((value.pattern, value.flags)))
        else:
            name = f"{kind.__module__}.{kind.__qualname__}"
            if name in keras_private.NO_PART_OF_A_STEP:
                self.words.append(name)
            else:
                self._instance(value, name)

    def _parts(self, word: str, parts: Iterable[Any]) -> None:
        parts = list(parts)
        self.words.append(f"{word} {len(parts)}")
        self._stack.extend(reversed(parts))

    def _container(self, value: Any, kind: type) -> None:
        if kind not in _CONTAINERS and not kind.__module__.startswith(keras_private.OWN):
            raise _NotStock(kind)
        if isinstance(value, dict):
            keys = " ".join(map(self._label, value))
            self._parts(f"{kind.__qualname__} {keys}", value.values())
        elif isinstance(value, (set, frozenset)):
            self.words.append(kind.__qualname__)
            self._sets.append(value)
        else:
            self._parts(kind.__qualname__, value)

    def _variable(self, value: Any, kind: type) -> None:
        attributes = {k: v for k, v in vars(value).items() if k != keras_private.VALUE}
        shape = attributes.pop(keras_private.SHAPE, None)
        self._parts(f"{kind.__qualname__} {' '.join(attributes)}", attributes.values())
        if isinstance(shape, tuple) and all(type(extent) is int for extent in shape):
            first = len(self.integers)
            self.extents += range(first, first + len(shape))
            self.integers += shape
            self.words.append(f"shape {len(shape)}")
        else:
            self._stack.append(shape)
        if id(value) in self._state or value.value is None:
            return
        if value.value.shape == () and jax.numpy.issubdtype(value.value.dtype, np.floating):
            self._stack.append(float(value.value))
        else:
            self._array(value.value)

    def _array(self, value: Any) -> None:
        array = np.asarray(value)
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        self.words.append(f"{type(value).__name__} {array.dtype} {array.shape} {digest}")

    def _function(self, value: types.FunctionType) -> None:
        # Its module's real name: functools.wraps would give a user's function Keras' own.
        module = value.__globals__.get("__name__", "")
        if not module.startswith(keras_private.OWN):
            raise _NotStock(value)
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = (*cells, value.__defaults__, value.__kwdefaults__)
        self._parts(f"{module}.{value.__qualname__}", parts)

    def _instance(self, value: Any, name: str) -> None:
        if not name.startswith(keras_private.OWN) or not hasattr(value, "__dict__"):
            raise _NotStock(type(value))
        if isinstance(value, _parts_of_steps()) and not _is_of_any_width(type(value)):
            self.any_width = False
        attributes = vars(value)
        if isinstance(value, keras.random.SeedGenerator):
            # Its state is a variable; no step reads the number that it was made from.
            attributes = {k: v for k, v in attributes.items() if k != keras_private.FIRST_SEED}
        elif isinstance(value, keras.Model):
            # Ours, and the same in every model whose steps are traced.
            attributes = {k: v for k, v in attributes.items() if k not in keras_private.SHARDINGS}
        self._parts(f"{name} {' '.join(attributes)}", attributes.values())

    def _label(self, key: Any) -> str:
        """A set's element or a dict's key as text; an address in it becomes its object's place."""
        if isinstance(key, (str, int, float, bytes, tuple)) or key is None:
            return _ADDRESS.sub(self._place, repr(key))
        if id(key) in self._places:
            return f"@{self._places[id(key)]}"
        raise _NotStock(key)

    def _place(self, address: re.Match[str]) -> str:
        place = self._places.get(int(address[0]))
        return address[0] if place is None else f"@{place}"


def _parts_of_steps() -> tuple[type, ...]:
    """What runs code of its own on arrays whose extents may be widths."""
    return (
        keras.Operation,
        keras.optimizers.Optimizer,
        keras.regularizers.Regularizer,
        keras.constraints.Constraint,
    )


@functools.cache
def _is_of_any_width(kind: type) -> bool:
    """Whether a class of Keras' takes the same steps at any widths of two and more.

    Each of these was read: no operation of theirs is chosen by an extent. An ``einsum`` of three
    arrays chooses its order by them, attention its kernel, Muon a transpose.
    """
    if kind.__module__ == keras_private.OPERATIONS:
        return kind.__name__ in _OPERATIONS
    found = (getattr(keras.layers, name, None) for name in _LAYERS)
    if issubclass(kind, keras.Model):
        return kind.__name__ in ("Functional", "Sequential")
    if issubclass(kind, keras.Operation):
        return kind in found
    if issubclass(kind, keras.optimizers.Optimizer):
        return kind in (getattr(keras.optimizers, name, None) for name in _OPTIMIZERS)
    return kind.__name__ in _PENALTIES


_LAYERS = (
    "InputLayer Dense EinsumDense Embedding Activation Dropout SpatialDropout1D SpatialDropout2D "
    "SpatialDropout3D GaussianNoise GaussianDropout AlphaDropout Masking Identity Rescaling ReLU "
    "LeakyReLU PReLU ELU Softmax BatchNormalization UnitNormalization Flatten Reshape Permute "
    "RepeatVector Add Subtract Multiply Average Maximum Minimum Concatenate Conv1D Conv2D Conv3D "
    "Conv1DTranspose Conv2DTranspose Conv3DTranspose SeparableConv1D SeparableConv2D "
    "DepthwiseConv1D DepthwiseConv2D MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D "
    "AveragePooling2D AveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D "
    "GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D ZeroPadding1D "
    "ZeroPadding2D ZeroPadding3D Cropping1D Cropping2D Cropping3D UpSampling1D UpSampling2D "
    "UpSampling3D RNN SimpleRNN LSTM GRU SimpleRNNCell LSTMCell GRUCell StackedRNNCells "
    "Bidirectional TimeDistributed"
).split()
_OPERATIONS = "Add Subtract Multiply Divide TrueDivide Negative Maximum Minimum NotEqual".split()
_OPTIMIZERS = (
    "SGD Adam AdamW Nadam Adamax Adadelta Adagrad RMSprop Ftrl Lion Lamb LossScaleOptimizer"
).split()
_PENALTIES = "L1 L2 L1L2 MaxNorm MinMaxNorm NonNeg UnitNorm".split()


def _stock_name(value: type) -> str:
    package = value.__module__.partition(".")[0]
    if not value.__module__.startswith(keras_private.OWN) and package not in _STOCK:
        raise _NotStock(value)
    return f"{value.__module__}.{value.__qualname__}"
