"""KerasTuner's messages of parallel tuning, if KerasTuner itself is installed.

Paceline sends no messages. ``to_proto`` and ``from_proto`` are for code that stores them. They use
KerasTuner's own object with the same config.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from paceline.errors import MissingExtraError


class HasProto:
    """The base of classes whose objects KerasTuner sends; they have ``get_config``."""

    #: The module of KerasTuner's class of the same name, below ``keras_tuner.src``.
    theirs: ClassVar[str]

    def to_proto(self: Any) -> Any:
        """Returns KerasTuner's message of this object; needs KerasTuner itself."""
        return self._their_class().from_config(self.get_config()).to_proto()

    @classmethod
    def from_proto(cls: Any, proto: Any) -> Any:
        """Returns the object of a message of ``to_proto``; needs KerasTuner itself."""
        return cls.from_config(cls._their_class().from_proto(proto).get_config())

    @classmethod
    def _their_class(cls) -> Any:
        return getattr(theirs(cls.theirs), cls.__name__)


def get_proto() -> Any:
    """Returns KerasTuner's module of messages."""
    return theirs("protos").get_proto()


def get_service() -> Any:
    """Returns KerasTuner's module of requests and answers."""
    return theirs("protos").get_service()


def get_service_grpc() -> Any:
    """Returns KerasTuner's module of the service."""
    return theirs("protos").get_service_grpc()


def theirs(module: str) -> Any:
    """Returns a module of KerasTuner itself, below ``keras_tuner.src``, else MissingExtraError."""
    try:
        return import_module(f"keras_tuner.src.{module}")
    except ImportError as error:
        raise MissingExtraError(
            f"keras_tuner.{module} belongs to KerasTuner's parallel tuning, which Paceline does "
            f"not have. Its messages need KerasTuner itself ({error}): pip install keras-tuner."
        ) from error
