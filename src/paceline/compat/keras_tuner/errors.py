"""The errors that a user's code raises to end a trial or the search."""

from __future__ import annotations

from paceline.errors import UsageError


class FailedTrialError(Exception):
    """Raised in ``build`` or ``fit`` to fail the trial; the trial is not tried again."""


class FatalError(Exception):
    """Raised in a trial to end the search; the error reaches the caller of ``search``."""


class FatalValueError(FatalError, ValueError):
    """A fatal error about a value."""


class FatalTypeError(FatalError, TypeError):
    """A fatal error about a type."""


class FatalRuntimeError(FatalError, RuntimeError):
    """A fatal error that is about neither a value nor a type."""


class ProjectError(UsageError, RuntimeError):
    """Raised for a folder that holds no project of KerasTuner, or one that cannot be read."""


def is_a(error: BaseException, kind: type[BaseException]) -> bool:
    """Returns whether an error is of a kind, or of KerasTuner's own kind of the same name.

    The user's model file may still import its errors from ``keras_tuner``.
    """
    if isinstance(error, kind):
        return True
    return any(
        cls.__name__ == kind.__name__ and cls.__module__.partition(".")[0] == "keras_tuner"
        for cls in type(error).__mro__
    )
