"""Errors under the names of Talos; each is a ``PacelineError`` too.

Talos 2 raises Python's ValueError and TypeError where Talos 1 had errors of its own, so these are
both: code that catches either goes on to work.
"""

from __future__ import annotations

from paceline.errors import BuildError, DataError, UsageError


class TalosParamsError(UsageError, ValueError):
    """Raised if the params dictionary, or a limit, lacks something or cannot work."""


class TalosTypeError(UsageError, TypeError):
    """Raised for an argument of the wrong type."""


class TalosReturnError(BuildError, TypeError):
    """Raised if the model function returns something other than ``(history, model)``."""


class TalosModelError(BuildError, ValueError):
    """Raised for a model, or an optimizer, that is unknown or cannot be loaded."""


class TalosDataError(DataError, ValueError):
    """Raised for data, or a number of permutations, that cannot work."""


class FolderNotEmptyError(TalosDataError, FileExistsError):
    """Raised for a folder of a new scan that holds something already."""
