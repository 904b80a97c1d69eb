"""Errors by the names that Talos gives them; each is a ``PacelineError`` too."""

from __future__ import annotations

from paceline.errors import BuildError, DataError, UsageError


class TalosParamsError(UsageError):
    """The params dictionary lacks something, or holds what cannot work."""


class TalosTypeError(UsageError, TypeError):
    """An argument of another kind than is needed."""


class TalosReturnError(BuildError):
    """The model function returned something else than ``(history, model)``."""


class TalosModelError(BuildError):
    """A model, or an optimizer, that cannot be used here."""


class TalosDataError(DataError, ValueError):
    """Data, or a number of permutations, that cannot work."""
