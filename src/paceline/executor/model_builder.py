"""Builds a trial's model, by the user's ``build(hp)`` under the trial's seed, and traces it."""

from __future__ import annotations

import dis
import functools
import gc
import hashlib
import math
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import keras

from paceline.data.inputs import TrialInputs
from paceline.errors import BuildError, UsageError
from paceline.executor.base import SiblingModelBuilder
from paceline.executor.leading_layers import BuildBehindLayers, LayersAhead
from paceline.executor.process import host_bytes
from paceline.executor.wide_integers import check_casts
from paceline.pack.plan import Workload
from paceline.program import keras_private, trace
from paceline.program.canonical import Unpackable
from paceline.program.foreign.tensorflow import accept_tensorflow
from paceline.program.formulas.model_structure import ModelStructure, structure_of
from paceline.program.initial_weights import noted_build, shared_variables
from paceline.program.trace import State, Step
from paceline.search_space import HyperParameters

#: Where the base classes of hypermodels are, whose fit() trains as a search does.
_HYPERMODELS = ("keras_tuner.", "paceline.compat.keras_tuner.")


class ModelBuilder:
    """Calls the user's ``build(hp) -> compiled keras.Model``: a function, or a ``HyperModel``'s.

    Raises UsageError if ``build`` is neither, or if the object has a ``fit`` of its own.
    """

    def __init__(self, build: Any) -> None:
        self._ahead = None
        if isinstance(build, BuildBehindLayers):
            build, self._ahead = build.build, build.ahead
        method = getattr(build, "build", None)
        if isinstance(build, keras.Model):
            raise UsageError(
                "build must be a function, got a keras.Model. Pass a function build(hp) that "
                "creates and compiles the model."
            )
        if isinstance(build, type) and callable(method):
            raise UsageError(
                f"build must be an object, got the class {build.__name__}. Pass "
                f"{build.__name__}(...)."
            )
        if callable(method):
            if _overrides_fit(build):
                raise UsageError(
                    f"build: {type(build).__name__} has its own fit(); a Tuner uses only its "
                    "build(hp). Move the work of fit() into build(hp), or search with "
                    "paceline.compat.keras_tuner, which calls fit()."
                )
            self._call: Callable[[Any], Any] = method
        elif callable(build):
            self._call = build
        else:
            raise UsageError(
                f"build must be a function build(hp) that returns a compiled model, got {build!r}."
            )

    def __call__(self, hp: HyperParameters, seed: int) -> Any:
        """The compiled model for ``hp``, its weights drawn from ``seed``.

        Raises BuildError if the function returned something other than a compiled model.
        """
        was_loaded = "tensorflow" in sys.modules
        try:
            model = self._built(hp, seed)
        except Exception:
            if was_loaded or "tensorflow" not in sys.modules:
                raise
            model = self._built(hp, seed)  # it imported TensorFlow, which is now prepared
        if not isinstance(model, keras.Model):
            raise BuildError(
                f"build(hp) must return a keras.Model, got {type(model).__name__}. End it with "
                "'return model'."
            )
        if not model.compiled:
            raise BuildError(
                "build(hp) returned a model that is not compiled. Call model.compile(optimizer=, "
                "loss=, metrics=) before you return it."
            )
        if self._ahead is not None:
            model = self._ahead.without(model)
        if any(keras_private.is_bound(variable) for variable in shared_variables(model)):
            raise BuildError(
                "build(hp) returned a model with layers of another trial, whose callbacks use "
                "them. Create new layers in each build, or create shared layers outside of build."
            )
        return model

    def _built(self, hp: HyperParameters, seed: int) -> Any:
        """Whatever the function returns, under a seed."""
        with keras_private.no_tensorflow():
            keras.utils.set_random_seed(seed)
        trace.put_policy_back()
        accept_tensorflow()
        with keras_private.fresh_names():
            return noted_build(lambda: self._call(hp), _reserve())

    def behind(self, ahead: LayersAhead) -> ModelBuilder:
        """Builds models without the layers that ran over the data before."""
        return ModelBuilder(BuildBehindLayers(self._call, ahead))

    @property
    def whole(self) -> ModelBuilder:
        """Builds models with all their layers, also with those that ran over the data before."""
        return self if self._ahead is None else ModelBuilder(self._call)

    @property
    def function(self) -> Any:
        """The function that the user gave."""
        return self._call

    @property
    def code_digest(self) -> str | None:
        """Digest of the code of ``build`` and of what it calls in its module; None without code.

        Comments and layout do not count, and neither does the value of any variable. Releases of
        Python compile the same code to different bytes.
        """
        call = self._call
        while isinstance(call, functools.partial):
            call = call.func
        owner: Any = getattr(call, "__self__", None)
        kind: Any = type(owner)
        if _is_hypermodel(kind):  # its constructor puts a wrapper in the place of build()
            call = kind.build.__get__(owner)
        if not hasattr(call, "__code__"):  # an object that can be called
            call = call.__call__
        parts: list[str] = []
        _note_code(getattr(call, "__func__", call), getattr(call, "__self__", None), parts, set())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest() if parts else None


