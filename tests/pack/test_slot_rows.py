"""Variables of slots that stay on their device: the same bits as over the host, not going there."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from paceline.pack import slot_rows
from paceline.pack.mesh import MeshLayout
from paceline.pack.slot_rows import (
    RowLeaf,
    RowWriter,
    SlotStack,
    is_on_device,
    move_rows,
    on_device,
    on_host,
)
from paceline.program.trace import State

SLOTS = 8
LAYOUTS = [None, (4, 1), (2, 2)]


def layout_of(shape: tuple[int, int] | None) -> MeshLayout | None:
    if shape is None:
        return None
    return MeshLayout(tuple(jax.devices()[: shape[0] * shape[1]]), *shape)


def place_of(layout: MeshLayout | None) -> Any:
    return jax.devices()[0] if layout is None else layout.over_slots


def values(n: int, seed: int) -> list[list[np.ndarray]]:
    """Arrays [n, ...] of many dtypes, with the bits that sums and casts would not keep."""
    rng = np.random.default_rng(seed)
    floats = rng.standard_normal((n, 3, 2)).astype(np.float32)
    floats[0, 0] = [-0.0, np.inf]
    floats.view(np.uint32)[:, 1, 1] = 0x7FC00000 + 1 + seed  # not a number, with a payload
    halves = np.asarray(rng.standard_normal((n, 5)), ml_dtypes.bfloat16)
    halves[:, 0] = -0.0
    return [
        [floats, halves],
        [rng.integers(0, 2**32, (n, 2), dtype=np.uint32), rng.random((n, 3)) < 0.5],
        [rng.integers(-9, 9, n).astype(np.int32), rng.standard_normal(n).astype(np.float16)],
        [rng.standard_normal(n).astype(np.float32)],
    ]


class Rows:
    """A program that fetches rows."""

    def __init__(self, layout: MeshLayout | None = None, plan: str = "vectorized") -> None:
        self.layout, self.plan = layout, plan

    def row(self, part: list[Any], slot: int) -> list[np.ndarray]:
        whole = [np.asarray(a) for a in part]
        return [np.array(a) if self.plan == "sequential" else np.array(a[slot]) for a in whole]


def stack(layout: MeshLayout | None, n: int = SLOTS, seed: int = 0) -> SlotStack:
    return SlotStack(Rows(layout), jax.device_put(values(n, seed), place_of(layout)))


def alone_stack(array: Any) -> SlotStack:
    return SlotStack(Rows(plan="sequential"), [[array], [], [], []])


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(array)).tobytes()


def expected(states: list[State]) -> list[list[bytes]]:
    """What stacking on the host gives."""
    lists = zip(*(on_host(state).lists() for state in states), strict=True)
    return [
        [bits(np.stack([np.asarray(a) for a in leaves])) for leaves in zip(*parts, strict=True)]
        for parts in lists
    ]


def found(new: list[list[Any]]) -> list[list[bytes]]:
    return [[bits(a) for a in part] for part in new]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As on an accelerator, whose memory is not the host's."""
    monkeypatch.setattr(slot_rows, "host_is_device", lambda: False)
    return monkeypatch


def forbid_the_host(patch: pytest.MonkeyPatch) -> None:
    def crossed(*_: Any, **__: Any) -> Any:
        raise AssertionError("variables went to the host")

    patch.setattr(RowLeaf, "__array__", crossed)
    patch.setattr(Rows, "row", crossed)


@pytest.mark.parametrize("shape", LAYOUTS)
def test_what_is_lent_is_on_the_host_as_the_slot_has_it(shape) -> None:
    lent = stack(layout_of(shape))
    for slot in (0, 5, 7):
        state = lent.lend(slot)
        for copies, leaves, whole in zip(
            on_host(state).lists(), state.lists(), values(SLOTS, 0), strict=True
        ):
            for copy, leaf, array in zip(copies, leaves, whole, strict=True):
                assert (leaf.shape, leaf.dtype) == (array[slot].shape, array.dtype)
                assert leaf.nbytes == array[slot].nbytes
                assert bits(copy) == bits(leaf) == bits(array[slot])


@pytest.mark.parametrize("shape", [None, pytest.param((4, 1), marks=pytest.mark.slow), (2, 2)])
def test_slots_are_copied_among_devices_to_the_bit(apart, shape) -> None:
    """From two stacks, one of other slots; two slots take the same; some leaves are their own."""
    layout = layout_of(shape)
    one, two = stack(layout), stack(layout, n=4, seed=1)
    states = [one.lend(slot) for slot in (3, 1, 1, 7, 0)] + [two.lend(slot) for slot in (2, 2, 0)]
    own = State(*([np.asarray(a) for a in part] for part in one.lend(6).lists()))
    states[1].optimizer[0], states[6].non_trainable[0] = own.optimizer[0], own.non_trainable[0]
    states[6].optimizer[1] = own.optimizer[1]
    truth = expected(states)
    with apart.context() as patch:
        forbid_the_host(patch)
        new = move_rows(dict(enumerate(states)), SLOTS, layout, place_of(layout))
    assert new is not None
    assert found(new) == truth
    assert all(a.sharding.is_equivalent_to(place(a, layout), a.ndim) for p in new for a in p)
    assert found(one.lists) == [[bits(a) for a in part] for part in values(SLOTS, 0)], "kept"


def place(array: Any, layout: MeshLayout | None) -> Any:
    if layout is not None:
        return layout.over_slots
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


