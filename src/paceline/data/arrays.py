"""Arrays to train on: checked once, kept on the device, gathered into batches by index.

Notation
    N: examples. B: examples per trial and step. A data set is what Keras hands a step: ``(x,)``,
    ``(x, y)`` or ``(x, y, sample_weight)``. Each part is a nest (lists, tuples and dicts) of arrays
    [N, ...].
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
import keras
import numpy as np

from paceline.data.refusals import (
    is_text,
    refuse_columns,
    refuse_masked,
    refuse_path,
    refuse_values,
    trains_text,
)
from paceline.errors import DataError, UsageError


class NotArrays(Exception):
    """The data are not a nest of arrays: only Keras' ``fit`` can read them."""

    #: Where batches of a generator have been read: a generator that yields these again, and then
    #: the others.
    unread: Any = None


#: What integers are on the device that need more than 32 bits, as TensorFlow casts them.
FLOAT = np.dtype(np.float32)
#: Where the integer of an array is that is farthest from zero (``x['a'], column 'ms',``); itself.
Wide = tuple[str, int]
#: Bytes of an array that is made of a sparse matrix, at most.
_MOST_DENSE = 2**30
#: Arrays that are named one by one in a message, at most.
_NAMED = 8


@dataclass(frozen=True, eq=False)
class ArrayData:
    """A data set in host memory."""

    # ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)``, nests of NumPy arrays [N, ...], floats in
    # Keras' floatx.
    inputs: tuple[Any, ...]
    n: int  # N
    # Whether a step gets ``(x,)`` if there is only x, as data sets yield it; else x itself, as
    # ``fit(x)`` does.
    wrapped: bool = False
    # The arrays, by leaf number, that are floats on the device: their integers have over 32 bits.
    wide: Mapping[int, Wide] = field(default_factory=dict)
    _ends: dict[int, np.ndarray] = field(default_factory=dict, init=False)

    def batch_shapes(self, size: int) -> Any:
        """Shapes and dtypes of a batch of ``size`` examples, a nest of [size, ...]."""
        return jax.tree.map(
            lambda a, dtype: jax.ShapeDtypeStruct((size, *a.shape[1:]), dtype),
            self.inputs,
            self._dtypes(),
        )

    def step_shapes(self, size: int) -> Any:
        """As ``batch_shapes``, in the form in which ``fit`` hands the batch to a step."""
        return step_form(self.batch_shapes(size), wrapped=self.wrapped)

    def on_device(self, *, there: dict[int, Any] | None = None, sharding: Any = None) -> Any:
        """The nest ``inputs`` with device arrays [N, ...]; uint8 images stay uint8.

        ``there``: arrays that are already on the device, by the ``id`` of the array on the host.
        They are not sent again. New ones are added. ``sharding``: the devices that the data go to;
        None: the default one.
        """
        there = {} if there is None else there

        def put(array: np.ndarray, dtype: np.dtype) -> Any:
            if id(array) not in there:
                # Cast on the host: a cast on the device would be one more program to compile.
                there[id(array)] = jax.device_put(array.astype(dtype, copy=False), sharding)
            return there[id(array)]

        return jax.tree.map(put, self.inputs, self._dtypes())

    def _dtypes(self) -> Any:
        """The nest ``inputs`` with the dtype of each array on the device."""
        leaves, nest = jax.tree.flatten(self.inputs)
        dtypes = [FLOAT if i in self.wide else device_dtype(a) for i, a in enumerate(leaves)]
        return jax.tree.unflatten(nest, dtypes)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.nbytes_beside(None)

    def nbytes_beside(self, other: Any) -> int:
        """Bytes on the device of the arrays that ``other``, a data set or None, does not hold."""
        known = {id(array) for array in jax.tree.leaves(getattr(other, "inputs", ()))}
        sent = (array for array in jax.tree.leaves(self.inputs) if id(array) not in known)
        return sum(array.size * np.dtype(device_dtype(array)).itemsize for array in sent)

    def digest(self) -> str:
        """16 hexadecimal digits that tell these data from others.

        They follow from shapes, types and at most 320 examples: reading all of a large file would
        take minutes.
        """
        rows = sorted({*range(min(64, self.n)), *np.linspace(0, self.n - 1, 256, dtype=int)})
        found = hashlib.sha256(str(jax.tree.structure(self.inputs)).encode())
        for array in jax.tree.leaves(self.inputs):
            found.update(f"{array.shape}{array.dtype}".encode())
            found.update(np.ascontiguousarray(array[rows]).tobytes())
        return found.hexdigest()[:16]

    def ends(self, leaf: int) -> np.ndarray:
        """The smallest and the largest numbers in each place of an array, by leaf: [2, ...]."""
        if leaf not in self._ends:
            self._ends[leaf] = ends_of(jax.tree.leaves(self.inputs)[leaf])
        return self._ends[leaf]

    def slice(self, start: int, stop: int) -> ArrayData:
        """Examples from ``start`` up to ``stop``, as views of these arrays [stop - start, ...]."""
        parts = jax.tree.map(lambda a: a[start:stop], self.inputs)
        return replace(self, inputs=parts, n=stop - start)


