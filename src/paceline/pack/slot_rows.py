"""Variables of slots that stay where they are while their trials wait.

A trial that leaves its slot for a while need not be copied to the host. The pack's arrays hold its
variables until the pack trains again. ``SlotStack`` is what a pack lends, ``RowLeaf`` one variable
of one slot in it. A list of ``State`` may hold such leaves beside arrays. On the host they are
copied as arrays are, by ``np.asarray``; ``move_rows`` copies them between the devices.

Notation
    S: slots. K: slots of the stack that is copied from. R: devices that the slots are spread over.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from paceline.pack.mesh import TRIAL, MeshLayout
from paceline.program.trace import State

if TYPE_CHECKING:
    from paceline.pack.plan.base import CompiledPlan

Arrays = list[Any]

#: Bytes of the variables of all slots up to which they may be copied to write some.
_COPIED = 1 << 25
#: After this many copied bytes, a program that writes in place is compiled, since copying took as
#: long. The second number of bytes takes as long to copy as a copy takes to begin.
_COPIED_IN_ALL, _COPY = 1 << 29, 1 << 21


class SlotStack:
    """The variables of all slots of a pack at one moment.

    ``lists``: the four lists of arrays; nothing may overwrite them before ``detach``.
    """

    def __init__(self, program: CompiledPlan, lists: Sequence[Arrays]) -> None:
        self._program, self.lists = program, [list(part) for part in lists]
        # Devices that the slots are spread over; None: the default device.
        self.layout = program.layout
        # Whether the arrays are [S, ...]; under the plan ``sequential`` they have no axis of slots.
        self.stacked = program.plan != "sequential"
        self._lent: weakref.WeakSet[SlotRow] = weakref.WeakSet()

    def lend(self, slot: int) -> State:
        """The variables of a slot, which are copied when they are needed elsewhere."""
        row = SlotRow(self, slot)
        self._lent.add(row)
        return State(
            *(
                [RowLeaf(row, part, at) for at in range(len(leaves))]
                for part, leaves in enumerate(self.lists)
            )
        )

    @property
    def n_lent(self) -> int:
        """Number of slots that someone still holds."""
        return len(self._lent)

    def fetch(self, slot: int) -> list[list[np.ndarray]]:
        """Copies of a slot's variables on the host."""
        return [self._program.row(part, slot) for part in self.lists]

    def fetch_leaf(self, slot: int, part: int, leaf: int) -> np.ndarray:
        """A copy of one of a slot's variables on the host."""
        return self._program.row([self.lists[part][leaf]], slot)[0]

    def look(self, slot: int) -> list[list[np.ndarray]]:
        """A slot's variables where the host's memory is the device's: that memory itself."""
        if not self.stacked:
            return [[np.asarray(a) for a in part] for part in self.lists]
        if self.layout is None:
            return [[np.asarray(a)[slot] for a in part] for part in self.lists]
        return [[self.layout.slot_of(a, slot) for a in part] for part in self.lists]

    def detach(self) -> None:
        """Copies to the host what is still held: the arrays are about to be overwritten."""
        for row in list(self._lent):
            row.detach()


class SlotRow:
    """One slot of a stack, until it is detached; then copies on the host."""

    def __init__(self, stack: SlotStack, slot: int) -> None:
        self.stack: SlotStack | None = stack
        self.slot = slot
        self.copies: list[list[np.ndarray]] = []

    def detach(self) -> None:
        """Copies the variables to the host and lets go of the stack."""
        if self.stack is not None:
            self.copies, self.stack = self.stack.fetch(self.slot), None


class RowLeaf:
    """One variable of a slot, with its shape in the trial; number ``leaf`` of list ``part``."""

    __slots__ = ("dtype", "leaf", "nbytes", "part", "row", "shape")

    def __init__(self, row: SlotRow, part: int, leaf: int) -> None:
        assert row.stack is not None
        self.row, self.part, self.leaf = row, part, leaf
        array = row.stack.lists[part][leaf]
        self.shape: tuple[int, ...] = array.shape[1:] if row.stack.stacked else array.shape
        self.dtype = np.dtype(array.dtype)
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy on the host."""
        stack = self.row.stack
        if stack is None:
            found = np.array(self.row.copies[self.part][self.leaf])
        else:
            found = stack.fetch_leaf(self.row.slot, self.part, self.leaf)
        return found if dtype is None else found.astype(dtype)


def host_is_device() -> bool:
    """Whether programs run on the CPU, in the memory of the host."""
    return jax.default_backend() == "cpu"


def is_on_device(state: State) -> bool:
    """Whether variables of a state are in memory of a device that is not the host's."""
    return not host_is_device() and bool(_stacks_of(state))