@pytest.mark.parametrize("shape", LAYOUTS)
def test_single_slots_are_replaced_among_others(apart, shape) -> None:
    layout = layout_of(shape)
    lent, there = stack(layout), stack(layout, seed=2)
    states = [there.lend(slot) for slot in range(SLOTS)]
    states[2] = lent.lend(7)
    truth = expected(states)
    with apart.context() as patch:
        forbid_the_host(patch)
        new = move_rows({2: states[2]}, SLOTS, layout, place_of(layout), there.lists)
    assert new is not None
    assert found(new) == truth


@pytest.mark.parametrize("shape", LAYOUTS)
@pytest.mark.parametrize("copied", [True, False])
def test_slots_are_written_to_the_bit(monkeypatch, shape, copied) -> None:
    layout = layout_of(shape)
    before, other = values(SLOTS, 0), values(2, 1)
    new = {
        5: State(*([a[0] for a in p] for p in other)),
        2: State(*([a[1] for a in p] for p in other)),
    }
    for slot, state in new.items():
        for part, leaves in zip(before, state.lists(), strict=True):
            for array, leaf in zip(part, leaves, strict=True):
                array[slot] = leaf
    truth = found(before)
    if not copied:
        monkeypatch.setattr(slot_rows, "_COPIED", 0)
    lists = jax.device_put(values(SLOTS, 0), place_of(layout))
    n_programs = slot_rows._put._cache_size()
    lists = RowWriter(layout).put(lists, new, place_of(layout))
    assert found(lists) == truth
    assert all(a.sharding.is_equivalent_to(place(a, layout), a.ndim) for p in lists for a in p)
    if copied:  # nothing is compiled for it
        assert slot_rows._put._cache_size() == n_programs


def test_where_many_are_written_a_program_does_it_in_place(monkeypatch) -> None:
    lists = jax.device_put(values(SLOTS, 0), place_of(None))
    one = State(*([a[3] for a in part] for part in values(SLOTS, 1)))
    n_bytes = sum(a.nbytes for part in lists for a in part)
    monkeypatch.setattr(slot_rows, "_COPIED_IN_ALL", 2 * (n_bytes + slot_rows._COPY))
    writer, n_programs = RowWriter(None), []
    jax.clear_caches()
    for slot in range(4):
        lists = writer.put(lists, {slot: one}, place_of(None))
        n_programs.append(slot_rows._put._cache_size())
    assert n_programs == [0, 0, 1, 1]
    states = [one] * 4 + [
        State(*([a[slot] for a in part] for part in values(SLOTS, 0))) for slot in range(4, SLOTS)
    ]
    assert found(lists) == expected(states)


def test_what_was_written_is_no_longer_the_array_of_before() -> None:
    held = jax.device_put(values(SLOTS, 0), place_of(None))
    one = State(*([a[3] for a in part] for part in values(SLOTS, 1)))
    new = RowWriter(None).put(held, {0: one}, place_of(None))
    assert found(held) == found(values(SLOTS, 0))
    assert not np.shares_memory(np.asarray(new[0][0]), np.asarray(held[0][0]))


def test_copies_are_compiled_for_once(apart) -> None:
    layout = layout_of((4, 1))
    for slots in ((0, 1, 2, 3), (3, 3, 1, 0), (2, 2, 2, 2)):
        lent = stack(layout, n=4)
        move_rows({i: lent.lend(s) for i, s in enumerate(slots)}, 4, layout, place_of(layout))
        n_programs = slot_rows._merge(layout)._cache_size()
        if slots == (0, 1, 2, 3):
            first = n_programs
    assert n_programs == first


def test_what_lies_elsewhere_goes_over_the_host(apart) -> None:
    """Other devices, a plan without an axis of slots, or arrays of the host."""
    mesh = layout_of((4, 1))
    alone = alone_stack(jax.device_put(np.ones(3)))
    arrays = State([np.ones(3)], [], [], [])
    for state in (stack(None).lend(0), alone.lend(0), arrays):
        assert move_rows({0: state}, 1, mesh, place_of(mesh)) is None
    assert move_rows({0: alone.lend(0)}, 1, None, place_of(None)) is None


def test_on_a_cpu_the_hosts_memory_is_the_devices() -> None:
    lent = stack(None)
    assert move_rows({0: lent.lend(0)}, 1, None, place_of(None)) is None
    assert not is_on_device(lent.lend(0))
    leaf = on_host(lent.lend(3), view=True).trainable[0]
    assert np.shares_memory(leaf, np.asarray(lent.lists[0][0]))
    copy = on_host(lent.lend(3)).trainable[0]
    assert not np.shares_memory(copy, np.asarray(lent.lists[0][0]))


def test_the_plan_sequential_takes_whole_arrays(apart) -> None:
    array = jax.device_put(np.arange(3.0, dtype=np.float32))
    alone = alone_stack(array)
    state = alone.lend(0)
    assert state.trainable[0].shape == (3,)
    assert on_device(state).trainable[0] is array
    of_many = on_device(stack(None).lend(2))
    assert bits(of_many.trainable[0]) == bits(values(SLOTS, 0)[0][0][2])
    alone.detach()
    assert bits(on_device(state).trainable[0]) == bits(np.arange(3.0, dtype=np.float32))


def test_what_was_detached_stays_as_it_was(apart) -> None:
    lent = stack(None)
    state, dropped = lent.lend(4), lent.lend(5)
    assert is_on_device(state) and lent.n_lent == 2
    del dropped
    assert lent.n_lent == 1
    lent.detach()
    assert not is_on_device(state)
    for part in lent.lists:
        for array in part:
            array.delete()
    for leaves, whole in zip(state.lists(), values(SLOTS, 0), strict=True):
        for leaf, array in zip(leaves, whole, strict=True):
            assert bits(leaf) == bits(array[4])
    assert state.nbytes == sum(a[4].nbytes for part in values(SLOTS, 0) for a in part)
