"""Searches that are stopped on the way, for tests that they go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.executor.local import LocalExecutor
from paceline.executor.training import stream
from paceline.tuner.search.timeouts import SearchTimeout


@pytest.fixture(autouse=True)
def hears_signals():
    """Signals are heard as in a shell, by children of this process too.

    pytest-xdist's workers ignore Ctrl-C, and whatever ``nohup`` runs ignores SIGHUP: Paceline then
    leaves the signal ignored, as it should, and these tests would wait for it for ever.
    """
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def by_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has ``LocalExecutor.advance`` train one epoch, as in rounds, where packs stream, too."""
    monkeypatch.setattr(stream, "_SLICE", 0.0)


def stopped_after(monkeypatch: pytest.MonkeyPatch, rounds: int, number: int = signal.SIGINT) -> Any:
    """Has this process get a signal while the packs train for the n-th time."""
    by_epochs(monkeypatch)
    advance, left = LocalExecutor.advance, [rounds]

    def signalled(self: LocalExecutor, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), number)
        advance(self, *arguments)

    monkeypatch.setattr(LocalExecutor, "advance", signalled)


def times_out(monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool]) -> None:
    """Has the time of a search be up as soon as ``when`` says so."""
    monkeypatch.setattr(SearchTimeout, "over", property(lambda self: when()))


def trials_of(tuner: paceline.Tuner) -> list[paceline.Trial]:
    return [tuner.trial(int(number)) for number in tuner.results()["number"]]


def all_of(tuner: paceline.Tuner) -> list[Any]:
    return [(t.state, t.hparams, t.seed, t.value, t.history) for t in trials_of(tuner)]


def same(one: paceline.Tuner, other: paceline.Tuner) -> None:
    assert all_of(one) == all_of(other)
    for a, b in zip(one.best_model().get_weights(), other.best_model().get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