class TooLargeError(MemoryError):
    """Raised where a model does not fit into memory; ``shape`` is that of its largest variable."""

    def __init__(self, text: str, shape: tuple[int, ...]) -> None:
        super().__init__(text)
        self.shape = shape


class VariableMemoryGuard:
    """Refuses variables of a model that would not fit into memory, before they are made.

    Where a system lends more memory than it has, it ends the process that uses it. ``free`` returns
    the bytes that are free.
    """

    #: Bytes of variables between two looks at the memory, which take a tenth of a millisecond.
    EVERY = 1 << 26

    def __init__(self, free: Callable[[], float]) -> None:
        self._free = free
        self._since = 0  # bytes that were reserved since the last look
        self._trained = 0  # bytes that have a gradient
        self._largest: tuple[int, tuple[int, ...]] = 0, ()  # the largest variable, and its bytes

    def reserve(
        self,
        initializer: Any = None,
        shape: Any = None,
        dtype: Any = None,
        trainable: Any = True,
        *_: Any,
        **__: Any,
    ) -> None:
        """Adds a variable that is to be made; arguments as of ``keras.Variable``.

        Raises MemoryError if the variable would not fit.
        """
        if shape is None or not callable(initializer):
            return
        try:
            sizes = tuple(map(int, shape))
            n_bytes = math.prod(sizes) * _itemsize(dtype)
        except (TypeError, ValueError):
            return  # Keras says what is wrong
        self._since += n_bytes
        self._trained += n_bytes if trainable else 0
        self._largest = max(self._largest, (n_bytes, sizes))
        if self._since < self.EVERY:
            return
        wanted, self._since = self._since, 0
        # What was made before is in memory already. Drawing an array takes as much again, and so do
        # the gradients of all.
        needed = wanted + max(wanted, self._trained)
        if needed > self._free():
            gc.collect()  # models that nobody needs any more are in cycles
        if needed > (free := self._free()):
            raise TooLargeError(
                f"the model's next variables need {wanted / 1e9:.3g} GB, and initial values and "
                f"gradients another {(needed - wanted) / 1e9:.3g} GB, but only {free / 1e9:.3g} GB "
                "are free. Make the model smaller",
                self._largest[1],
            )


def _itemsize(dtype: Any) -> int:
    name = keras.backend.standardize_dtype(dtype)
    return jnp.dtype(name).itemsize


def _reserve() -> Callable[..., None] | None:
    """Refuses variables that would not fit where they are made; None where nothing says so."""
    backend = keras.backend.backend()
    if backend == "jax" and jax.default_backend() != "cpu":
        device = jax.devices()[0]
        return VariableMemoryGuard(lambda: _device_bytes(device)).reserve
    if backend == "tensorflow" and sys.modules["tensorflow"].config.list_physical_devices("GPU"):
        return None
    if backend == "torch":
        torch = sys.modules["torch"]
        if torch.cuda.is_available() or torch.backends.mps.is_available():
            return None
    return VariableMemoryGuard(host_bytes).reserve


def _device_bytes(device: Any) -> float:
    """Bytes that are free on an accelerator; infinity where it does not say."""
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return math.inf
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)


