"""The data of a call of ``search``, read for one trial: arrays, data sets, or functions of hp.

``DataArguments`` are the user's arguments. ``DataReader`` reads them once for each set of values
that functions of hp ask for (``RecordingHP`` notes these). ``LoadedData`` are the result.
``TrialInputs`` are all inputs of one trial but its model.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from paceline.data.adapters import as_generator, family, is_data_set, is_read_once
from paceline.data.arrays import ArrayData, NotArrays, beyond, is_sparse, prepare, split
from paceline.data.batched import BatchedDataset, as_fit_reads, inspect_dataset, read_all
from paceline.data.folds import Fold, make_folds
from paceline.data.labels import check_class_weight
from paceline.data.refusals import refuse_path
from paceline.data.wide_integers import error_of
from paceline.errors import DataError, UsageError

if TYPE_CHECKING:
    from paceline.data.preprocessed import PreprocessedSamples

#: Arguments of ``search`` that decide which data a trial has; each may be a function of hp.
OF_DATA = ("x", "y", "sample_weight", "validation_data", "steps_per_epoch", "validation_steps")
#: Attributes of hp that show all values.
_SHOW_ALL = frozenset(
    "hparams values parameters space to_storage get_config is_active copy".split()
)


@dataclass(frozen=True)
class DataArguments:
    """The arguments of ``search`` about data, as the user gave them.

    Those without a comment are as in ``model.fit``; any of ``OF_DATA``, ``class_weight`` and
    ``batch_size`` may be a function of hp.
    """

    x: Any
    y: Any
    sample_weight: Any
    class_weight: Any
    validation_data: Any
    validation_split: float
    steps_per_epoch: Any
    validation_steps: Any
    batch_size: Any
    folds: int | None  # their number; None without
    allow_nan: bool  # whether NaN and infinity are accepted
    seed: int  # the study's, for the draw of folds
    packs: bool  # whether the executor trains packs; else Keras' ``fit`` reads data sets itself
    # What the first model does to samples (``data/preprocessed.py``); None if it is not a task of
    # KerasHub.
    preprocessing: Any = None


@dataclass
class LoadedData:
    """The data of all trials that have one set of values for the functions of hp."""

    data: ArrayData | BatchedDataset | None  # to train on; None: only ``fit`` can read them
    validation: ArrayData | None
    sample: ArrayData | None  # the first batch of data that are not arrays, where it could be read
    fit: dict[str, Any]  # the data as ``model.fit`` takes them, by name of argument
    batched: bool  # whether ``fit`` is told the batch size; else the data set has its own
    validation_batch_size: int | None  # of validation data that come in batches
    steps_per_epoch: int | None  # as the next one a number, no longer a function
    validation_steps: int | None
    why_fit: str | None = None  # why packs cannot read the data; None: they can
    folds: tuple[Fold, ...] = ()
    folds_text: str | None = None  # a sentence about the folds for the user
    key: str = ""  # the names and values that the functions of hp asked for
    parts: dict[int, ArrayData] = field(default_factory=dict)  # n -> the first n validation data
    validation_sample: ArrayData | None = None  # as ``sample``, where only ``fit`` reads them
    # Whether a task's preprocessor has made ``data`` of what ``fit`` is given.
    preprocessed: bool = False

    def validation_part(self, n: int) -> ArrayData | None:
        """The first n validation examples; for one n always the same object, sent once."""
        if self.validation is None or n >= self.validation.n:
            return self.validation
        if n not in self.parts:
            self.parts[n] = self.validation.slice(0, n)
        return self.parts[n]


@dataclass(frozen=True, eq=False)
class TrialInputs:
    """All that one trial trains with beside its model: data, batch sizes, steps, class weights."""

    # To train on, the same object in all trials that share them; None: only ``fit`` can read them.
    data: ArrayData | BatchedDataset | None
    validation: ArrayData | None
    batch_size: int  # examples of a training step
    validation_batch_size: int
    steps_per_epoch: int | None = None  # batches of an epoch; None: all batches of the data
    first_epoch: int = 0  # ``initial_epoch``: number of the first epoch, from 0
    class_weight: np.ndarray | None = None  # float[classes], where a function of hp decides it
    key: str = ""  # tells these data from others of the search; empty where none depend on hp
    fit: Mapping[str, Any] = field(default_factory=dict)  # arguments that only this trial has
    why_fit: str | None = None  # why packs cannot read the data; None: they can
    preprocessed: bool = False  # whether the data are what the model's own ``fit`` would make

    @property
    def group_key(self) -> str:
        """Text that is part of the key of a group: trials that differ in it share no program."""
        text = self.key
        if self.steps_per_epoch is not None:
            text += f" steps {self.steps_per_epoch}"
        if self.validation is not None:
            text += f" validation {self.validation.n} by {self.validation_batch_size}"
        return text


class DataReader:
    """Reads the data of a search, once for each set of values that functions of hp ask for."""

    def __init__(self, given: DataArguments) -> None:
        self._given = given
        self._functions = [n for n in OF_DATA if is_function(getattr(given, n))]
        for name in self._functions:
            _check_function(getattr(given, name), name)
        self._known: dict[str, LoadedData] = {}
        self._returned = ReturnedArrays()

    def apart(self) -> tuple[dict[str, Any], DataReader]:
        """The functions of hp by argument, and a reader without them, to be sent elsewhere.

        If there are such functions, the data are read where they are needed. Else the reader holds
        what was read, and no longer what it was read from.
        """
        names = [*self._functions, *(["class_weight"] if self._weighs_by_hp else [])]
        functions = {name: getattr(self._given, name) for name in names}
        given = replace(self._given, **dict.fromkeys(names))
        reader = DataReader(given)
        if not self._functions and given.preprocessing is None:
            reader._given = replace(given, **dict.fromkeys(OF_DATA))
            reader._known = {key: replace(found, fit={}) for key, found in self._known.items()}
        return functions, reader

    def together(self, functions: Mapping[str, Any]) -> DataReader:
        """The inverse of ``apart``."""
        reader = DataReader(replace(self._given, **functions))
        reader._known = self._known
        return reader

    @property
    def _weighs_by_hp(self) -> bool:
        return is_function(self._given.class_weight)

    @property
    def in_order(self) -> bool:
        """Whether models are tasks of KerasHub, whose ``fit`` never shuffles."""
        return self._given.preprocessing is not None

    def read(self, hp: Any, model: Any = None) -> LoadedData:
        """The data of a trial; the same object for all trials with the same values.

        ``hp`` is for the arguments that are functions. ``model`` may preprocess the data; None: as
        the first model does. Raises UsageError and DataError.
        """
        values, key = {name: getattr(self._given, name) for name in OF_DATA}, ""
        if self._functions:
            asked = RecordingHP(hp)
            made = {name: values[name](asked) for name in self._functions}
            values, key = values | made, asked.key
        first = preprocessing = self._given.preprocessing
        if first is not None and model is not None:
            from paceline.data.preprocessed import preprocessing_of

            preprocessing = preprocessing_of(model)
            own = "" if preprocessing is None else preprocessing.key
            key += "" if own == first.key else f" preprocessed {own}"
        if key not in self._known:
            self._returned.add([values[name] for name in self._functions])
            given = replace(self._given, preprocessing=preprocessing)
            self._known[key] = _read(given, values, key)
        return self._known[key]


class RecordingHP:
    """An hp that records which values a function asks for."""

    def __init__(self, hp: Any) -> None:
        self._hp = hp
        self._asked: list[tuple[str, Any]] = []  # in order: scopes may have the same names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._hp, name)
        if name in _SHOW_ALL:
            self._asked.append((name, sorted(self._hp.hparams.items())))
        if name not in ("Int", "Float", "Choice", "Boolean", "Fixed", "get"):
            return found

        def noted(label: str, *args: Any, **kwargs: Any) -> Any:
            value = found(label, *args, **kwargs)
            self._asked.append((label, value))
            return value

        return noted

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    def __contains__(self, name: str) -> bool:
        found = name in self._hp
        self._asked.append((name, found))
        return found

    @property
    def key(self) -> str:
        """What was asked for, with the answers, as text; empty: nothing was."""
        return repr(self._asked) if self._asked else ""


class ReturnedArrays:
    """The arrays that functions of hp have returned, and what was in them then."""

    def __init__(self) -> None:
        self._known: list[tuple[np.ndarray, bytes]] = []

    def add(self, values: Any) -> None:
        """Notes what functions return now.

        Raises DataError where they return memory that they returned before with other contents:
        earlier trials would train on the later data.
        """
        leaves = jax.tree.leaves(values, is_leaf=is_data_set)
        new = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
        for array, before in self._known:
            shared = any(np.may_share_memory(array, leaf) for leaf in new)
            if shared and _sample(array) != before:
                raise DataError(
                    "search: a function of hp changed an array that it had returned for other "
                    "values. Return a new array, such as x.copy(), and start the study over: "
                    "earlier trials may have seen the changed numbers."
                )
        self._known += [(leaf, _sample(leaf)) for leaf in new]


def _sample(array: np.ndarray) -> bytes:
    """The bytes of up to 64 rows, evenly spread; enough to see that an array was filled again."""
    if not array.ndim or not len(array) or array.dtype.hasobject:
        return b""
    rows = np.linspace(0, len(array) - 1, min(len(array), 64)).astype(int)
    return np.ascontiguousarray(array[rows]).tobytes()


def is_function(value: Any) -> bool:
    """Whether an argument is a function of hp, rather than data that happen to be callable."""
    return callable(value) and not hasattr(value, "shape") and not is_data_set(value)


def _check_function(function: Any, name: str) -> None:
    """Refuses what was meant to be called by the user, rather than with hp."""
    if isinstance(function, type):
        raise UsageError(
            f"{name} must be data or a function of hp, got the class {function.__name__}. Pass an "
            f"object of it: {function.__name__}(...)."
        )
    own = getattr(function, "__name__", type(function).__name__)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is written in C
        return
    try:
        signature.bind(None)
        takes_hp = True
    except TypeError:
        takes_hp = False
    shown = f"{own}({', '.join(signature.parameters)})"
    if inspect.isgeneratorfunction(inspect.unwrap(function)):
        if not takes_hp or next(iter(signature.parameters)) != "hp":
            call = "" if not signature.parameters else "..."
            raise UsageError(
                f"{name} must be a generator, got the function {shown}. Call it: "
                f"{name}={own}({call}). A function of hp has one parameter, which is named hp."
            )
    elif not takes_hp:
        raise UsageError(
            f"{name} must be data or a function of hp, got the function {shown}. Pass its result, "
            "or let it take the one parameter hp."
        )


def _read(given: DataArguments, values: Mapping[str, Any], key: str) -> LoadedData:
    x, y, weight = values["x"], values["y"], values["sample_weight"]
    if x is None:
        raise UsageError("search: x is missing. Pass the training data as to model.fit.")
    steps = _steps(values, "steps_per_epoch")
    validation_steps = _steps(values, "validation_steps")
    if given.folds is not None and (is_data_set(x) or validation_steps):
        what = f"x is a {type(x).__name__}" if is_data_set(x) else "validation_steps was given"
        raise _no_folds(what)
    validation = values["validation_data"]
    if (fixed := _fixed(given.class_weight)) is not None:
        check_class_weight(fixed)
    if is_data_set(x):
        own = {"validation_split": given.validation_split or None, "batch_size": given.batch_size}
        _check_data_set(x, {**values, **own})
    loaded = LoadedData(
        None, None, None, {}, not is_data_set(x), None, steps, validation_steps, key=key
    )
    try:
        samples = _preprocess(given, values)
        if samples is not None:
            loaded.preprocessed = True
            (x, y, weight), validation = samples.training, samples.validation
        if not is_data_set(x):
            loaded.data = prepare(x, y, weight, allow_nan=given.allow_nan)
        _read_validation(loaded, given, validation)
        if isinstance(loaded.data, ArrayData):
            _divide(loaded, given, loaded.data)
        else:
            _read_batches(loaded, given, x)
        if samples is not None:
            n = None  # where validation data were split off, the number of the others
            if validation is None and given.folds is None and loaded.data is not None:
                n = loaded.data.n
            loaded.fit = samples.as_given(n)
    except NotArrays as reason:
        x, y, weight, validation = (values[name] for name in OF_DATA[:4])
        if given.folds is not None:
            raise _no_folds(reason) from None
        loaded.sample = loaded.data if isinstance(loaded.data, ArrayData) else None
        loaded.data = loaded.validation = None
        loaded.why_fit = f"{reason}, but packs need arrays, or equal batches of arrays"
        if is_data_set(x):
            x = x if reason.unread is None else reason.unread
            if given.preprocessing is None:  # else no step sees batches like the first one
                loaded.sample, x = _first_batch(x)
            loaded.fit = {"x": x}
        else:
            _check_nests(x, y, weight)
            if is_sparse(x):
                rows: Any = x
                if (value := beyond(rows.data)) is not None:
                    raise error_of(("x", value), "training data", "x is sparse") from None
                loaded.sample = prepare(rows.tocsr()[:1], None if y is None else y[:1])
            if given.preprocessing is not None:
                x, y, weight = given.preprocessing.as_read(x, y, weight)
            loaded.fit = {
                "x": x,
                "y": y,
                "sample_weight": weight,
                "validation_split": given.validation_split or None,
            }
        loaded.fit["validation_data"] = validation
    if loaded.preprocessed or not isinstance(loaded.data, ArrayData):  # else they are in the data
        loaded.fit["class_weight"] = fixed
    return loaded


def _no_folds(why: object) -> UsageError:
    return UsageError(
        f"folds: {why}, but folds need arrays. Pass arrays, or validation_data without folds."
    )


def _check_nests(x: Any, y: Any, sample_weight: Any) -> None:
    """Refuses what not even ``fit`` reads, such as a number."""
    for name, part in (("x", x), ("y", y), ("sample_weight", sample_weight)):
        if isinstance(part, (list, tuple, Mapping)):
            for path, leaf in jax.tree_util.tree_leaves_with_path(part):
                if not hasattr(leaf, "shape") and not isinstance(leaf, (str, bytes)):
                    raise UsageError(
                        f"{name}{jax.tree_util.keystr(path)} must be an array, got a "
                        f"{type(leaf).__name__}. Pass one array [examples, ...] for each input."
                    )
        if part is None or isinstance(part, (list, tuple, Mapping)) or hasattr(part, "shape"):
            continue
        more = ", a tf.data.Dataset, a keras.utils.PyDataset, a PyTorch DataLoader, a Grain data "
        raise UsageError(
            f"{name} must be arrays, or lists and dicts of "
            f"arrays{more + 'set or a generator' if name == 'x' else ''}, got type "
            f"{type(part).__name__}."
        )


def _preprocess(given: DataArguments, values: Mapping[str, Any]) -> PreprocessedSamples | None:
    """Runs a task's preprocessor over the user's samples; None: the model is not a task of
    KerasHub.

    Raises NotArrays where that cannot be done once for all trials.
    """
    preprocessing = given.preprocessing
    if preprocessing is None:
        return None
    x, y, weight, validation = (values[name] for name in OF_DATA[:4])
    for name, value in (("x", x), ("validation_data", validation)):
        if is_data_set(value):
            raise NotArrays(f"{name} is a {type(value).__name__}, which the task preprocesses")
    if not given.packs or values["steps_per_epoch"] or values["validation_steps"]:
        raise NotArrays("the task preprocesses its data, with steps_per_epoch or validation_steps")
    others = None if validation is None else _unpack(_parts_of(validation))
    return preprocessing.samples((x, y, weight), others)


def _divide(loaded: LoadedData, given: DataArguments, data: ArrayData) -> None:
    """Splits arrays into training and validation data, and gives the former class weights."""
    if given.validation_split and loaded.validation is None:
        data, loaded.validation = split(data, given.validation_split)
    elif given.folds is not None:
        y_all = data.inputs[1] if len(data.inputs) > 1 else None
        loaded.folds, loaded.folds_text = make_folds(y_all, data.n, given.folds, given.seed)
        loaded.validation = data
    weights = _fixed(given.class_weight)
    if weights is not None:  # after the split: Keras gives validation data no class weights
        weighed = prepare(*data.inputs, class_weight=weights, allow_nan=given.allow_nan)
        data = replace(weighed, wide=data.wide)
    loaded.data = data
    loaded.fit |= dict(zip(("x", "y", "sample_weight"), data.inputs, strict=False))
    if loaded.validation is not None:
        loaded.fit["validation_data"] = loaded.validation.inputs


def _read_batches(loaded: LoadedData, given: DataArguments, x: Any) -> None:
    if not given.packs:
        loaded.sample, loaded.fit["x"] = _first_batch(x)
        return
    weights = _fixed(given.class_weight)
    source = inspect_dataset(x, loaded.steps_per_epoch, weights, allow_nan=given.allow_nan)
    loaded.data, loaded.sample = source, source.sample
    loaded.fit["x"] = as_fit_reads(x, source)


def _read_validation(loaded: LoadedData, given: DataArguments, validation: Any) -> None:
    if validation is None:
        return
    if not is_data_set(validation):
        loaded.validation = prepare(
            *_unpack(_parts_of(validation)), allow_nan=given.allow_nan, what="validation data"
        )
    elif given.packs:
        loaded.validation, loaded.validation_batch_size = read_all(
            validation,
            loaded.validation_steps,
            allow_nan=given.allow_nan,
            what="validation_data",
        )
        loaded.validation_steps = None
    else:
        if is_read_once(validation) and loaded.validation_steps is None:
            raise UsageError(
                f"validation_data: a {type(validation).__name__} can be read only once, but every "
                "epoch needs the data. Pass validation_steps if it never ends, or a "
                "keras.utils.PyDataset."
            )
        loaded.validation_sample, validation = _first_batch(validation, "validation_data")
        loaded.fit["validation_data"] = validation
        return
    loaded.fit["validation_data"] = loaded.validation.inputs


def _steps(values: Mapping[str, Any], name: str) -> int | None:
    value = values[name]
    if value is None:
        return None
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, (bool, str)) and value == int(value) > 0:
            return int(value)
    raise UsageError(f"{name} must be a positive integer, got {value!r}.")


def _fixed(class_weight: Any) -> Mapping[int, float] | None:
    """Class weights that are the same for all trials; None: a function of hp decides them."""
    return None if is_function(class_weight) else class_weight


def _check_data_set(x: Any, others: Mapping[str, Any]) -> None:
    """Refuses arguments whose values the data set itself holds, and data read once without end."""
    kind = type(x).__name__
    hints = {
        "y": "Leave y out: the batches of x must be (x, y).",
        "sample_weight": "Leave it out: the batches of x must be (x, y, sample_weight).",
        "validation_split": _how_to_split(x),
        "batch_size": "Leave it out: x comes in batches.",
    }
    for name, hint in hints.items():
        if others[name] is not None:
            raise UsageError(f"{name} can only be used with arrays, but x is a {kind}. {hint}")
    if is_read_once(x) and others["steps_per_epoch"] is None:
        raise UsageError(
            f"x: a {type(x).__name__} can be read only once, but every trial needs the data. Pass "
            "steps_per_epoch if it never ends, or a keras.utils.PyDataset."
        )


def _how_to_split(x: Any) -> str:
    if family(x) == "tf":
        return "Pass x=dataset.skip(n) and validation_data=dataset.take(n), for n batches."
    return "Pass validation_data, a second data set with other examples."


def _parts_of(validation: Any) -> Any:
    """Validation data as ``(x, y)`` or ``(x, y, sample_weight)``; as in Keras, x may come alone."""
    if isinstance(validation, (tuple, list)):
        return validation
    if isinstance(validation, Mapping) or hasattr(validation, "shape"):
        return (validation,)
    refuse_path(validation, "validation_data")
    raise UsageError(
        "validation_data must be (x, y) or (x, y, sample_weight), arrays as for training, or a "
        f"data set, got the {type(validation).__name__} {str(validation)[:200]!r}."
    )


def _unpack(validation: Any) -> tuple[Any, Any, Any]:
    if isinstance(validation, (tuple, list)):
        if len(validation) not in (1, 2, 3) or validation[0] is None:
            raise UsageError("validation_data must be (x, y) or (x, y, sample_weight).")
        x, y, weight = (*validation, None, None, None)[:3]
        return x, y, weight
    raise NotArrays(f"validation_data is a {type(validation).__name__}")


def _first_batch(x: Any, what: str = "x") -> tuple[ArrayData | None, Any]:
    """The first batch (None: it is not a nest of arrays), and x, which yields that batch again."""
    try:
        if isinstance(x, keras.utils.PyDataset):
            batch = x[0]
        elif isinstance(x, Iterator):
            batch = next(x)
            x = as_generator(chain([batch], x))
        else:
            batch = next(iter(x))
    except (StopIteration, IndexError):
        raise DataError(f"{what}: the {type(x).__name__} contains no batches.") from None
    except Exception as error:
        raise DataError(
            f"{what}: the first batch of the {type(x).__name__} cannot be read: "
            f"{type(error).__name__}: {error}"
        ) from error
    try:
        return prepare(*_unpack(batch), allow_nan=True, what="the first batch"), x
    except NotArrays:
        return None, x
