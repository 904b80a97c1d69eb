"""Errors under the names of Talos; each is a ``PacelineError`` too.

Talos 1 has its own errors, and Talos 2 raises Python's ValueError and TypeError. These errors are
both, so code that catches either still works.
"""

from __future__ import annotations

from paceline.errors import BuildError, DataError, UsageError


class TalosParamsError(UsageError, ValueError):
    """Raised for a params dictionary or a limit that cannot work."""


class TalosTypeError(UsageError, TypeError):
    """Raised for an argument of the wrong type."""


class TalosReturnError(BuildError, TypeError):
    """Raised if the model function returns something other than ``(history, model)``."""


class TalosModelError(BuildError, ValueError):
    """Raised for a model, or an optimizer, that is unknown or cannot be loaded."""


class TalosDataError(DataError, ValueError):
    """Raised for data, or a number of permutations, that cannot work."""


class FolderNotEmptyError(TalosDataError, FileExistsError):
    """Raised if the folder of a new scan is not empty."""
