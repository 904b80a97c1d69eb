"""Which callbacks a pack can serve: those that act between epochs."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import keras

from paceline.errors import MissingExtraError
from paceline.pack.callbacks.reachable import reached
from paceline.program import keras_private

#: Hooks that ``fit`` calls within an epoch, which a pack trains in one piece.
_WITHIN = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
)
#: Hooks before an epoch. Where they stop the training, ``fit`` trains one batch of the epoch.
_BEFORE = ("on_train_begin", "on_epoch_begin")
#: Keras' own callbacks whose hooks within an epoch a pack may leave out: ``_why`` refuses a
#: ModelCheckpoint or TensorBoard that needs them, and a loss that TerminateOnNaN would look for
#: fails a trial anyway.
_HARMLESS = (
    keras.callbacks.Callback,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.TensorBoard,
    keras.callbacks.TerminateOnNaN,
)


def why_not_packed(callbacks: Iterable[Any]) -> str | None:
    """Why trials with these callbacks cannot be packed, a text for the user; None: they can."""
    for callback in callbacks:
        name, why = type(callback).__name__, _why(callback)
        if why is not None:
            return f"callbacks: {name} {why}, and packs call callbacks between epochs only"
    return None


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
                f"{' '.join(missing)}. Keras can run on JAX beside them; keras.callbacks.CSVLogger "
                "needs nothing."
            )


def _why(callback: Any) -> str | None:
    if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_freq != "epoch":
        return f"saves after batches (save_freq={callback.save_freq})"
    if isinstance(callback, keras.callbacks.TensorBoard):
        if callback.update_freq != "epoch":
            return f"writes after batches (update_freq={callback.update_freq!r})"
        if getattr(callback, keras_private.PROFILES, False):
            return "profiles batches (profile_batch)"
    for hook in _WITHIN:
        method = getattr(callback, hook, None)
        function = getattr(method, "__func__", method)
        if function is not None and all(function is not getattr(c, hook) for c in _HARMLESS):
            return f"has its own {hook}()"
    if _stops_before(callback):
        return "sets stop_training before an epoch, and fit then trains one batch of that epoch"
    return None


def _stops_before(callback: Any) -> bool:
    """Whether the user's code in a callback stops training before an epoch, as its names show."""
    roots = {hook: part for hook in _BEFORE if (part := vars(callback).get(hook)) is not None}
    functions = reached({"callback": callback, **roots}, _BEFORE).functions
    codes = (code for function in functions for code in function.codes())
    steps = (step for code in codes for step in dis.get_instructions(code))
    return any(step.opname == "STORE_ATTR" and step.argval == "stop_training" for step in steps)