def on_host(state: State, *, view: bool = False) -> State:
    """A state whose arrays lie on the host; it is the state itself where nothing was lent.

    ``view``: without a copy where the host's memory is the device's. The arrays are to be copied at
    once then: others write there later.
    """
    rows = _rows(state)
    if not rows:
        return state
    # A slot's variables are fetched together: leaf by leaf each shape would be compiled for.
    found = {row: _values(row, view) for row in rows}
    return State(
        *(
            [found[a.row][a.part][a.leaf] if isinstance(a, RowLeaf) else a for a in part]
            for part in state.lists()
        )
    )


def _values(row: SlotRow, view: bool) -> list[list[np.ndarray]]:
    stack = row.stack
    if stack is None:
        return row.copies
    return stack.look(row.slot) if view and host_is_device() else stack.fetch(row.slot)


class RowWriter:
    """Writes variables that lie on the host into slots.

    On a CPU they are written into copies at first. A program that writes in place takes a quarter
    of a second to compile, and most programs of a search over structures have few trials.
    ``layout``: devices that the slots are spread over; None: the default device.
    """

    def __init__(self, layout: MeshLayout | None) -> None:
        self._layout = layout
        self._copied = 0  # bytes

    def put(self, state: Sequence[Arrays], new: Mapping[int, State], to: Any) -> list[Arrays]:
        """Returns the four lists of arrays [S, ...]; the memory of ``state`` may be donated.

        ``new``: slot -> what it gets. ``to``: the device or the sharding of the arrays.
        """
        lists = list(state)
        n_bytes = sum(a.nbytes for part in lists for a in part)
        if self._layout is None and host_is_device() and n_bytes <= _COPIED:
            self._copied += n_bytes + _COPY
            if self._copied <= _COPIED_IN_ALL:
                return jax.device_put(_copies(lists, new), to)
        put = _put if self._layout is None else _put_everywhere
        for slot, one in new.items():
            lists = put(lists, list(one.lists()), np.int32(slot))
        return lists


def _copies(state: list[Arrays], new: Mapping[int, State]) -> list[list[np.ndarray]]:
    lists = [[np.array(a) for a in part] for part in state]
    for slot, one in new.items():
        for part, values in zip(lists, one.lists(), strict=True):
            for array, value in zip(part, values, strict=True):
                array[slot] = value
    return lists


@partial(jax.jit, donate_argnums=0)
def _put_everywhere(state: list[Arrays], one: list[Arrays], slot: Any) -> list[Arrays]:
    """As ``_put`` over a mesh: each device replaces the slot if it holds it, without exchange."""

    def put(many: Any, new: Any) -> Any:
        here = jnp.arange(many.shape[0]) == slot
        return jnp.where(here.reshape(-1, *[1] * (many.ndim - 1)), new, many)

    return jax.tree.map(put, state, one)


@partial(jax.jit, donate_argnums=0)
def _put(state: list[Arrays], one: list[Arrays], slot: Any) -> list[Arrays]:
    return jax.tree.map(lambda many, new: many.at[slot].set(new), state, one)


def on_device(state: State) -> State:
    """A state for the plan ``sequential``: what its packs lent are whole arrays on the device."""
    if any(stack.stacked for stack in _stacks_of(state)):
        state = on_host(state, view=True)
    return State(*([_whole(leaf) for leaf in part] for part in state.lists()))


def _whole(leaf: Any) -> Any:
    if not isinstance(leaf, RowLeaf):
        return leaf
    stack = leaf.row.stack
    return np.asarray(leaf) if stack is None else stack.lists[leaf.part][leaf.leaf]


def move_rows(
    states: Mapping[int, State],
    n_slots: int,
    layout: MeshLayout | None,
    to: Any,
    into: Sequence[Arrays] | None = None,
) -> list[Arrays] | None:
    """Puts variables that lie on the devices into slots, without their way over the host.

    Returns the four lists of arrays [S, ...]; None if the states have to go over the host.

    Args:
        states: Slot -> what it gets.
        n_slots: S.
        layout: Devices that the slots are spread over; None: the default device.
        to: The device or the sharding of the arrays.
        into: The four lists of arrays [S, ...], whose memory is donated; None: slots without a
            state have zeros.
    """
    stacks = list(dict.fromkeys(s for state in states.values() for s in _stacks_of(state)))
    if not stacks or any(not each.stacked or each.layout != layout for each in stacks):
        return None
    if host_is_device():
        return None  # the same memory: to copy it there needs no program
    new = [list(part) for part in into or _zeros(next(iter(states.values())), n_slots, to)]
    for stack in stacks:
        index, mask = np.zeros(n_slots, np.int32), np.zeros(n_slots, bool)
        for slot, state in states.items():
            for row in _rows(state):
                if row.stack is stack:
                    index[slot], mask[slot] = row.slot, True
        new = _merge(layout)(new, stack.lists, index, mask)
    for part in range(len(new)):
        for at in range(len(new[part])):
            leaves = {slot: state.lists()[part][at] for slot, state in states.items()}
            # A copy's own rate and seeds, or the variables of a trial that waited on the host.
            own = {slot: leaf for slot, leaf in leaves.items() if not _is_lent(leaf)}
            if own:
                new[part][at] = _with_own(new[part][at], own, layout, to)
    return new