def _note_code(function: Any, owner: Any, parts: list[str], seen: set[int]) -> None:
    """Appends the code of a function, and of the functions and classes of its module in it."""
    code = getattr(function, "__code__", None)
    if code is None or id(code) in seen or len(seen) > 1000:
        return
    seen.add(id(code))
    parts.append(_code_text(code))
    closed = zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False)
    cells = {name: cell for name, cell in closed if cell != types.CellType()}
    for name in _names(code):
        if name in cells:
            found: Any = cells[name].cell_contents
        else:
            found = function.__globals__.get(name, getattr(type(owner), name, None))
        if getattr(found, "__module__", None) != function.__module__:
            continue
        if isinstance(found, type):
            for each in vars(found).values():
                _note_code(getattr(each, "__func__", each), None, parts, seen)
        else:
            _note_code(getattr(found, "__func__", found), owner, parts, seen)


def _names(code: types.CodeType) -> list[str]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return [*code.co_names, *code.co_freevars, *(name for each in inner for name in _names(each))]


def _code_text(code: types.CodeType) -> str:
    consts = [
        _code_text(each) if isinstance(each, types.CodeType) else _plain(each)
        for each in code.co_consts
    ]
    return "\0".join([_steps_text(code), *code.co_names, *code.co_varnames, *consts])


def _steps_text(code: types.CodeType) -> str:
    """The instructions of a function, the same however its lines are laid out."""
    if sys.version_info < (3, 13):
        return code.co_code.hex()
    # From 3.13 on two loads or stores of local variables on one line are one instruction, and jumps
    # count instructions.
    steps = []
    for step in dis.get_instructions(code):
        if step.opname in ("NOP", "EXTENDED_ARG"):
            continue
        names, values = [step.opname], [step.argval]
        if len(pair := re.findall("(?:LOAD|STORE)_FAST(?:_BORROW)?", step.opname)) == 2:
            names, values = pair, list(step.argval)
        for name, value in zip(names, values, strict=True):
            jumps = step.opcode in dis.hasjump or isinstance(value, types.CodeType)
            steps.append(name if jumps else f"{name} {_plain(value)}")
    return "\n".join(steps)


def _plain(value: Any) -> str:
    """A constant as text; the order of a set differs between processes."""
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _is_hypermodel(cls: type) -> bool:
    return any(map(_is_base, cls.__mro__))


def _is_base(cls: type) -> bool:
    """Whether a class is a library's own, and no user's."""
    return f"{cls.__module__}.".startswith(_HYPERMODELS)


def _overrides_fit(hypermodel: Any) -> bool:
    for cls in type(hypermodel).__mro__:
        if _is_base(cls):
            return False
        if "fit" in vars(cls):
            return True
    return False


#: The steps of a ``TracedModel`` on the smaller batch; None where all batches are full.
Tails = Sequence[Step | None]


@dataclass(frozen=True)
class TracedModel:
    """A model's steps, on the full batch, and its variables."""

    state: State
    steps: Sequence[Step]  # the training step and, with validation data, the validation step
    # As it was before its steps were traced; None if that is not known.
    structure: ModelStructure | None = None

    @property
    def train(self) -> Step:
        """The training step."""
        return self.steps[0]


def workload_of(
    setting: TrialInputs,
    fold: tuple[int, int] | None,
    chunk_bytes: float | None,
    *,
    by_batch: bool = False,
) -> Workload:
    """The data, batch sizes and lengths of a trial's epochs.

    ``fold`` and ``by_batch`` are as of ``SearchData``, ``chunk_bytes`` as of ``Workload``. Raises
    Unpackable if the data are not arrays.
    """
    if setting.data is None:
        raise Unpackable(setting.why_fit or "its data are not arrays")
    work = Workload(
        setting.data,
        setting.validation,
        setting.batch_size,
        setting.validation_batch_size,
        fold,
        chunk_bytes,
        setting.steps_per_epoch,
        by_batch,
        setting.class_weight,
    )
    if setting.validation is None:
        return work
    size = min(setting.validation_batch_size, work.n_validation)
    return replace(work, validation_batch_size=size)


def kind_of(work: Workload, setting: TrialInputs) -> tuple[Any, ...]:
    """What trials of one program share besides their steps."""
    return work.batch_size, work.validation_batch_size, setting.group_key


