"""How often a worker gives a sign of life, and how long others wait for one."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from paceline.errors import UsageError
from paceline.study.sharing.heartbeat import MISSED, Heartbeats, seconds_between
from paceline.study.storage.storage import StudyStorage
from study.sharing.party import Clock


@pytest.mark.parametrize("text", ["inf", "nan", "0", "-1", "often", "", "1e10"])
def test_seconds_that_are_none_are_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HEARTBEAT_SECONDS", text)
    said = f"^PACELINE_HEARTBEAT_SECONDS must be a number .* at most 3600, got '{text}'. Unset"
    with pytest.raises(UsageError, match=said):
        seconds_between()


def test_seconds_are_those_of_the_environment_or_five(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seconds_between() == 5.0
    monkeypatch.setenv("PACELINE_HEARTBEAT_SECONDS", "0.5")
    assert seconds_between() == 0.5


@pytest.mark.parametrize("says", [True, False])
def test_a_worker_that_beats_less_often_is_waited_for_longer(says: bool) -> None:
    """An earlier version does not say how often it beats; its beats are waited for as one's own."""
    storage, clock = optuna.storages.InMemoryStorage(), Clock()
    study = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "s")

    def worker(token: str, every: float) -> Heartbeats:
        store = StudyStorage.of(storage, "s", Path("runs"))
        return Heartbeats(store, study, token, every=every, clock=clock)

    slow, quick = worker("a" * 16, 60.0), worker("b" * 16, 1.0)
    slow.beat()
    if not says:
        key = f"paceline:worker:{slow.token}"
        record = storage.get_study_system_attrs(study)[key]
        storage.set_study_system_attr(study, key, {k: v for k, v in record.items() if k != "every"})

    def watch(seconds: int) -> None:
        for _ in range(seconds):
            clock.now += 1.0
            quick.beat()

    watch(60)
    assert quick.gone(slow.token) is not says
    watch(MISSED * 60)
    assert quick.gone(slow.token), "it has died"
