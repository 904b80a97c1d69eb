"""Text of a search: the numbers that its models' first layers make of it go in its place.

Only layers that all trials have in common run ahead, and only for searches in which nothing but the
steps sees the model. Else the model must read the text, which JAX cannot: a session on TensorFlow
trains the trials itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from paceline.data.adapters import holds_text, passes
from paceline.data.preprocessed import preprocessing_of
from paceline.executor.leading_layers import LayersAhead, LeadingLayers
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import search_process
from paceline.pack.callbacks.per_trial import CallbackFactory
from paceline.pack.callbacks.reachable import is_of_user, reached
from paceline.search_space import HyperParameters
from paceline.tuner.search.session_data import DataOfSession, arrays_of, is_read_in_session

#: Keras' callbacks that do the same without the model's first layers.
_ALIKE = (
    keras.callbacks.CSVLogger,
    keras.callbacks.EarlyStopping,
    keras.callbacks.LambdaCallback,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.TensorBoard,
    keras.callbacks.TerminateOnNaN,
)
#: What Keras calls on callbacks.
_HOOKS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))


@dataclass(frozen=True)
class TextAhead:
    """The layers that run ahead over the text of one search."""

    layers: LeadingLayers
    sent: LayersAhead

    @classmethod
    def of(
        cls,
        builder: ModelBuilder,
        seed: int,
        first: HyperParameters,
        precision: str | None,
        data: Mapping[str, Any],
        *,
        looks: bool,
    ) -> TextAhead | None:
        """Those of a search whose arguments are ``data``; None where they hold no text.

        ``first`` is the hp of the first model, and ``looks`` whether the user's constraints or
        objectives see models. Raises ValueError with the reason why the text must be read by the
        model.
        """
        x = data.get("x")
        if keras.backend.backend() not in ("tensorflow", "jax") or not holds_text(x):
            return None
        if looks:
            raise ValueError("x holds text, and constraints or objectives see the model")
        if (name := _looking(data.get("callbacks"))) is not None:
            raise ValueError(f"x holds text, and callback {name} sees the model that reads it")
        try:
            with search_process(precision, memory=False):
                model = builder(first, seed)
        except Exception:  # the search says what is wrong with the build
            return None
        if preprocessing_of(model) is not None:
            return None  # a task of KerasHub reads text by itself
        try:
            layers = LeadingLayers.of(model)
        except ValueError as error:
            raise ValueError(f"x holds text, and {error}") from None
        if layers is None:
            raise ValueError("x holds text, and JAX trains on numbers only")
        try:
            first_x = arrays_of(next(iter(passes(x))))[0] if is_read_in_session(x) else x
            sent = LayersAhead(layers.facts(), layers.sample(first_x))
        except Exception as error:  # what the layers raise
            raise ValueError(f"x holds text, and {error}") from error
        return cls(layers, sent)

    def arrays(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a search with numbers in the place of text, but for data sets.

        Raises ValueError as ``of``.
        """
        found = dict(data)
        try:
            if not is_read_in_session(data.get("x")):
                found["x"] = self.layers.numbers(data["x"])
            validation = data.get("validation_data")
            if isinstance(validation, list | tuple):
                found["validation_data"] = self.batch(tuple(validation))
        except Exception as error:
            raise ValueError(f"x holds text, and {error}") from error
        return found

    def here(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """As ``arrays``, with data sets that make numbers of text in this process."""
        sets = DataOfSession(data, self.batch)
        return {**self.arrays(data), **sets.here()}

    def batch(self, batch: Any) -> Any:
        """A batch, ``(x, ...)``, with numbers in the place of text."""
        return (self.layers.numbers(batch[0]), *batch[1:])


def _looking(callbacks: Any) -> str | None:
    """The name of a callback that may see the model; None: none does."""
    if isinstance(callbacks, CallbackFactory):
        callbacks = callbacks.function
    for each in callbacks if isinstance(callbacks, list | tuple) else [callbacks]:
        if each is None or type(each) in _ALIKE:
            continue
        name = getattr(each, "__name__", type(each).__name__)
        if not is_of_user(type(each)) or "model" in reached({name: each}, _HOOKS).attributes:
            return name
    return None
