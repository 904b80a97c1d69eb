"""Axes of a step's arrays whose extent differs between the trials that share a program.

Notation
    sizes: the extents of one axis in the k traces that are walked in lockstep. The first trace is
        that of the program, whose extents are the largest.

An axis is *open* where the first two traces differ: the program's extent is padded, and each slot
has an extent of its own. An open axis may consist of others: a row-major product (``Flatten`` of
height, width and channels), or consecutive axes (the four gates of an LSTM). Every slot's own
elements then lie where the parts say, in their own order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Sizes = tuple[int, ...]


class NotPaddable(Exception):
    """The walk cannot prove that padding leaves a step's results as they are; says at what."""


class Axis:
    """One axis, until ``unify`` finds that it is the same as another one.

    Args:
        sizes: Its extent in each trace.
        parts: The axes that it is made of; empty for an axis that is not made of others.
        product: Whether the parts are factors of a row-major product; else one follows another.
    """

    __slots__ = ("_same", "parts", "prefix", "product", "sizes")

    def __init__(
        self,
        sizes: Sizes,
        *,
        parts: tuple[Axis, ...] = (),
        product: bool = False,
    ) -> None:
        self.sizes = sizes
        # Whether each slot's own elements must be the first ones, because something counts
        # positions along the axis.
        self.prefix = False
        self.parts, self.product = parts, product
        self._same: Axis | None = None

    def root(self) -> Axis:
        """The axis that stands for all axes that are the same as this one."""
        axis = self
        while axis._same is not None:
            axis = axis._same
        return axis

    @property
    def padded(self) -> bool:
        """Whether its extent differs between slots."""
        return self.sizes[0] != self.sizes[1]

    def require_prefix(self) -> None:
        """Notes that positions along this axis are counted.

        Raises NotPaddable where the axis is made of others, whose elements are not the first ones.
        """
        root = self.root()
        if not root.padded:
            return
        if not root.parts:
            root.prefix = True
            return
        # The own elements of a product are the first ones if only its first factor is padded. Those
        # of consecutive axes are the first ones if only the last is padded.
        last = 0 if root.product else -1
        others = root.parts[1:] if root.product else root.parts[:-1]
        if any(part.padded for part in others):
            raise NotPaddable("positions are counted along an axis that is made of others")
        root.parts[last].require_prefix()

    def bind(self, other: Axis) -> None:
        """Makes this axis, a root without parts, the same as another one."""
        if other is self:
            return
        if self.prefix:
            other.require_prefix()
        self._same = other

    def symbols(self) -> list[Axis]:
        """The open axes without parts that decide its extent, in order, without repeats."""
        root = self.root()
        if not root.padded:
            return []
        if not root.parts:
            return [root]
        return list(dict.fromkeys(symbol for part in root.parts for symbol in part.symbols()))

    def extent(self, extents: Mapping[Any, Any]) -> Any:
        """The extent that a slot has, from the extents of the symbols: int or i32[]."""
        root = self.root()
        if not root.padded:
            return root.sizes[0]
        if not root.parts:
            return extents[root]
        found = [part.extent(extents) for part in root.parts]
        return math.prod(found) if root.product else sum(found)

    def mask(self, extents: Mapping[Any, Any]) -> Any:
        """bool[largest extent]: which elements of the program's axis a slot's own ones are.

        ``extents``: symbol -> the slot's extent; NumPy masks from ints, else traced ones.
        """
        root = self.root()
        known = all(isinstance(extents[symbol], int) for symbol in root.symbols())
        array: Any = np if known else jnp
        if not root.padded:
            return np.ones(root.sizes[0], bool)
        if not root.parts:
            places = np.arange(root.sizes[0]) if known else lax.iota(np.int32, root.sizes[0])
            return places < extents[root]
        masks = [part.mask(extents) for part in root.parts]
        if not root.product:
            return array.concatenate(masks)
        found = masks[0]
        for mask in masks[1:]:
            found = (found[:, None] & mask[None, :]).reshape(-1)
        return found


def fixed(size: int, traces: int) -> Axis:
    """An axis of the same extent in all traces."""
    return Axis((size,) * traces)


def joined(parts: Sequence[Axis]) -> Axis:
    """Axes one after another."""
    return _made([part for part in parts if any(part.sizes)], product=False)


