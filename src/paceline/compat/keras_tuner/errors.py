"""What a user's code raises to say how a trial, or the search, shall end."""

from __future__ import annotations

from paceline.errors import UsageError


class FailedTrialError(Exception):
    """Raised in ``build`` or ``fit``: this trial has failed, and is not tried again."""


class FatalError(Exception):
    """Raised in a trial: the search ends, and the error reaches whoever called it."""


class FatalValueError(FatalError, ValueError):
    """A fatal error about a value."""


class FatalTypeError(FatalError, TypeError):
    """A fatal error about a type."""


class FatalRuntimeError(FatalError, RuntimeError):
    """A fatal error of another kind."""


class ProjectError(UsageError, RuntimeError):
    """A folder that is no project of KerasTuner's, or holds one that cannot be read."""


def is_a(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error is of one of these kinds, or of KerasTuner's own kind of that name.

    A model file may import the errors from ``keras_tuner`` still.
    """
    if isinstance(error, kind):
        return True
    return any(
        cls.__name__ == kind.__name__ and cls.__module__.partition(".")[0] == "keras_tuner"
        for cls in type(error).__mro__
    )
