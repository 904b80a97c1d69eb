"""Hypermodels: objects that build a model from hyperparameters, and may also train it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.compat.keras_tuner.errors import FatalValueError


class HyperModel:
    """Builds a model; a subclass defines ``build``.

    Args:
        name: Name of the hypermodel.
        tunable: Whether the hyperparameters that ``build`` declares are searched.
    """

    def __init__(self, name: str | None = None, tunable: bool = True) -> None:
        self.name, self.tunable = name, tunable
        self._build = self.build
        self.build = self._build_wrapper

    def build(self, hp: Any) -> Any:
        """Returns the compiled model for ``hp``; a subclass must define it."""
        raise TypeError(f"{type(self).__name__} has no `build(hp)`; override it to return a model.")

    def _build_wrapper(self, hp: Any, *args: Any, **kwargs: Any) -> Any:
        return self._build(hp if self.tunable else hp.copy(), *args, **kwargs)

    def declare_hyperparameters(self, hp: Any) -> None:
        """Declares hyperparameters before the first build; does nothing unless overridden."""

    def fit(self, hp: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Trains the model of ``build``.

        Args:
            hp: The hyperparameters of the model.
            model: The model.
            *args: Positional arguments of ``search``.
            **kwargs: Keyword arguments of ``search``, with ``callbacks`` of the tuner.

        Returns:
            A history of ``model.fit``, a dict of metrics, or the objective's value.
        """
        return model.fit(*args, **kwargs)


class DefaultHyperModel(HyperModel):
    """A function ``build(hp)`` as a hypermodel."""

    def __init__(self, build: Callable[[Any], Any]) -> None:
        self._function = build
        super().__init__()

    def build(self, hp: Any) -> Any:
        """Returns what the function returns for ``hp``."""
        return self._function(hp)


def get_hypermodel(hypermodel: Any) -> Any:
    """Returns a hypermodel for a function, or an object with a method ``build`` as it is.

    The object may be a hypermodel of KerasTuner itself. Raises FatalValueError for anything else.
    """
    if hypermodel is None or isinstance(hypermodel, HyperModel):
        return hypermodel
    if callable(getattr(hypermodel, "build", None)) and not isinstance(hypermodel, type):
        return hypermodel
    if not callable(hypermodel) or isinstance(hypermodel, type):
        raise FatalValueError(
            "The `hypermodel` argument should be either a function `build(hp)` returning a model, "
            f"or an instance of `HyperModel`. Received: {hypermodel!r}"
        )
    return DefaultHyperModel(hypermodel)


def trains_itself(hypermodel: Any) -> bool:
    """Returns whether a hypermodel defines ``fit``."""
    if "fit" in vars(hypermodel):
        return True
    for cls in type(hypermodel).__mro__:
        if cls is HyperModel or cls.__module__.partition(".")[0] == "keras_tuner":
            return False
        if "fit" in vars(cls):
            return True
    return False


def own_code(hypermodel: Any) -> Any:
    """Returns the user's function in a hypermodel, or the hypermodel itself."""
    if isinstance(hypermodel, DefaultHyperModel):
        return hypermodel._function
    return hypermodel
