"""What is put on a device, once for all packs, and how many slots fit beside it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from executor.fakes import FakeProgram, group, trial
from paceline.data.adapters import EpochBatches
from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset
from paceline.data.chunks import ChunkedArrays, ChunkedBatches
from paceline.executor.base import SearchData, UserNotifier
from paceline.executor.sharing.grouping import LocalGroup
from paceline.executor.training import memory
from paceline.executor.training.memory import DeviceData, MemorySharers, SlotCapacity
from paceline.pack.mesh import MeshLayout
from paceline.pack.plan import Workload
from paceline.program.trace import State

X = np.arange(80, dtype=np.float32).reshape(40, 2)
Y = np.arange(40, dtype=np.int32)
TRAIN = ArrayData((X, Y), 40)
VALIDATION = ArrayData((X[:8].copy(), Y[:8].copy()), 8)
#: Bytes of the training and of the validation data on a device.
TRAIN_BYTES, VALIDATION_BYTES = 40 * 12, 8 * 12


def on(work: Workload) -> LocalGroup:
    made = group()
    made.work = work
    return made


def resident(found: Any) -> tuple[Any, ...]:
    """The arrays on the device, of training data that are there as a whole."""
    return found.arrays


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def data(notes: list[str]) -> DeviceData:
    return DeviceData(UserNotifier(notes.append))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arrays that are put on a device."""
    found, put = [], jax.device_put

    def seen(array: Any, *args: Any, **options: Any) -> Any:
        found.append(array)
        return put(array, *args, **options)

    monkeypatch.setattr(jax, "device_put", seen)
    return found


def test_groups_share_what_is_on_the_device(data: DeviceData, sent: list[Any]) -> None:
    """Their batch sizes do not matter: a step gathers its examples from the whole."""
    first = data.of(on(Workload(TRAIN, VALIDATION, 4, 4)), None)
    again = data.of(on(Workload(TRAIN, VALIDATION, 16, 8)), None)
    assert len(sent) == 4
    for a, b in zip(resident(first[0]), resident(again[0]), strict=True):
        assert a is b
    for a, b in zip(first[1], again[1], strict=True):
        assert a is b
    np.testing.assert_array_equal(resident(first[0])[0], X)
    np.testing.assert_array_equal(first[1][1], Y[:8])


def test_an_array_that_is_both_training_and_validation_data_is_there_once(
    data: DeviceData, sent: list[Any]
) -> None:
    """As with folds, whose examples are numbers of those of all data."""
    train, validation = data.of(on(Workload(TRAIN, ArrayData((X, Y), 40), 4, 4)), None)
    assert len(sent) == 2
    for a, b in zip(resident(train), validation, strict=True):
        assert a is b


def test_without_validation_data_there_are_none(data: DeviceData) -> None:
    assert data.of(on(Workload(TRAIN, None, 4, 4)), None)[1] is None


def test_each_set_of_devices_has_its_own_and_every_device_all_of_it(
    data: DeviceData, sent: list[Any]
) -> None:
    devices = tuple(jax.devices()[:4])
    work = Workload(TRAIN, None, 4, 4)
    layouts = (None, MeshLayout(devices, 4, 1), MeshLayout(devices, 2, 2))
    alone, spread, other_shape = (resident(data.of(on(work), at)[0])[0] for at in layouts)
    assert len(alone.devices()) == 1
    assert spread.devices() == set(devices)
    assert all(shard.data.shape == X.shape for shard in spread.addressable_shards)
    assert other_shape is spread, "a mesh of the same devices, cut otherwise"
    assert len(sent) == 4


def test_training_data_that_do_not_fit_are_sent_in_chunks_and_users_are_told_once(
    data: DeviceData, notes: list[str]
) -> None:
    work = Workload(TRAIN, VALIDATION, 4, 4, chunk_bytes=100.0)
    found, validation = data.of(on(work), None)
    assert isinstance(found, ChunkedArrays) and (found.size, found.batch_size) == (8, 4)
    assert isinstance(validation[0], jax.Array), "validation data are there as a whole"
    data.of(on(work), None)
    assert len(notes) == 1
    assert "480 bytes) do not fit on the device, so chunks of 8 examples" in notes[0]
    other, _ = data.of(on(Workload(TRAIN, VALIDATION, 8, 4, chunk_bytes=100.0)), None)
    assert isinstance(other, ChunkedArrays) and other.batch_size == 8