def key_of(steps: Sequence[Step], kind: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key of the group of trials with these steps."""
    prints = [step.canonical.fingerprint for step in steps]
    return *prints, *[None] * (2 - len(prints)), *kind


def alike_key(structure: ModelStructure, setting: TrialInputs) -> tuple[str, int]:
    """What one trial must share with another for the other to be recognised by it."""
    return structure.structure + setting.group_key, setting.batch_size


def stock_structure(
    model: Any, setting: TrialInputs, fold: tuple[int, int] | None
) -> ModelStructure | None:
    """The model's structure and numbers; None if its constants do not follow from them.

    A model that learns its inputs from the data has its variables afterwards: it shows its widths
    as one that begins with ``keras.Input`` does. ``fold`` is as of ``SearchData``.
    """
    if not model.built:
        keras_private.symbolic_build(model, workload_of(setting, fold, None).batch)
    # Class weights are constants that no object of the model holds.
    return structure_of(model) if setting.class_weight is None else None


def with_variables(widths: SiblingModelBuilder, work: Workload) -> SiblingModelBuilder:
    """Builds models that have their variables, also where they learn their inputs from the data."""

    def build(values: Mapping[str, Any]) -> Any:
        model = widths.build(values)
        if not model.built:
            keras_private.symbolic_build(model, work.batch)
        return model

    return replace(widths, build=build)


def traced_model(
    model: Any, work: Workload, structure: ModelStructure | None
) -> tuple[TracedModel, list[Any] | None]:
    """A model's steps on full batches, and from what its optimizer starts."""
    state, start = trace.optimizer_start(model, work.batch)
    if work.train.wide or getattr(work.validation, "wide", None):
        sizes = work.batch_size, work.validation_batch_size
        check_casts(model, work.train, sizes[0], work.validation, sizes[1], work.class_weight)
    shapes = work.train.step_shapes(work.batch_size)
    steps = [trace.trace_train(model, state, shapes, work.class_weight)]
    if work.validation is not None:
        shapes = work.validation.step_shapes(work.validation_batch_size)
        steps.append(trace.trace_test(model, state, shapes))
    return TracedModel(state, steps, structure), start


def traced_sizes(model: Any, work: Workload) -> tuple[TracedModel, Tails]:
    """A model's steps on full and on smaller batches."""
    traced, _ = traced_model(model, work, structure_of(model))
    return traced, tails_of(model, traced.state, work)


def tails_of(model: Any, state: State, work: Workload) -> Tails:
    """The steps on the last, smaller batch."""
    tails: list[Step | None] = [None]
    if work.rest:
        shapes = work.train.step_shapes(work.rest)
        tails = [trace.trace_train(model, state, shapes, work.class_weight)]
    if work.validation is not None:
        rest = work.validation_rest
        shapes = work.validation.step_shapes(rest) if rest else None
        tails.append(trace.trace_test(model, state, shapes) if rest else None)
    return tails


class SmallerBatchSteps:
    """Steps on the smaller batches: traced, or as those of a model of the same classes."""

    def __init__(self) -> None:
        # What models share -> the first one's steps on the full and on the smaller batches.
        self._traced: dict[Any, tuple[Sequence[Step], Tails]] = {}

    def tails(
        self, model: Any, traced: TracedModel, work: Workload, kind: tuple[Any, ...]
    ) -> Tails:
        """The steps on the last, smaller batch.

        ``traced`` holds the steps on the full batches; ``kind`` is from ``kind_of``.
        """
        structure, full = traced.structure, traced.steps
        key, rests = None, (work.rest, work.validation_rest)
        # JAX leaves out axes of one element: of a batch of one as of a width of one.
        if structure is not None and structure.any_width and any(rests) and 1 not in rests:
            # The same layers may leave out equations: dropout with a rate of zero does.
            counts = [len(step.closed.jaxpr.eqns) for step in full]
            key = (structure.skeleton, kind, rests, *counts)
        if key in self._traced and (found := _tails_like(*self._traced[key], full)) is not None:
            return found
        tails = tails_of(model, traced.state, work)
        if key is not None:
            self._traced.setdefault(key, (full, tails))
        return tails


def _tails_like(whole: Sequence[Step], part: Tails, own: Sequence[Step]) -> Tails | None:
    """As ``step_like``, of both steps."""
    from paceline.program.formulas.smaller_batch import step_like  # for searches over widths alone

    steps = zip(whole, part, own, strict=True)
    found = [small and step_like(first, small, full) for first, small, full in steps]
    known = (one is not None for one, small in zip(found, part, strict=True) if small is not None)
    return found if all(known) else None
