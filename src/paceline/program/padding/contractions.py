"""Rules of operations that combine elements along an axis: products, sums, windows, lookups.

Where such an axis is padded, the padding is filled with the operation's neutral number first. The
result's padding along other axes is unknown: an infinite element of a slot's own, times a zero of
the padding, is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paceline.program import jax_compat as jv
from paceline.program.padding.axes import Axis, fixed, unify
from paceline.program.padding.elementwise import common_axes
from paceline.program.padding.lockstep import (
    Equation,
    Fill,
    Outcome,
    PaddedValue,
    Padding,
    Rule,
    Symbol,
)
from paceline.program.rewrites.random_bits import threefry


def _products(eqn: Equation, left: Iterable[int], right: Iterable[int]) -> tuple[Fill, ...]:
    """The fills after which padding along contracted axes adds zero to each sum of products."""
    pairs = list(zip(left, right, strict=True))
    a, b = eqn.ins
    for i, j in pairs:
        unify(a.axes[i], b.axes[j])
    padded = [(i, j) for i, j in pairs if a.axes[i].padded]
    if not padded:
        return ()
    zero = [value.content is Padding.ZERO for value in (a, b)]
    # Zero times a finite number is zero; zero times NaN is not.
    if (zero[0] and b.finite) or (zero[1] and a.finite):
        return ()
    fills = []
    for operand, value in enumerate((a, b)):
        other = (a, b)[1 - operand]
        enough = value.finite and (not other.finite or operand == 0)
        if not zero[operand] and not enough:
            fills.append(Fill(operand, tuple(pair[operand] for pair in padded), 0.0))
    return tuple(fills)


def _dot_general(eqn: Equation) -> Outcome:
    eqn.check_params()
    (left, right), (left_batch, right_batch) = eqn.params[0]["dimension_numbers"]
    a, b = eqn.ins
    batch = [unify(a.axes[i], b.axes[j]) for i, j in zip(left_batch, right_batch, strict=True)]
    fills = _products(eqn, left, right)
    free = [axis for i, axis in enumerate(a.axes) if i not in (*left, *left_batch)]
    free += [axis for i, axis in enumerate(b.axes) if i not in (*right, *right_batch)]
    return eqn.made([PaddedValue((*batch, *free))], fills)


def _convolution(eqn: Equation) -> Outcome:
    eqn.check_params()
    params, (a, b) = eqn.params[0], eqn.ins
    dims = params["dimension_numbers"]
    (batch, feature, *space), (made, taken, *window) = dims.lhs_spec, dims.rhs_spec
    if any(a.axes[i].padded for i in space) or any(b.axes[i].padded for i in window):
        raise eqn.refuse("moves along a padded axis")
    grouped = [(a.axes[feature], b.axes[made])] if params["feature_group_count"] > 1 else []
    grouped += [(a.axes[batch], b.axes[made])] if params["batch_group_count"] > 1 else []
    if any(axis.padded for pair in grouped for axis in pair):
        raise eqn.refuse("has groups along a padded axis")
    if params["feature_group_count"] > 1:
        fills: tuple[Fill, ...] = ()
    else:
        fills = _products(eqn, [feature], [taken])
    sizes = eqn.out_sizes()
    axes = [fixed(size[0], eqn.traces) if len(set(size)) == 1 else Axis(size) for size in sizes]
    out_batch, out_feature, *_ = dims.out_spec
    if params["batch_group_count"] == 1:
        axes[out_batch] = a.axes[batch]
    axes[out_feature] = b.axes[made]
    return eqn.made([PaddedValue(tuple(axes))], fills)


def _ends(dtype: Any) -> tuple[float | int, float | int]:
    """The lowest and the highest number."""
    if jax.numpy.issubdtype(dtype, np.floating):
        return -math.inf, math.inf
    return (0, 1) if dtype == np.bool_ else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def _neutral(name: str, dtype: Any) -> float | int:
    """The number that leaves a sum, product, extreme and so on as it is."""
    kind = name.rpartition("_")[2].removeprefix("cum")
    if kind in ("prod", "and"):
        # All bits set: of truth values 1, of integers -1 or, without a sign, the largest.
        if kind == "prod" or dtype == np.bool_:
            return 1
        return -1 if jnp.issubdtype(dtype, np.signedinteger) else _ends(dtype)[1]
    if kind in ("max", "argmax", "logsumexp"):
        return _ends(dtype)[0]
    if kind in ("min", "argmin"):
        return _ends(dtype)[1]
    return 0  # sum, or, xor


def _reduce(eqn: Equation) -> Outcome:
    eqn.check_params()
    value, axes = eqn.ins[0], eqn.params[0]["axes"]
    padded = tuple(i for i in axes if value.axes[i].padded)
    dtype = eqn.first.invars[0].aval.dtype
    neutral = _neutral(eqn.name, dtype)
    if eqn.name.startswith("arg"):
        for i in padded:
            value.axes[i].require_prefix()
    filled = bool(padded) and not (neutral == 0 and value.content is Padding.ZERO)
    fills = (Fill(0, padded, neutral),) if filled else ()
    left = tuple(axis for i, axis in enumerate(value.axes) if i not in axes)
    content = Padding.ANYTHING if eqn.is_float() else Padding.FINITE
    if eqn.name in ("reduce_sum", "reduce_max", "reduce_min"):
        # What is left of the padding was made of padding alone, and that is zero.
        content = Padding.ZERO if value.content is Padding.ZERO and not fills else content
    return eqn.made([PaddedValue(left, content)], fills)


def _cumulative(eqn: Equation) -> Outcome:
    eqn.check_params()
    value, axis = eqn.ins[0], eqn.params[0]["axis"]
    neutral = _neutral(eqn.name, eqn.first.invars[0].aval.dtype)
    filled = value.axes[axis].padded and not (neutral == 0 and value.content is Padding.ZERO)
    fills = (Fill(0, (axis,), neutral),) if filled else ()
    content = Padding.ANYTHING if eqn.is_float() else Padding.FINITE
    return eqn.made([PaddedValue(value.axes, content)], fills)


def _window(eqn: Equation) -> Outcome:
    """Windows that move along fixed axes only; the last operand has the shape of the input."""
    eqn.check_params()
    params, source = eqn.params[0], eqn.ins[-1]
    for i in source.padded:
        moved = (
            params["window_dimensions"][i],
            params["window_strides"][i],
            *params["padding"][i],
            params.get("base_dilation", (1,) * len(source.axes))[i],
            params.get("window_dilation", (1,) * len(source.axes))[i],
        )
        if moved != (1, 1, 0, 0, 1, 1):
            raise eqn.refuse("moves along a padded axis")
    axes = []
    for i, sizes in enumerate(eqn.out_sizes()):
        padded = source.axes[i].padded
        axes.append(source.axes[i] if padded else fixed(sizes[0], eqn.traces))
        for value in eqn.ins[:-1]:
            if padded:
                unify(value.axes[i], source.axes[i])
    return eqn.made([PaddedValue(tuple(axes))])


def _ordered(eqn: Equation) -> Outcome:
    """``sort`` and ``top_k`` along a fixed axis; all operands have one shape."""
    eqn.check_params()
    params = eqn.params[0]
    sizes = list(zip(*(value.aval.shape for value in eqn.operands(0)), strict=True))
    axes = list(common_axes(eqn, eqn.ins, sizes))
    along = params.get("dimension", params.get("axis", len(axes) - 1))
    if axes[along].padded:
        raise eqn.refuse("orders a padded axis")
    axes[along] = fixed(eqn.out_sizes()[along][0], eqn.traces)
    return eqn.made([PaddedValue(tuple(axes)) for _ in eqn.first.outvars])


def _dynamic_slice(eqn: Equation) -> Outcome:
    eqn.check_params("slice_sizes")
    value, axes = eqn.ins[0], []
    for axis, sizes in zip(value.axes, eqn.out_sizes(), strict=True):
        if axis.sizes != sizes and (axis.padded or len(set(sizes)) > 1):
            raise eqn.refuse("takes a part of a padded axis")
        axes.append(axis if axis.sizes == sizes else fixed(sizes[0], eqn.traces))
    return eqn.made([PaddedValue(tuple(axes), value.content)])


def _dynamic_update_slice(eqn: Equation) -> Outcome:
    eqn.check_params()
    value, update = eqn.ins[:2]
    for ours, theirs in zip(value.axes, update.axes, strict=True):
        if ours.sizes == theirs.sizes:
            unify(ours, theirs)
        elif ours.padded or theirs.padded:
            raise eqn.refuse("replaces a part of a padded axis")
    return eqn.made([PaddedValue(value.axes, max(value.content, update.content))])


def _kept(
    eqn: Equation,
    value: PaddedValue,
    index: PaddedValue,
    outer: Sequence[int],
    numbered: Sequence[int],
    gone: Sequence[int],
) -> list[int]:
    """Which axes of a table (``value``) are axes of its rows too; ``index`` are the rows' numbers.

    ``eqn``: a lookup in the table, or a write to it. ``outer``: axes of the numbers that go along
    with an axis of the table. ``numbered``: axes of the table that the numbers are positions of.
    ``gone``: axes of the table along which a row has one element.

    Raises NotPaddable where positions along a padded axis differ between slots.
    """
    inner = getattr(eqn.params[0]["dimension_numbers"], "operand_batching_dims", ())
    for i, j in zip(inner, outer, strict=True):
        unify(value.axes[i], index.axes[j])
    if any(value.axes[i].padded for i in numbered):
        raise eqn.refuse("takes numbers for positions along a padded axis")
    return [i for i in range(len(value.axes)) if i not in (*gone, *inner)]


def _gather(eqn: Equation) -> Outcome:
    """Elements by number along fixed axes; slices hold padded axes as a whole."""
    eqn.check_params("slice_sizes")
    (value, index), dims = eqn.ins, eqn.params[0]["dimension_numbers"]
    outer = getattr(dims, "start_indices_batching_dims", ())
    kept = _kept(eqn, value, index, outer, dims.start_index_map, dims.collapsed_slice_dims)
    rows, taken = iter(index.axes[:-1]), iter(kept)
    axes = []
    for out, sizes in enumerate(eqn.out_sizes()):
        if out not in dims.offset_dims:
            axes.append(next(rows))
            continue
        axis = value.axes[next(taken)]
        if axis.sizes != sizes and axis.padded:
            raise eqn.refuse("takes a part of a padded axis")
        axes.append(axis if axis.sizes == sizes else fixed(sizes[0], eqn.traces))
    content = Padding.ANYTHING if eqn.is_float() else Padding.FINITE
    return eqn.made([PaddedValue(tuple(axes), content)])


def _scatter(eqn: Equation) -> Outcome:
    """Adds or writes rows by number; padded rows of a sum add zero."""
    eqn.check_params("update_jaxpr", "update_consts")
    (value, index, update), dims = eqn.ins, eqn.params[0]["dimension_numbers"]
    outer = getattr(dims, "scatter_indices_batching_dims", ())
    numbered = dims.scatter_dims_to_operand_dims
    kept = _kept(eqn, value, index, outer, numbered, dims.inserted_window_dims)
    rows, taken = iter(enumerate(index.axes[:-1])), iter(kept)
    padded = []
    for i, axis in enumerate(update.axes):
        if i in dims.update_window_dims:
            target = value.axes[next(taken)]
            if target.sizes == axis.sizes:
                unify(target, axis)
            elif target.padded or axis.padded:
                raise eqn.refuse("writes a part of a padded axis")
            continue
        row, source = next(rows)
        unify(source, axis)
        if axis.padded and row not in outer:
            padded.append(i)
    if padded and eqn.name != "scatter-add":
        raise eqn.refuse("writes padded rows")
    if padded and (eqn.params[0]["unique_indices"] or eqn.params[0]["indices_are_sorted"]):
        # Padding holds any numbers; what is promised of them lets a GPU lose a sum.
        raise eqn.refuse("promises something of the numbers of padded rows")
    fills = (Fill(2, tuple(padded), 0.0),) if padded and update.content else ()
    content = Padding.ANYTHING if eqn.is_float() else Padding.FINITE
    return eqn.made([PaddedValue(value.axes, content)], fills)


def _random_bits(eqn: Equation) -> Outcome:
    """Random words: a slot draws those that it draws alone, by its own row-major positions."""
    eqn.check_params("shape")
    axes = tuple(Axis(sizes) for sizes in eqn.out_sizes())
    found = PaddedValue(axes, Padding.FINITE)
    if not any(axis.padded for axis in axes):
        return eqn.made([found])
    key = eqn.first.invars[0].aval
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    if not (key.shape == () and jv.is_key(key) and "fry" in str(key.dtype) and partitionable):
        raise eqn.refuse("draws numbers that do not follow from their positions alone")
    if not any(axis.padded for axis in axes[1:]):
        # Positions before the padding stay what they are.
        axes[0].require_prefix()
        return eqn.made([found])
    width, shape = eqn.params[0]["bit_width"], eqn.params[0]["shape"]
    if width not in (32, 64) or math.prod(shape) >= 2**32:
        raise eqn.refuse(f"draws words of {width} bits along a padded axis")

    def draw(extents: Mapping[Symbol, Any], key: Any) -> Any:
        counters = jnp.uint32(0)
        for i, axis in enumerate(axes):
            # The position along the axis among the slot's own elements.
            own = jnp.cumsum(axis.mask(extents).astype(np.uint32)) - np.uint32(1)
            own = own.reshape(-1, *[1] * (len(axes) - 1 - i))
            counters = counters * jnp.asarray(axis.extent(extents), np.uint32) + own
        high, low = threefry(jax.random.key_data(key), jnp.broadcast_to(counters, shape).ravel())
        if width == 32:
            return (high ^ low).reshape(shape)
        high, low = (word.astype(np.uint64).reshape(shape) for word in (high, low))
        return (high << np.uint64(32)) | low

    return eqn.made([found], replacement=draw)


_REDUCTIONS = "reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor"
_WINDOWS = "reduce_window_sum reduce_window_max reduce_window_min select_and_scatter_add"

RULES: dict[str, Rule] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    **dict.fromkeys([*_REDUCTIONS.split(), "argmax", "argmin"], _reduce),
    **dict.fromkeys("cumsum cumprod cummax cummin cumlogsumexp".split(), _cumulative),
    **dict.fromkeys(_WINDOWS.split(), _window),
    "sort": _ordered,
    "top_k": _ordered,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter-add": _scatter,
    "scatter": _scatter,
    "random_bits": _random_bits,
}