def outgrown(sizes: Sizes) -> bool:
    """Whether a trial is larger than the program somewhere, or smaller where nothing is padded."""
    return max(sizes) > sizes[0] or (sizes[0] == sizes[1] and len(set(sizes)) > 1)


def multiplied(parts: Sequence[Axis]) -> Axis:
    """The row-major product of axes, the last one counted fastest."""
    return _made([part for part in parts if set(part.sizes) != {1}], product=True)


def _made(parts: Sequence[Axis], *, product: bool) -> Axis:
    if len(parts) == 1:
        return parts[0]
    for sizes in (part.root().sizes for part in parts):
        if outgrown(sizes):
            raise NotPaddable(f"an axis has a part of extents {sizes}")
    combine = math.prod if product else sum
    sizes = tuple(combine(part.sizes[t] for part in parts) for t in range(len(parts[0].sizes)))
    if sizes[0] == sizes[1]:
        if len(set(sizes)) > 1 or any(part.padded for part in parts):
            raise NotPaddable("axes of different extents have one extent together")
        return Axis(sizes)
    return Axis(sizes, parts=tuple(parts), product=product)


def unify(first: Axis, second: Axis) -> Axis:
    """Makes two axes the same: an operation works on them element by element.

    Raises NotPaddable where their elements are not in the same places.
    """
    a, b = first.root(), second.root()
    if a is b:
        return a
    if a.sizes != b.sizes:
        raise NotPaddable(f"extents {a.sizes} meet extents {b.sizes}")
    if not a.padded:
        return a
    if not a.parts:
        a.bind(b)
        return b
    if not b.parts:
        b.bind(a)
        return a
    if a.product and b.product:
        _align(_flat(a), _flat(b), product=True)
    else:
        _align(_pieces(a), _pieces(b), product=False)
    # From here on the two are one; either description is right.
    b._same = a
    return a


def _flat(axis: Axis) -> list[Axis]:
    """The parts of an axis, parts of the same kind taken apart in turn."""
    root, found = axis.root(), []
    for part in root.parts:
        inner = part.root()
        same = inner.padded and inner.parts and inner.product == root.product
        found += _flat(inner) if same else [inner]
    return found


def _pieces(axis: Axis) -> list[Axis]:
    """An axis as axes one after another: a product with a fixed first factor repeats the rest."""
    root = axis.root()
    if not root.product:
        return [piece for part in _flat(root) for piece in _pieces_of(part)]
    return _pieces_of(root)


def _pieces_of(axis: Axis) -> list[Axis]:
    root = axis.root()
    if not (root.padded and root.parts and root.product):
        return [root]
    first, *rest = _flat(root)
    if first.padded:
        return [root]
    return [multiplied(rest)] * first.sizes[0]


def _align(ours: list[Axis], theirs: list[Axis], *, product: bool) -> None:
    """Unifies two lists of parts, splitting an open part where the other list has a border.

    Products are compared from their last factor on, which is counted fastest.
    """
    if product:
        ours, theirs = ours[::-1], theirs[::-1]
    ours, theirs = list(ours), list(theirs)
    while ours and theirs:
        a, b = ours[0].root(), theirs[0].root()
        if a.sizes == b.sizes:
            unify(a, b)
            ours.pop(0)
            theirs.pop(0)
            continue
        long, short = (ours, theirs) if a.sizes[0] > b.sizes[0] else (theirs, ours)
        whole, part = long[0].root(), short[0].root()
        rest = _without(whole.sizes, part.sizes, product=product)
        if rest is None or (whole.padded and whole.parts):
            raise NotPaddable(f"an axis of extents {whole.sizes} is split at {part.sizes}")
        other = Axis(rest)
        if whole.padded:
            parts = (other, part) if product else (part, other)
            whole.bind(_made(parts, product=product))
        elif part.padded or other.padded:
            raise NotPaddable(f"an axis of extents {whole.sizes} is split at {part.sizes}")
        long[0] = other
        short.pop(0)
    if ours or theirs:
        raise NotPaddable("an axis has parts that another one has not")


def _without(whole: Sizes, part: Sizes, *, product: bool) -> Sizes | None:
    if product:
        if any(p == 0 or w % p for w, p in zip(whole, part, strict=True)):
            return None
        return tuple(w // p for w, p in zip(whole, part, strict=True))
    found = tuple(w - p for w, p in zip(whole, part, strict=True))
    return found if min(found) > 0 else None
