"""What a session and its own process send each other."""

from __future__ import annotations

import copy
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from paceline.errors import PacelineError
from paceline.executor.session.outside import OutsideChanges, OutsideState
from paceline.pack.callbacks.reachable import is_users_module
from paceline.program.numbers import number_settings, set_numbers

#: Environment variables that the process has of its own.
OWN = {"KERAS_BACKEND": "jax", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
#: Those that decide which device the process has, and cannot change once it has it.
_FIXED = {*OWN, "XLA_FLAGS"}


@dataclass(frozen=True)
class SessionSettings:
    """What decides in a session how the user's code runs, and its numbers."""

    folder: str
    environment: Mapping[str, str]
    path: list[str]
    numbers: Mapping[str, Any]
    ignored: list[Any]  # filters of warnings that hide some
    custom_objects: Mapping[str, Any]  # Keras' names of the user's classes and functions

    @classmethod
    def of_session(cls) -> SessionSettings:
        """Those of this process."""
        return cls(
            os.getcwd(),
            dict(os.environ),
            list(sys.path),
            number_settings(),
            [each for each in warnings.filters if each[0] == "ignore"],
            {
                name: value
                for name, value in keras.saving.get_custom_objects().items()
                if is_users_module(sys.modules.get(getattr(value, "__module__", "") or ""))
            },
        )

    def apply(self) -> None:
        """Applies them to this process."""
        os.chdir(self.folder)
        for name in os.environ.keys() - self.environment.keys() - _FIXED:
            del os.environ[name]
        os.environ |= {name: of for name, of in self.environment.items() if name not in _FIXED}
        sys.path[:] = self.path
        set_numbers(self.numbers)
        for _, text, category, module, line in reversed(self.ignored):
            # The expressions are compiled already, and ``filterwarnings`` takes their texts.
            warnings.filterwarnings("ignore", _text(text), category, _text(module), line)
        keras.saving.get_custom_objects().update(self.custom_objects)
        # Otherwise Keras takes the lines of the user's layers out of what they raise.
        keras.config.disable_traceback_filtering()


def _text(expression: Any) -> str:
    return getattr(expression, "pattern", expression) or ""


@dataclass(frozen=True)
class ProcessCall:
    """A function to run: it is given the session, and the arguments."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    outside: OutsideState  # what the user's functions among the arguments may change


@dataclass(frozen=True)
class Told:
    """A function of the other process to call, by name."""

    name: str
    arguments: tuple[Any, ...]
    asked: int | None = None  # the question's number, if the sender waits for the result


@dataclass(frozen=True)
class Answered:
    """What a function of the session has returned."""

    asked: int | None  # the number of the question
    value: Any = None
    failed: bool = False  # it has raised


@dataclass(frozen=True)
class RaisedError:
    """An error with its causes, as another process can raise it again."""

    error: BaseException
    trace: str  # its traceback, as text
    cause: RaisedError | None = None

    @classmethod
    def of(cls, error: BaseException) -> RaisedError:
        """Of an error that was raised here."""
        from cloudpickle import dumps

        trace = "".join(traceback.format_tb(error.__traceback__))
        cause = error.__cause__
        try:
            dumps(error)
            # As unpickling makes it, which would also change classes of the user's in this process.
            copy.copy(error)
        except Exception:  # it holds what cannot be sent, or is made from other arguments
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error, trace, None if cause is None else cls.of(cause))

    def again(self) -> BaseException:
        """The error, to be raised."""
        if self.cause is not None:
            self.error.__cause__ = self.cause.again()
        if self.trace and not isinstance(self.error, PacelineError):  # whose text says all
            self.error.add_note(f"Raised in the process that trains on JAX:\n{self.trace}")
        return self.error


@dataclass(frozen=True)
class CallEnded:
    """What came of a call."""

    value: Any = None
    error: RaisedError | None = None
    outside: OutsideChanges = field(default_factory=OutsideChanges)
    unread: str | None = None  # why the call could not be read; None: it could