def _with_own(array: Any, own: Mapping[int, Any], layout: MeshLayout | None, to: Any) -> Any:
    """An array [S, ...] with the values that some of its slots have on the host."""
    column, mask = np.zeros(array.shape, array.dtype), np.zeros(len(array), bool)
    for slot, leaf in own.items():
        column[slot], mask[slot] = np.asarray(leaf), True
    index = np.arange(len(array), dtype=np.int32)
    ((found,),) = _merge(layout)([[array]], jax.device_put([[column]], to), index, mask)
    return found


def is_lent(state: State) -> bool:
    """Whether a pack has lent variables of a state."""
    return bool(_rows(state))


def _is_lent(leaf: Any) -> bool:
    return isinstance(leaf, RowLeaf) and leaf.row.stack is not None


def _rows(state: State) -> set[SlotRow]:
    """The slots in which variables of a state lie: one, but for a copy's own variables."""
    return {leaf.row for part in state.lists() for leaf in part if isinstance(leaf, RowLeaf)}


def _stacks_of(state: State) -> list[SlotStack]:
    return [row.stack for row in _rows(state) if row.stack is not None]


@lru_cache(maxsize=64)
def _zeros_program(shapes: Any, n: int, to: Any) -> Any:
    sharding = to if hasattr(to, "mesh") else jax.sharding.SingleDeviceSharding(to)
    return jax.jit(
        lambda: [[jnp.zeros((n, *shape), dtype) for shape, dtype in part] for part in shapes],
        out_shardings=sharding,
    )


def _zeros(like: State, n_slots: int, to: Any) -> list[Arrays]:
    """Four lists of arrays [S, ...] on the devices, to be filled."""
    shapes = [[(tuple(a.shape), np.dtype(a.dtype)) for a in part] for part in like.lists()]
    return _zeros_program(tuple(map(tuple, shapes)), n_slots, to)()


@lru_cache(maxsize=64)
def _merge(layout: MeshLayout | None) -> Any:
    """The program that copies slots: ``(new, old, index, mask) -> new``.

    new: lists of arrays [S, ...], whose memory is donated. old: lists of arrays [K, ...]. index:
    i32[S], the slot of ``old`` that each slot takes. mask: bool[S], the slots that take one.
    """
    if layout is None:
        return jax.jit(_merge_here, donate_argnums=0)
    over, everywhere = PartitionSpec(TRIAL), PartitionSpec()
    spread = jax.shard_map(
        _merge_over,
        mesh=layout.mesh,
        in_specs=(over, over, everywhere, everywhere),
        out_specs=over,
        check_vma=False,
    )
    return jax.jit(spread, donate_argnums=0)


def _merge_here(new: list[Arrays], old: list[Arrays], index: Any, mask: Any) -> list[Arrays]:
    def merged(many: Any, other: Any) -> Any:
        here = mask.reshape(-1, *[1] * (many.ndim - 1))
        return jnp.where(here, other[index], many)

    return jax.tree.map(merged, new, old)


def _merge_over(new: list[Arrays], old: list[Arrays], index: Any, mask: Any) -> list[Arrays]:
    """As ``_merge_here``, on each device of a mesh: one slot after another goes to all of them.

    So a device needs memory for one more slot, not for those of all devices.
    """
    me = lax.axis_index(TRIAL)

    def slot(i: Any, carry: list[Arrays]) -> list[Arrays]:
        def moved(many: Any, other: Any) -> Any:
            n_new, n_old = many.shape[0], other.shape[0]
            row = _bits(lax.dynamic_index_in_dim(other, index[i] % n_old, keepdims=False))
            # Integers: a sum with zeros keeps every bit of them, as of floats it would not.
            row = lax.psum(jnp.where(index[i] // n_old == me, row, jnp.zeros_like(row)), TRIAL)
            before = lax.dynamic_index_in_dim(many, i % n_new, keepdims=False)
            value = jnp.where(i // n_new == me, _from_bits(row, many.dtype), before)
            return lax.dynamic_update_index_in_dim(many, value, i % n_new, 0)

        # The devices agree on the mask, so all of them take the same branch.
        return lax.cond(mask[i], lambda: jax.tree.map(moved, carry, old), lambda: carry)

    return lax.fori_loop(0, index.shape[0], slot, new)


def _bits(array: Any) -> Any:
    """An array's bits as integers, of 8 bits at least."""
    if jnp.issubdtype(array.dtype, jnp.integer):
        return array
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint8)
    return lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")


def _from_bits(bits: Any, dtype: Any) -> Any:
    if bits.dtype == dtype:
        return bits
    if dtype == jnp.bool_:
        return bits.astype(dtype)
    return lax.bitcast_convert_type(bits, dtype)