def step_form(batch: tuple[Any, ...], *, wrapped: bool) -> Any:
    """A batch as a step sees it: where x is all there is, x itself unless it is wrapped."""
    return batch if wrapped else keras.utils.pack_x_y_sample_weight(*batch)


def prepare(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    class_weight: Mapping[int, float] | None = None,
    *,
    allow_nan: bool = False,
    what: str = "training data",
) -> ArrayData:
    """Arrays as Keras' ``fit`` would read them.

    ``x`` and ``y`` are arrays [N, ...] or nests of them; pandas objects are taken by their values.
    ``sample_weight``: one weight per example, [N], or one array per output. ``class_weight``:
    class index -> weight, for a single target of integer or one-hot classes. ``allow_nan``: whether
    NaN and infinity are accepted (models that mask them). ``what``: name of the data in errors.

    Raises NotArrays if x is a dataset, a generator or something else without arrays. Raises
    DataError if lengths differ, the data are empty, or numbers are not finite.
    """
    given = (x, y, sample_weight)
    x = _arrays(x, "x", what)
    y = None if y is None else _arrays(y, "y", what)
    if class_weight is not None:
        if sample_weight is not None:
            raise DataError(
                "got both class_weight and sample_weight, but Keras takes only one of them. "
                "Multiply sample_weight by the class weights."
            )
        sample_weight = class_weights(y, class_weight)
    elif sample_weight is not None:
        if y is None:
            raise DataError(
                f"{what}: sample_weight needs targets, but there is no y. Pass y, or leave "
                "sample_weight out."
            )
        try:
            sample_weight = _arrays(sample_weight, "sample_weight", what)
        except NotArrays as reason:
            raise DataError(
                f"{what}: sample_weight must be an array [examples], or one for each output, but "
                f"{reason}. Pass a weight of each class as class_weight."
            ) from None
        if not isinstance(sample_weight, (list, tuple, dict)) and isinstance(
            y, (list, tuple, dict)
        ):
            shared = sample_weight
            sample_weight = jax.tree.map(lambda _: shared, y)
    inputs = _pack(x, y, sample_weight)
    n = _common_length(inputs, what)
    for name, part in (("y", y), ("sample_weight", sample_weight)):
        if any(leaf.dtype.kind == "c" for leaf in jax.tree.leaves(part)):
            raise DataError(
                f"{what}: {name} must hold real numbers, got complex ones. Pass the real and the "
                "imaginary part as columns."
            )
    if not allow_nan:
        for name, part in zip(("x", "y", "sample_weight"), inputs, strict=False):
            _check_finite(name, part, what)
    return ArrayData(inputs, n, wide=find_wide(inputs, given))


def split(data: ArrayData, fraction: float) -> tuple[ArrayData, ArrayData]:
    """The training data, and as validation data the last ``fraction`` of them, as in Keras."""
    if not isinstance(fraction, (int, float, np.number)) or not 0 < fraction < 1:
        raise UsageError(f"validation_split must be between 0 and 1, got {fraction!r}.")
    at = math.floor(data.n * (1.0 - fraction))
    if at in (0, data.n):
        raise DataError(
            f"validation_split: {fraction} of {data.n} examples leaves one part empty. Pass more "
            "data or another fraction."
        )
    return data.slice(0, at), data.slice(at, data.n)


def device_dtype(array: np.ndarray) -> np.dtype:
    """The dtype of an array on the device: in its byte order, and with 32 bits in place of 64.

    JAX keeps 64 bits only if it is told to.
    """
    return jax.dtypes.canonicalize_dtype(native_dtype(array))


def native_dtype(array: np.ndarray) -> np.dtype:
    """The dtype of an array in this machine's byte order: files may have the other one."""
    return array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")


def in_native_order(batch: Any) -> Any:
    """A nest whose arrays have this machine's byte order; others are copied."""

    def native(array: Any) -> Any:
        other = isinstance(array, np.ndarray) and not array.dtype.isnative
        return array.astype(native_dtype(array)) if other else array

    return jax.tree.map(native, batch)


