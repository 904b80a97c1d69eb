"""Where the variables of several variants lie among those of their common step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import jax

from paceline.program.trace import State


class NotMergeable(Exception):
    """Steps cannot become one; the message says why."""


@dataclass(frozen=True)
class VariantLayout:
    """Where the variables of the variants lie among those of their common step."""

    state: State  # shapes and dtypes of all variables
    # For each variant, for each list of ``State.lists``: the number in ``state`` of each of its
    # variables.
    places: tuple[tuple[tuple[int, ...], ...], ...]

    def flat(self, variant: int, *, optimizer: bool) -> list[int]:
        """The numbers of a variant's variables, in the order of its step's inputs."""
        found, offset = [], 0
        for part, (whole, own) in enumerate(
            zip(self.state.lists(), self.places[variant], strict=True)
        ):
            if part == 2 and not optimizer:
                continue
            found += [offset + place for place in own]
            offset += len(whole)
        return found


def lay_out(states: Sequence[State]) -> VariantLayout:
    """Lays the variables of several variants out, those of one shape and dtype in one place.

    Raises NotMergeable where the variants count other metrics.
    """
    merged: list[list[Any]] = []
    places: list[list[tuple[int, ...]]] = [[] for _ in states]
    for part, lists in enumerate(zip(*(state.lists() for state in states), strict=True)):
        keys = [[(tuple(leaf.shape), str(leaf.dtype)) for leaf in each] for each in lists]
        if part == 3 and any(key != keys[0] for key in keys):
            raise NotMergeable("the variants count other metrics")
        order: list[tuple[int, int]] = []  # variant and number in it that a variable is first met
        own: list[list[tuple[int, int]]] = []
        for variant, theirs in enumerate(keys):
            found = aligned([keys[v][i] for v, i in order], theirs)
            known = order
            order = [known[a] if a is not None else (variant, b or 0) for a, b in found]
            own.append(
                [order[at] for at, (_, b) in enumerate(found) if b is not None]  # in its own order
            )
        number = {met: at for at, met in enumerate(order)}
        merged.append(
            [jax.ShapeDtypeStruct(lists[v][i].shape, lists[v][i].dtype) for v, i in order]
        )
        for variant, met in enumerate(own):
            places[variant].append(tuple(number[each] for each in met))
    return VariantLayout(State(*merged), tuple(map(tuple, places)))


def aligned(ours: Sequence[Any], theirs: Sequence[Any]) -> list[tuple[int | None, int | None]]:
    """Two sequences as one: pairs of positions, None if the other has nothing alike."""
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    found: list[tuple[int | None, int | None]] = []
    i = j = 0
    for a, b, size in blocks:
        found += [(at, None) for at in range(i, a)]
        found += [(None, at) for at in range(j, b)]
        found += [(a + at, b + at) for at in range(size)]
        i, j = a + size, b + size
    return found