def test_each_pack_reads_a_data_set_of_batches_for_itself(data: DeviceData) -> None:
    """It has a place in it; validation data are shared."""

    def batches() -> Iterator[Any]:
        return iter(())

    dataset = BatchedDataset(
        "dataset",
        4,
        0,
        TRAIN.batch_shapes(4),
        EpochBatches(10),
        False,
        TRAIN,
        None,
        batches,
        (),
        (),
    )  # type: ignore[arg-type]
    made = on(Workload(dataset, VALIDATION, 4, 4, chunk_bytes=100.0))
    one, two = data.of(made, None), data.of(made, None)
    assert isinstance(one[0], ChunkedBatches) and isinstance(two[0], ChunkedBatches)
    assert one[0] is not two[0]
    assert one[1][0] is two[1][0]


def test_what_was_cleared_is_sent_again(data: DeviceData, sent: list[Any]) -> None:
    made = on(Workload(TRAIN, None, 4, 4))
    data.of(made, None)
    data.clear()
    data.of(made, None)
    assert len(sent) == 4


# -- how many slots fit ----------------------------------------------------------------------------


def program(n_slots: int, slot_bytes: int) -> Any:
    """A program that takes so many bytes for each slot, beside the training data."""
    executable = SimpleNamespace(memory=TRAIN_BYTES + n_slots * slot_bytes)
    return FakeProgram(n_slots, roles=lambda: [[executable]])


def room(data: DeviceData, n_slots: int, packs_at_once: int = 1, each: int = 1000) -> SlotCapacity:
    work = Workload(TRAIN, VALIDATION, 4, 4)
    return data.room(on(work), program(n_slots, each), packs_at_once)


@pytest.mark.parametrize(
    ("free", "packs_at_once", "fitting"),
    [(8000, 1, 8), (7999, 1, 4), (8000, 2, 4), (1999, 1, 1), (999, 1, 0)],
)
def test_as_many_slots_fit_as_a_power_of_two_beside_the_data(
    data: DeviceData, monkeypatch: pytest.MonkeyPatch, free: int, packs_at_once: int, fitting: int
) -> None:
    monkeypatch.setenv(memory.LIMIT, str(free + TRAIN_BYTES + VALIDATION_BYTES))
    assert room(data, 8, packs_at_once) == SlotCapacity(fitting, 1000.0, 1, free)


def other_group(n_slots: int, slot_bytes: int, held: int) -> Any:
    """A group of which one pack is on the device, with variables of ``held`` bytes in each slot."""
    made = on(Workload(TRAIN, VALIDATION, 4, 4))
    made.state = State([np.zeros(held, np.int8)], [], [], [])
    made.program = program(n_slots, slot_bytes)
    pack: Any = SimpleNamespace(on_device=True, live=[0], program=made.program)
    made.packs = [pack]
    return made


@pytest.mark.parametrize(
    ("free", "fitting"),
    # 8 x 400 bytes of variables there. With 8 slots, both need 8 x 600 bytes to train with.
    [
        (8000 + 3200, 8),
        (8000 + 3199, 4),
        (1600 + 4800 + 3200, 4),
        (4800 + 800 + 3200, 2),
        (3200, 0),
    ],
)
def test_variables_of_others_take_memory_and_what_packs_train_with_is_used_in_turn(
    data: DeviceData, monkeypatch: pytest.MonkeyPatch, free: int, fitting: int
) -> None:
    monkeypatch.setenv(memory.LIMIT, str(free + TRAIN_BYTES + VALIDATION_BYTES))
    made = other_group(8, 1000, 400)
    found = data.room(made, made.program, 1, [other_group(8, 1000, 400)])
    assert found.fitting == fitting


