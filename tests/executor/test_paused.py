"""Paused trials wait in memory, then on disk, and come back as they were."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from paceline.executor.paused import PausedStates
from paceline.pack.pack import SlotTrial
from paceline.program.trace import State

RNG = np.random.default_rng(0)


def rider(number: int) -> SlotTrial:
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
    parking = PausedStates(limit)
    given = [rider(number) for number in range(5)]
    states = [one.state for one in given]
    for one in given:
        parking.put(one)
        assert one.state is None
    assert len(parking) == 5
    assert (parking.on_disk > 0) == (limit < 1000)
    assert limit == 0 or parking.on_disk < 5
    for number in (3, 0, 4):
        back = parking.take(number)
        assert back is given[number]
        assert back.state is not None and states[number] is not None
        same(back.state, states[number])
    assert len(parking) == 2
    parking.close()


def test_files_go_with_their_trials_and_with_the_parking() -> None:
    parking = PausedStates(0)
    for number in range(3):
        parking.put(rider(number))
    folder = Path(parking._folder.name)  # pyright: ignore[reportOptionalMemberAccess]
    assert len(list(folder.iterdir())) == 3
    parking.drop(1)
    parking.drop(1)
    parking.take(0)
    assert [file.name for file in folder.iterdir()] == ["2.state"]
    parking.close()
    assert not folder.exists()


def test_a_disk_that_takes_nothing_leaves_states_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    parking = PausedStates(0)
    monkeypatch.setattr(Path, "open", full)
    parking.put(rider(0))
    assert parking.on_disk == 0
    assert parking.take(0).state is not None
    parking.close()
