"""Single variables of a pack's slots on the host, between two epochs.

A small variable, such as a learning rate, is fetched for all slots at once: the callbacks of all
trials read the same one. Of a large variable a slot's whole list is fetched, by the program that
fetches weights. Values that callbacks write are gathered, and go to the device in one piece.

Notation
    S: slots. part: number of a list in ``State.lists``. leaf: number of a variable in that list.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from paceline.pack.plan import Arrays, CompiledPlan
from paceline.program.trace import State

#: Bytes of one slot's variable up to which those of all slots are fetched at once.
_SMALL = 4096

_Leaf = tuple[int, int]  # (part, leaf)


class SlotView:
    """Reads and writes variables of slots.

    ``state``: the four lists of arrays [S, ...] between two epochs.
    """

    def __init__(self, program: CompiledPlan, state: Sequence[Arrays]) -> None:
        self._program, self._state = program, [list(part) for part in state]
        self._columns: dict[_Leaf, np.ndarray] = {}  # values [S, ...]
        self._rows: dict[tuple[int, int], list[np.ndarray]] = {}  # (part, slot) -> its arrays
        self._new_columns: set[_Leaf] = set()
        self._new_rows: dict[int, dict[_Leaf, np.ndarray]] = {}  # slot -> written values

    def read(self, slot: int, part: int, leaf: int) -> np.ndarray:
        """A copy of one variable of a slot, with the shape it has in the trial."""
        if self._is_small(part, leaf):
            return self._column(part, leaf)[slot].copy()
        written = self._new_rows.get(slot, {}).get((part, leaf))
        if written is not None:
            return written.copy()
        if (part, slot) not in self._rows:
            self._rows[part, slot] = self._program.row(self._state[part], slot)
        return self._rows[part, slot][leaf].copy()

    def write(self, slot: int, part: int, leaf: int, value: np.ndarray) -> None:
        """Replaces one variable of a slot by a value of the same shape."""
        if self._is_small(part, leaf):
            self._column(part, leaf)[slot] = value
            self._new_columns.add((part, leaf))
        else:
            self._new_rows.setdefault(slot, {})[part, leaf] = np.array(value)

    def written(self) -> list[Arrays]:
        """The four lists with the written values; do not use the old lists: they may be donated."""
        state = self._state
        for part, leaf in self._new_columns:
            old, column = state[part][leaf], self._columns[part, leaf]
            if old.ndim == column.ndim:
                state[part][leaf] = jax.device_put(column, old.sharding)
            else:  # the plan sequential: its arrays have no axis of slots
                state[part][leaf] = jnp.array(column[0])
        new = {}
        for slot, values in self._new_rows.items():
            lists = [self._program.row(part, slot) for part in state]
            for (part, leaf), value in values.items():
                lists[part][leaf] = value
            new[slot] = State(*lists)
        return self._program.put(state, new) if new else state

    def _is_small(self, part: int, leaf: int) -> bool:
        array, slots = self._state[part][leaf], self._program.n_slots
        return array.nbytes <= _SMALL * slots

    def _column(self, part: int, leaf: int) -> np.ndarray:
        if (part, leaf) not in self._columns:
            ((column,),) = self._program.fetch([[self._state[part][leaf]]])
            self._columns[part, leaf] = column
        return self._columns[part, leaf]