def test_what_a_device_says_is_free_lacks_what_others_hold_already(
    data: DeviceData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(memory.LIMIT, raising=False)
    monkeypatch.setattr(memory, "free_bytes", lambda: 8000.0)
    made, other = other_group(8, 1000, 400), other_group(8, 1000, 400)
    data.of(made, None)
    assert data.room(made, made.program, 1, [other]).fitting == 8
    other.packs[0].on_device = False  # it is about to begin
    assert data.room(made, made.program, 1, [other]).free == 8000 - 8 * 400
    other.packs.clear()
    other.queue.append(trial(0))
    assert data.room(made, made.program, 1, [other]).free == 8000 - 8 * 400


def test_slots_are_as_many_as_the_program_has_where_more_would_fit(
    data: DeviceData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(memory.LIMIT, str(10**9))
    assert room(data, 6).fitting == 6


def test_data_that_are_there_are_part_of_what_a_device_says_is_taken(
    data: DeviceData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no part of what a limit of the user's says, which is the same before and after."""
    monkeypatch.delenv(memory.LIMIT, raising=False)
    monkeypatch.setattr(memory, "free_bytes", lambda: 5000.0)
    before = room(data, 8).free
    work = Workload(TRAIN, VALIDATION, 4, 4)
    data.of(on(work), None)
    assert before == 5000.0 - TRAIN_BYTES - VALIDATION_BYTES
    assert room(data, 8).free == 5000.0
    monkeypatch.setenv(memory.LIMIT, "5000")
    assert room(data, 8).free == before


def test_of_two_chunks_on_the_device_a_program_is_given_one(
    data: DeviceData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(memory.LIMIT, "5000")
    work = Workload(TRAIN, None, 4, 4, chunk_bytes=100.0)  # 8 examples of 12 bytes
    found = data.room(on(work), program(8, 1000), 1)
    assert found.each == (8 * 1000 + TRAIN_BYTES - 8 * 12) / 8
    assert found.free == 5000 - 2 * 8 * 12


@pytest.mark.parametrize("waiting", [[], [0]], ids=["idle", "with a trial"])
def test_data_that_nobody_uses_make_room_for_those_of_another_executor(
    monkeypatch: pytest.MonkeyPatch, waiting: list[int]
) -> None:
    monkeypatch.delenv(memory.LIMIT, raising=False)
    sharers, free = MemorySharers(), [500.0]
    clear = partial(free.__setitem__, 0, 5000.0)
    idle: Any = SimpleNamespace(groups=[group(*waiting)]), SimpleNamespace(clear=clear)
    sharers.add(*idle)
    monkeypatch.setattr(memory, "free_bytes", lambda: free[0])
    found = sharers.chunk_bytes(SearchData(TRAIN, VALIDATION))
    assert (found is None) == (not waiting)


@pytest.mark.parametrize(("limit", "held", "holds"), [(9000, 1000, True), (9000, 1001, False)])
def test_paused_trials_stay_on_a_device_that_can_still_train(
    data: DeviceData, monkeypatch: pytest.MonkeyPatch, limit: int, held: int, holds: bool
) -> None:
    """Eight slots of 1,000 bytes train beside what is held."""
    monkeypatch.setattr(memory, "host_is_device", lambda: False)
    work = on(Workload(TRAIN, VALIDATION, 4, 4))
    monkeypatch.setenv(memory.LIMIT, str(limit + TRAIN_BYTES + VALIDATION_BYTES))
    assert data.can_hold(work, program(8, 1000), held) == holds
    # What a device says is free lacks what is held already.
    monkeypatch.delenv(memory.LIMIT)
    data.of(work, None)
    monkeypatch.setattr(memory, "free_bytes", lambda: 8000.0)
    assert data.can_hold(work, program(8, 1000), held)
    monkeypatch.setattr(memory, "free_bytes", lambda: 7999.0)
    assert not data.can_hold(work, program(8, 1000), held)


def test_on_a_cpu_the_limit_of_paused_states_decides(
    data: DeviceData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 0.0)
    assert data.can_hold(on(Workload(TRAIN, VALIDATION, 4, 4)), program(8, 1000), 10**12)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(999, "999 bytes"), (1000, "1 kB"), (2_340_000, "2.34 MB"), (5e12, "5e+03 GB")],
)
def test_sizes_for_people(n_bytes: float, text: str) -> None:
    assert memory.size_text(n_bytes) == text
