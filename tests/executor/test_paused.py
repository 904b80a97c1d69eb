"""Paused trials wait in memory, then on disk, and come back as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from paceline.executor.snapshot import PausedStates
from paceline.pack.pack import SlotTrial
from paceline.program.trace import State

RNG = np.random.default_rng(0)
#: The group of all trials; nothing here looks into it.
GROUP: Any = object()


def trial(number: int) -> SlotTrial:
    arrays = [
        RNG.standard_normal((3, 4)).astype(np.float32),
        np.asarray(RNG.standard_normal(5), ml_dtypes.bfloat16),
        np.int32(number) * np.ones((), np.int32),
    ]
    return SlotTrial(number, number, 9, State(arrays, [], arrays[:1], arrays[2:]), (), None)


def same(one: State, two: State) -> None:
    for a, b in zip(one.lists(), two.lists(), strict=True):
        for x, y in zip(a, b, strict=True):
            assert x.dtype == y.dtype and x.shape == y.shape
            np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("limit", [0, 200, 10**9])
def test_states_come_back_as_they_were(limit: int) -> None:
    paused = PausedStates(limit)
    given = [trial(number) for number in range(5)]
    states = [one.state for one in given]
    for one in given:
        paused.put(one, GROUP)
        assert one.state is None
    assert len(paused) == 5
    assert (paused.on_disk > 0) == (limit < 1000)
    assert limit == 0 or paused.on_disk < 5
    for number in (3, 0, 4):
        back, group = paused.take(number)
        assert group is GROUP
        assert back is given[number]
        assert back.state is not None and states[number] is not None
        same(back.state, states[number])
    assert len(paused) == 2
    paused.close()


def test_files_are_removed_with_their_trials_and_on_close() -> None:
    paused = PausedStates(0)
    for number in range(3):
        paused.put(trial(number), GROUP)
    folder = Path(paused._folder.name)  # pyright: ignore[reportOptionalMemberAccess]
    assert len(list(folder.iterdir())) == 3
    paused.drop(1)
    paused.drop(1)
    paused.take(0)
    assert [file.name for file in folder.iterdir()] == ["2.state"]
    paused.close()
    assert not folder.exists()


def test_a_disk_that_takes_nothing_leaves_states_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    paused = PausedStates(0)
    monkeypatch.setattr(Path, "open", full)
    paused.put(trial(0), GROUP)
    assert paused.on_disk == 0
    assert paused.take(0)[0].state is not None
    paused.close()