def beyond(array: Any) -> int | None:
    """The integer farthest from zero of an array that JAX would wrap around; None: it would not."""
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu" or not array.size:
        return None
    kept = device_dtype(array)
    if kept.itemsize == array.dtype.itemsize or keras.backend.backend() != "jax":
        return None
    ends, limits = (int(array.min()), int(array.max())), np.iinfo(kept)
    return None if limits.min <= ends[0] and ends[1] <= limits.max else max(ends, key=abs)


def ends_of(array: np.ndarray) -> np.ndarray:
    """The smallest and the largest numbers over all examples [N, ...], NaN apart: [2, ...]."""
    low, high = (np.fmin, np.fmax) if array.dtype.kind in "fV" else (np.minimum, np.maximum)
    with np.errstate(invalid="ignore"):
        return np.stack([low.reduce(array, axis=0), high.reduce(array, axis=0)])


def find_wide(parts: tuple[Any, ...], given: tuple[Any, ...] = ()) -> dict[int, Wide]:
    """The arrays of ``(x,)``, ``(x, y)`` or ``(x, y, sample_weight)`` that JAX would wrap around.

    ``given`` are the same as the user gave them, for the names of columns.
    """
    values = [beyond(array) for array in jax.tree.leaves(parts)]
    found: dict[int, Wide] = {}
    if not any(values):  # as for nearly all data, batch by batch
        return found
    paths = jax.tree_util.tree_leaves_with_path(parts)
    for number, (value, (path, array)) in enumerate(zip(values, paths, strict=True)):
        if value is None:
            continue
        where, source = ("x", "y", "sample_weight")[path[0].idx], cast(Any, given)
        for step in path:
            with suppress(LookupError, TypeError):
                source = source[getattr(step, "idx", getattr(step, "key", None))]
        where += jax.tree_util.keystr(path[1:])
        columns = getattr(source, "columns", range(array.shape[-1] if array.ndim > 1 else 1))
        if len(columns) > 1:
            at = np.unravel_index(np.argmax(array == value), array.shape)[-1]
            where += f", column {columns[at]!r},"
        found[number] = where, value
    return found


def shapes_to_json(batch: Any) -> Any:
    """The shapes and dtypes of a nest as JSON values, in which tuples and lists differ."""
    if isinstance(batch, Mapping):
        return {"dict": {key: shapes_to_json(value) for key, value in batch.items()}}
    if isinstance(batch, (list, tuple)):
        return {type(batch).__name__: [shapes_to_json(value) for value in batch]}
    return {"shape": list(batch.shape), "dtype": str(batch.dtype)}


def shapes_from_json(value: Any) -> Any:
    """The nest of shapes and dtypes of which ``shapes_to_json`` made these JSON values."""
    if "dict" in value:
        return {key: shapes_from_json(part) for key, part in value["dict"].items()}
    for name, kind in (("list", list), ("tuple", tuple)):
        if name in value:
            return kind(shapes_from_json(part) for part in value[name])
    return jax.ShapeDtypeStruct(tuple(value["shape"]), np.dtype(value["dtype"]))


def epoch_order(seed: int, epoch: int, n: int, shuffle: bool) -> np.ndarray:
    """The order of one trial's examples in one epoch: i32[N].

    It follows from the trial's seed and the epoch (from 0) alone, so it is the same in every slot
    and every pack.
    """
    if not shuffle:
        return np.arange(n, dtype=np.int32)
    return np.random.default_rng([seed, epoch]).permutation(n).astype(np.int32)


def _arrays(value: Any, name: str, what: str) -> Any:
    if isinstance(value, (list, tuple)) and not any(map(_is_array, jax.tree.leaves(value))):
        array = _table(value)
        if array is not None and array.dtype.kind in "biuf":
            return _leaf(array, name, what)
        leaves = jax.tree.leaves(value, is_leaf=lambda leaf: leaf is None)
        if not all(isinstance(leaf, (int, float)) for leaf in leaves):
            _check_values(np.array(value, dtype=object), name, what)
    if isinstance(value, (list, tuple)):
        parts = [_arrays(v, f"{name}[{i}]", what) for i, v in enumerate(value)]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, Mapping):
        return {k: _arrays(v, f"{name}[{k!r}]", what) for k, v in value.items()}
    return _leaf(value, name, what)


def _is_array(value: Any) -> bool:
    return hasattr(value, "to_numpy") or (hasattr(value, "shape") and hasattr(value, "dtype"))


