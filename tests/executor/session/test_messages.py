"""Errors that another process raises again."""

from __future__ import annotations

import socket

import pytest

from paceline.errors import BuildError, PacelineError, TrialHangError
from paceline.executor.session.channel import Channel
from paceline.executor.session.messages import RaisedError


class NoSuchLayerError(Exception):
    """An error that is made from other arguments than it keeps."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"{name} is none of {known}")


class KeptError(NoSuchLayerError):
    """The same, and pickle is told so."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __reduce__(self):
        return type(self), (self.name, self.known)


def sent(error: BaseException) -> BaseException:
    """The error as the other process raises it."""
    ours, theirs = map(Channel, socket.socketpair())
    ours.send(RaisedError.of(error))
    found = theirs.receive().message().again()
    ours.close()
    theirs.close()
    return found


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (BuildError("no"), BuildError, "no"),
        (TrialHangError("epoch 3", "Restart"), TrialHangError, "epoch 3"),
        (KeptError("a", ["b"]), KeptError, "a is none of ['b']"),
        (NoSuchLayerError("a", ["b"]), RuntimeError, "NoSuchLayerError: a is none of ['b']"),
        (ValueError(iter([1]), (n for n in ())), RuntimeError, "ValueError: "),
    ],
)
def test_an_error_comes_as_it_is_or_with_its_text(error, kind, text) -> None:
    for of in (error, PacelineError("around")):
        of.__cause__ = None if of is error else error
        found = sent(of)
        found = found if of is error else found.__cause__
        assert type(found) is kind and text in str(found)


def test_to_look_at_an_error_changes_no_class_of_this_process() -> None:
    """Unpickled here, a class that is pickled by value would get methods with other globals."""
    made: dict[str, type[Exception]] = {}
    code = "class OwnError(Exception):\n    def counted(self):\n        return count"
    names = {"__name__": "__main__", "count": 1}
    exec(code, names, made)  # as in a notebook
    method = made["OwnError"].counted
    RaisedError.of(made["OwnError"]("no"))
    assert made["OwnError"].counted is method
