"""Errors under the names of Talos; each is a ``PacelineError`` too."""

from __future__ import annotations

from paceline.errors import BuildError, DataError, UsageError


class TalosParamsError(UsageError):
    """Raised if the params dictionary, or a limit, lacks something or cannot work."""


class TalosTypeError(UsageError, TypeError):
    """Raised for an argument of the wrong type."""


class TalosReturnError(BuildError):
    """Raised if the model function returns something other than ``(history, model)``."""


class TalosModelError(BuildError):
    """Raised for a model, or an optimizer, that is unknown or cannot be loaded."""


class TalosDataError(DataError, ValueError):
    """Raised for data, or a number of permutations, that cannot work."""