def _table(value: Any) -> np.ndarray | None:
    """Python values, nested or not, as one array; None for rows of different lengths."""
    try:
        return np.asarray(value)
    except ValueError:
        return None


def holds_numbers(dtype: np.dtype) -> bool:
    """Whether arrays of a dtype hold numbers: kind V are those of ml_dtypes, and records."""
    return dtype.kind in "biufcV" and dtype.names is None


def _leaf(value: Any, name: str, what: str) -> np.ndarray:
    if isinstance(value, keras.KerasTensor):
        raise DataError(
            f"{what}: {name} must be an array, got a KerasTensor, a symbolic input or output of a "
            "layer. Pass the data. Perhaps two variables have the same name."
        )
    if not _is_array(value):
        refuse_path(value, f"{what}: {name}")
        raise NotArrays(f"{name} is a {type(value).__name__}")
    if isinstance(value, np.memmap) and value.filename is not None:  # None: computed from one
        return _mapped(value, name)
    if is_sparse(value):
        value = _dense(value, name)
    if isinstance(value, np.ma.MaskedArray):
        refuse_masked(f"{what}: {name}")
    array = _values(value) if hasattr(value, "to_numpy") else np.asarray(value)
    if not holds_numbers(array.dtype):
        _check_values(value if hasattr(value, "to_numpy") else array, name, what)
        raise NotArrays(f"{name} holds {array.dtype} values")
    if array.ndim == 1 and hasattr(value, "to_frame"):
        array = array[:, None]  # a pandas Series is a column to Keras
    if array.ndim == 0:
        raise DataError(
            f"{what}: {name} must have the examples along its first axis, got a single number."
        )
    floatx = keras.config.floatx()
    return array.astype(floatx if array.dtype.kind == "f" else native_dtype(array), copy=False)


def _check_values(values: Any, name: str, what: str) -> None:
    """Refuses values other than numbers, unless they are text that Keras' backend may train on."""
    trains = trains_text() and not name.startswith("y")
    if hasattr(values, "columns"):
        if not (trains and is_text(values.to_numpy())):
            refuse_columns(values, name, what)
    elif not (trains and is_text(values)):
        refuse_values(values, name, what)


def is_sparse(value: Any) -> bool:
    """Whether a value is one of SciPy's sparse matrices or arrays."""
    return any(cls.__module__.startswith("scipy.sparse") for cls in type(value).__mro__)


def _dense(value: Any, name: str) -> np.ndarray:
    """A sparse matrix as an array, in Keras' floatx where it holds floats.

    Raises NotArrays where it would be too large: ``fit`` reads sparse batches.
    """
    dtype = np.dtype(keras.config.floatx()) if value.dtype.kind == "f" else value.dtype
    nbytes = math.prod(value.shape) * dtype.itemsize
    if nbytes > _MOST_DENSE:
        raise NotArrays(f"{name} is sparse, and would take {nbytes / 2**30:.1f} GiB without")
    return value.astype(dtype).toarray()


def _values(value: Any) -> np.ndarray:
    """The values of a pandas object; numbers and truth values in one data frame become floats."""
    array = value.to_numpy()
    if array.dtype.kind == "O" and hasattr(value, "columns"):
        if all(getattr(dtype, "kind", "O") in "biuf" for dtype in value.dtypes):
            return value.to_numpy(dtype=keras.config.floatx(), na_value=np.nan)
    return array


def _mapped(array: np.memmap, name: str) -> np.memmap:
    """An array in a file, unchanged: a copy might be larger than memory.

    Raises NotArrays where it had to be copied, because its dtype is another one on the device.
    """
    if array.dtype.kind == "f" and device_dtype(array) != np.dtype(keras.config.floatx()):
        floatx = keras.config.floatx()
        raise NotArrays(f"{name} is a file of {array.dtype} values, but Keras' floatx is {floatx}")
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise NotArrays(f"{name} holds {array.dtype} values")
    return array


def _pack(x: Any, y: Any, sample_weight: Any) -> tuple[Any, ...]:
    if y is None:
        return (x,)
    if sample_weight is None:
        return (x, y)
    return (x, y, sample_weight)


def _common_length(inputs: tuple[Any, ...], what: str) -> int:
    parts: dict[str, Any] = dict(zip(("x", "y", "sample_weight"), inputs, strict=False))
    lengths: dict[str, dict[str, int]] = {}  # name of a part -> name of an array -> its examples
    for name, part in parts.items():
        paths = jax.tree_util.tree_leaves_with_path(part)
        lengths[name] = {name + jax.tree_util.keystr(at): leaf.shape[0] for at, leaf in paths}
    all_lengths = {n for each in lengths.values() for n in each.values()}
    if not all_lengths:
        raise DataError(f"{what} contains no arrays.")
    if len(all_lengths) > 1:
        _check_list_of_examples(parts, lengths, what)
        text = ", ".join(_lengths_text(name, each) for name, each in lengths.items())
        raise DataError(f"{what}: all arrays must have the same number of examples, but {text}.")
    (n,) = all_lengths
    if n == 0:
        raise DataError(f"{what} contains no examples.")
    return n


