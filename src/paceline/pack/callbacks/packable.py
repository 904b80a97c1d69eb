"""Which callbacks a pack can serve: those that act between epochs, or between training batches."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any

import keras

from paceline.errors import MissingExtraError
from paceline.pack.callbacks.reachable import ReachableObjects, reached
from paceline.pack.callbacks.slot_model import attribute_names
from paceline.program import keras_private

#: Hooks around a training batch: a pack may train its epochs batch by batch to call them.
_BATCH = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
#: Attributes of models that show a callback's batch more than a pack keeps of it.
_OF_BATCH = frozenset(
    "metrics metrics_variables metrics_names get_metrics_result result reset_metrics fit evaluate "
    "predict train_on_batch test_on_batch predict_on_batch".split()
)
#: Methods that show functions and variables of TensorFlow.
_OF_TENSORFLOW = ("get_concrete_function", "read_value")
#: Further hooks that ``fit`` calls within an epoch, which a pack trains in one piece.
_WITHIN = (
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
)
#: Hooks before an epoch. Where they stop the training, ``fit`` trains one batch of the epoch.
_BEFORE = ("on_train_begin", "on_epoch_begin")
#: Keras' own callbacks whose hooks within an epoch a pack may leave out. ``_why`` refuses a
#: ModelCheckpoint or TensorBoard that needs them. A NaN loss, which TerminateOnNaN looks for, fails
#: a trial anyway.
_HARMLESS = (
    keras.callbacks.Callback,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
    keras.callbacks.TerminateOnNaN,
)


def why_not_packed(callbacks: Iterable[Any], *, by_batch: bool = False) -> str | None:
    """Why trials with these callbacks cannot be packed, a text for the user; None: they can.

    ``by_batch``: whether the pack may train its epochs batch by batch.
    """
    for callback in callbacks:
        name, why = type(callback).__name__, _why(callback, by_batch)
        if why is not None:
            return f"callbacks: {name} {why}, but packs call callbacks only between epochs"
    return None


def why_not_traced(callbacks: Iterable[Any], model: Any, *, before: bool) -> str | None:
    """Why a step that is traced before training is not that of ``fit``; None: it may be.

    ``fit`` traces its step after the hooks before an epoch and before a batch were called first.
    So the code of hooks around batches must set no attribute of the compiled model or its parts.
    ``before``: nor that of hooks before an epoch.
    """
    hooks = (*_BEFORE, *_BATCH) if before else _BATCH
    for callback in callbacks:
        stored = {name for name, is_own in _stored(callback, hooks, model) if not is_own}
        held = min(stored & attribute_names(model), default=None) if stored else None
        if held is not None:
            return (
                f"callbacks: {type(callback).__name__} sets {held!r} while it trains, but the "
                "compiled program of a pack keeps the earlier value"
            )
    return None


def acts_by_batch(callback: Any) -> bool:
    """Whether a callback has hooks around training batches of its own."""
    return any(_own(callback, hook) for hook in _BATCH)


def names_model(callback: Any, model: Any) -> bool:
    """Whether hooks around training batches reach the model by a name, not as ``self.model``."""
    if not acts_by_batch(callback):
        return False
    used = _reached(callback, _BATCH).keras.values()
    return any(each is model or each is model.optimizer for each in used)


def check_packages(callbacks: Iterable[Any]) -> None:
    """Refuse callbacks of Keras that would fail in every trial, for want of a package."""
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.TensorBoard):
            continue
        # On every backend Keras writes its event files with tensorflow.summary.
        needed = [name for name in ("tensorflow", "tensorboard") if name not in sys.modules]
        missing = [name for name in needed if find_spec(name) is None]
        if missing:
            raise MissingExtraError(
                f"callbacks: TensorBoard needs {' and '.join(missing)}, which "
                f"{'is' if len(missing) == 1 else 'are'} not installed: pip install "
                f"{' '.join(missing)}. Keras can still run on JAX. keras.callbacks.CSVLogger "
                "needs no package."
            )


def _own(callback: Any, hook: str) -> bool:
    """Whether a callback has a hook of its own that a pack must call."""
    method = getattr(callback, hook, None)
    function = getattr(method, "__func__", method)
    return function is not None and all(function is not getattr(c, hook) for c in _HARMLESS)


def _why(callback: Any, by_batch: bool) -> str | None:
    if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_freq != "epoch":
        return f"saves after batches (save_freq={callback.save_freq})"
    if isinstance(callback, keras.callbacks.TensorBoard):
        if callback.update_freq != "epoch":
            return f"writes after batches (update_freq={callback.update_freq!r})"
        if getattr(callback, keras_private.PROFILES, False):
            return "profiles batches (profile_batch)"
    by_batch = by_batch and not _needs_fit(callback)
    for hook in (*(() if by_batch else _BATCH), *_WITHIN):
        if _own(callback, hook):
            return f"has its own {hook}()"
    if _stops_before(callback):
        return "sets stop_training before an epoch, of which fit would train one batch"
    return None


def _needs_fit(callback: Any) -> bool:
    """Whether hooks around batches are Keras' own, or use what a pack does not keep of a batch."""
    keras_s = type(callback).__module__.startswith(keras_private.OWN)
    if keras_s and type(callback) is not keras.callbacks.LambdaCallback:
        return True
    found = _reached(callback, _BATCH)
    # Compiled functions and variables of TensorFlow: they read arrays that a slot does not change.
    raw = any(hasattr(each, name) for each in found.others.values() for name in _OF_TENSORFLOW)
    return raw or not _OF_BATCH.isdisjoint(found.attributes)


def _reached(callback: Any, hooks: Iterable[str], model: Any = None) -> ReachableObjects:
    """What the user's code in a callback's hooks reaches; ``model`` as of ``_stored``."""
    roots = {hook: part for hook in hooks if (part := vars(callback).get(hook)) is not None}
    return reached({"callback": callback, "model": model, **roots}, hooks)


def _stops_before(callback: Any) -> bool:
    """Whether the user's code in a callback stops training before an epoch, as its names show."""
    return any(name == "stop_training" for name, _ in _stored(callback, _BEFORE))


def _stored(callback: Any, hooks: Iterable[str], model: Any = None) -> Iterator[tuple[str, bool]]:
    """Yields the attributes that the user's code in hooks sets, and whether of the callback itself.

    ``model`` is the callback's, of whose methods the hooks may call some.
    """
    own = [part for cls in type(callback).__mro__ for part in vars(cls).values()]
    methods = {part for part in own if isinstance(part, types.FunctionType)}
    for user in _reached(callback, hooks, model).functions:
        for code in user.codes():
            loaded: Any = None  # the name of what was loaded last
            for step in dis.get_instructions(code):
                if step.opname == "STORE_ATTR":
                    yield step.argval, loaded == "self" and user.function in methods
                # From Python 3.13 on, one step may load two names.
                names = step.argval if step.opname.startswith("LOAD_FAST") else None
                loaded = names[-1] if isinstance(names, tuple) else names