def _lengths_text(name: str, lengths: Mapping[str, int]) -> str:
    if len(lengths) <= _NAMED:
        return ", ".join(f"{each} has {n}" for each, n in lengths.items())
    low, high = (end(lengths, key=lambda each: lengths[each]) for end in (min, max))
    span = (
        f"{lengths[low]:,}"
        if lengths[low] == lengths[high]
        else (f"{lengths[low]:,} ({low}) to {lengths[high]:,} ({high})")
    )
    return f"the {len(lengths):,} arrays of {name} have {span}"


def _check_list_of_examples(
    parts: Mapping[str, Any], lengths: Mapping[str, Mapping[str, int]], what: str
) -> None:
    """Refuses a list whose arrays are examples: Keras takes them for inputs of the model."""
    entries = [
        (name, other, where, part)
        for name, other in (("x", "y"), ("y", "x"))
        for where, part in (
            [(f"{name}[{key!r}]", value) for key, value in parts[name].items()]
            if isinstance(parts.get(name), Mapping)
            else [(name, parts.get(name))]
        )
    ]
    for name, other, where, part in entries:
        prefix = "" if where == name else where
        own = lengths.get(name, {}).items()
        each = {n for at, n in own if at.startswith(prefix)}
        n = len(part) if isinstance(part, (list, tuple)) else 0
        # As many arrays as there are examples in the other part, or more than a model has inputs.
        as_many = set(lengths.get(other, {}).values()) == {n}
        if n < 2 or not (as_many or (n > _NAMED and len(each) > 1)):
            continue
        if len(each) > 1:
            how = f"Make them equally long: keras.utils.pad_sequences({where}, padding='post')."
            sizes = f"{min(each):,} to {max(each):,}"
        else:
            how, sizes = f"Join them: np.stack({where}).", f"{min(each):,}"
        raise DataError(
            f"{what}: {where} must be one array [examples, ...], got a list of {n:,} arrays of "
            f"length {sizes}. Keras would treat each as a separate input. {how}"
        )


def _check_finite(name: str, part: Any, what: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(part):
        # A file may be larger than memory: it is read as it is trained on, and not before.
        if not jax.numpy.issubdtype(leaf.dtype, np.floating) or isinstance(leaf, np.memmap):
            continue
        # A sum is not finite when an element is not, and costs no array of the data's size.
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(leaf.sum(dtype=np.float64)):
                continue
        bad = np.argwhere(~np.isfinite(leaf))
        if len(bad):
            where = name + jax.tree_util.keystr(path)
            raise DataError(
                f"{what}: {where} holds {len(bad)} values that are NaN or infinite, the first in "
                f"example {int(bad[0][0])}. Clean the data, or pass allow_nan=True if the model "
                "masks them."
            )


def class_weights(y: Any, class_weight: Mapping[int, float]) -> np.ndarray:
    """One weight per example, as Keras makes them of class weights: float[N].

    ``y``: targets, classes [N] or [N, ..., 1], or one-hot rows [N, classes]. ``class_weight``:
    class -> weight; the weight of other classes is 1.
    """
    if not isinstance(y, np.ndarray):
        raise DataError(
            "class_weight needs a single target array. Use sample_weight for several outputs."
        )
    classes = y
    if y.ndim > 1 and y.shape[-1] != 1:
        classes = y.argmax(-1)
        if beyond := [index for index in class_weight if index >= y.shape[-1]]:
            raise DataError(
                f"class_weight: y has {y.shape[-1]} columns, classes 0 to {y.shape[-1] - 1}, but "
                f"there is a weight for class {beyond[0]}."
            )
    elif y.ndim > 1:
        classes = y[..., 0]
    if classes.size != len(y):
        raise DataError(
            f"class_weight: y of shape {y.shape} has several classes in each example. Pass "
            "sample_weight of that shape instead."
        )
    classes = np.round(classes).astype("int64")
    weights = np.ones(len(y), dtype=keras.config.floatx())
    for index, weight in class_weight.items():
        weights[classes.reshape(len(y), -1)[:, 0] == int(index)] = weight
    return weights
