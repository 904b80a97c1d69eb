"""Rules of operations that work on each element by itself, or only move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp

from paceline.program.padding.axes import (
    Axis,
    Sizes,
    fixed,
    joined,
    multiplied,
    unify,
)
from paceline.program.padding.lockstep import (
    Equation,
    Outcome,
    PaddedValue,
    Padding,
    Rule,
)

#: Of zero these make zero.
_KEEP_ZERO = frozenset(
    "neg abs sign sqrt cbrt tanh sin sinh asin asinh atan atanh tan expm1 log1p erf erf_inv square "
    "floor ceil round add sub add_any max min and or xor select_n convert_element_type copy "
    "reduce_precision real imag stop_gradient optimization_barrier device_put".split()
)
#: Of finite numbers these make finite ones. Sums and products of finite numbers may overflow.
_KEEP_FINITE = frozenset(
    "neg abs sign tanh sin cos asinh atan erf logistic floor ceil round max min select_n copy "
    "stop_gradient optimization_barrier device_put".split()
)
#: Any others that work on each element by itself, and end whatever padding holds: the loop of
#: ``igamma`` does not on some NaN and infinity.
_OTHERS = frozenset(
    "div rem pow integer_pow exp exp2 log logistic rsqrt cos tan acos acosh cosh erfc lgamma "
    "digamma atan2 nextafter is_finite eq ne lt le gt ge not shift_left shift_right_logical "
    "shift_right_arithmetic population_count clz mul clamp polygamma "
    "bessel_i0e bessel_i1e bitcast_convert_type conj complex "
    # These are new in JAX 0.12.
    "one_minus_square polynomial log2 mulhi".split()
)


def elementwise(eqn: Equation) -> Outcome:
    """Operands of one shape, without axes, or of extent 1 where the result is longer."""
    eqn.check_params()
    if len(eqn.first.outvars) > 1:  # a barrier: each result is its operand
        return eqn.made(eqn.ins)
    axes = common_axes(eqn, eqn.ins, eqn.out_sizes())
    return eqn.made([PaddedValue(axes, _content(eqn, axes))])


def common_axes(
    eqn: Equation, values: Sequence[PaddedValue], sizes: Sequence[Sizes]
) -> tuple[Axis, ...]:
    """The axes of what an operation computes element by element.

    ``sizes`` are the extents of its result; an operand has them too, or extent 1, or no axes.
    Raises NotPaddable where the operands' elements are not in the same places.
    """
    axes = [Axis(size) for size in sizes]
    for value in values:
        if not value.axes:
            continue
        if len(value.axes) != len(axes):
            raise eqn.refuse("works on operands of other ranks")
        for i, axis in enumerate(value.axes):
            if not (_single(axis.sizes) and not _single(sizes[i])):
                axes[i] = unify(axes[i], axis)
    return tuple(axes)


def _content(eqn: Equation, axes: tuple[Axis, ...]) -> Padding:
    """What the padding of an elementwise result holds."""
    if not any(axis.padded for axis in axes):
        return Padding.ZERO
    values = [_stretched(value, axes) for value in eqn.ins]
    if not eqn.is_float():
        # Integers and truth values are finite whatever they were made of.
        zero = eqn.name in _KEEP_ZERO and all(map(_zero, values))
        return Padding.ZERO if zero else Padding.FINITE
    if eqn.name == "select_n":
        del values[0]
    if eqn.name == "mul":
        finite = all(value.finite for value in values)
        return Padding.ZERO if finite and any(map(_zero, values)) else Padding.ANYTHING
    if eqn.name == "div":
        number = values[1].number
        plain = number is not None and math.isfinite(number) and number != 0.0
        return Padding.ZERO if plain and _zero(values[0]) else Padding.ANYTHING
    if eqn.name in _KEEP_ZERO and all(map(_zero, values)):
        return Padding.ZERO
    if eqn.name == "convert_element_type":
        # Integers become finite ones where the largest does; a large float32 becomes an infinite
        # float16, and so does a large int32.
        before, after = eqn.first.invars[0].aval.dtype, eqn.first.outvars[0].aval.dtype
        fits = before.kind == "b" or (
            before.kind in "iu" and jnp.iinfo(before).max <= float(jnp.finfo(after).max)
        )
        return Padding.FINITE if fits else Padding.ANYTHING
    if eqn.name in _KEEP_FINITE and all(value.finite for value in values):
        return Padding.FINITE
    return Padding.ANYTHING


def to_zero(name: str, values: Sequence[PaddedValue]) -> tuple[int, ...] | None:
    """Numbers of the operands that must be zero somewhere for a result to be zero there.

    ``name`` is a primitive's. Operands that have axes have those of the result. None if that is
    unknown, or makes the result no simpler: to fill both terms of a sum takes more than to fill the
    sum.
    """
    if name == "mul":
        unknown = [i for i, value in enumerate(values) if not value.finite]
        if any(not values[i].axes for i in unknown):
            return None
        # A finite factor may stay as it is beside one that is zero.
        return tuple(unknown) or next(((i,) for i, value in enumerate(values) if value.axes), None)
    if name == "div":
        number = values[1].number
        plain = number is not None and math.isfinite(number) and number != 0.0
        return (0,) if plain and values[0].axes else None
    if name not in _KEEP_ZERO or name in ("add", "sub", "add_any"):
        return None
    first = 1 if name == "select_n" else 0
    found = tuple(i for i in range(first, len(values)) if not _zero(values[i]))
    return found if all(values[i].axes for i in found) else None


def _stretched(value: PaddedValue, axes: tuple[Axis, ...]) -> PaddedValue:
    """An operand as it meets the others: repeated along axes in which its extent is 1."""
    repeated = any(
        _single(axis.sizes) and whole.padded for axis, whole in zip(value.axes, axes, strict=False)
    )
    return PaddedValue(axes, repeated_content(value), value.number) if repeated else value


def repeated_content(value: PaddedValue) -> Padding:
    """What padding holds that a value is repeated into: the value itself."""
    number = value.number
    if number is not None and math.isfinite(number):
        return Padding.ZERO if number == 0.0 else Padding.FINITE
    return Padding.ANYTHING


def _zero(value: PaddedValue) -> bool:
    return value.number == 0.0 if not value.axes else value.content is Padding.ZERO


def _broadcast_in_dim(eqn: Equation) -> Outcome:
    eqn.check_params("shape")
    (value, *_), sizes = eqn.ins, eqn.out_sizes()
    where = {out: i for i, out in enumerate(eqn.params[0]["broadcast_dimensions"])}
    axes, repeated = [], False
    for out, size in enumerate(sizes):
        axis = value.axes[where[out]] if out in where else None
        if axis is not None and axis.sizes == size:
            axes.append(axis)
        elif axis is not None and not _single(axis.sizes):
            raise eqn.refuse("repeats an axis in some traces only")
        else:
            axes.append(Axis(size))
            repeated |= axes[-1].padded
    content = value.content
    if repeated:
        content = max(content, repeated_content(value))
    return eqn.made([PaddedValue(tuple(axes), content, value.number)])


def _reshape(eqn: Equation) -> Outcome:
    eqn.check_params("new_sizes")
    if eqn.params[0].get("dimensions") is not None:
        return _as_it_is(eqn)
    (value, *_), sizes = eqn.ins, eqn.out_sizes()
    axes = [Axis(size) for size in sizes]
    for ours, theirs in _groups(eqn, [axis.sizes for axis in value.axes], sizes):
        sources = [value.axes[i] for i in ours if not _single(value.axes[i].sizes)]
        targets = [i for i in theirs if not _single(sizes[i])]
        if len(targets) == 1 and sources:
            axes[targets[0]] = multiplied(sources)
        elif targets:
            unify(multiplied(sources), multiplied([axes[i] for i in targets]))
    return eqn.made([PaddedValue(tuple(axes), value.content, value.number)])


def _as_it_is(eqn: Equation) -> Outcome:
    """An operation that is not known any further: it may not have padding."""
    if not eqn.all_fixed():
        raise eqn.refuse("has no rule for padded operands in this form")
    eqn.check_params()
    axes = tuple(fixed(sizes[0], eqn.traces) for sizes in eqn.out_sizes())
    return eqn.made([PaddedValue(axes)])


def _single(sizes: Sizes) -> bool:
    return set(sizes) == {1}


def _groups(
    eqn: Equation, ours: Sequence[Sizes], theirs: Sequence[Sizes]
) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of axes before and after a reshape that hold as many elements."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(ours) or j < len(theirs):
        a, b = [], []
        left = right = (1,) * eqn.traces
        while (not a or left != right) and (i < len(ours) or j < len(theirs)):
            if i < len(ours) and (not a or left[0] <= right[0] or j == len(theirs)):
                left = tuple(x * y for x, y in zip(left, ours[i], strict=True))
                a.append(i)
                i += 1
            else:
                right = tuple(x * y for x, y in zip(right, theirs[j], strict=True))
                b.append(j)
                j += 1
        if left != right:
            raise eqn.refuse("does not keep its elements together")
        found.append((a, b))
    return found


def _transpose(eqn: Equation) -> Outcome:
    eqn.check_params()
    value = eqn.ins[0]
    axes = tuple(value.axes[i] for i in eqn.params[0]["permutation"])
    return eqn.made([PaddedValue(axes, value.content, value.number)])


def _squeeze(eqn: Equation) -> Outcome:
    eqn.check_params()
    value, gone = eqn.ins[0], set(eqn.params[0]["dimensions"])
    axes = tuple(axis for i, axis in enumerate(value.axes) if i not in gone)
    return eqn.made([PaddedValue(axes, value.content, value.number)])


def _rev(eqn: Equation) -> Outcome:
    eqn.check_params()
    value = eqn.ins[0]
    if set(eqn.params[0]["dimensions"]) & set(value.padded):
        raise eqn.refuse("turns a padded axis round")
    return eqn.made([PaddedValue(value.axes, value.content, value.number)])


def _concatenate(eqn: Equation) -> Outcome:
    eqn.check_params()
    dimension = eqn.params[0]["dimension"]
    axes = []
    for i in range(len(eqn.ins[0].axes)):
        each = [value.axes[i] for value in eqn.ins]
        if i == dimension:
            axes.append(joined(each))
            continue
        for axis in each[1:]:
            unify(each[0], axis)
        axes.append(each[0])
    return eqn.made([PaddedValue(tuple(axes), max(value.content for value in eqn.ins))])


def _stack(eqn: Equation) -> Outcome:
    eqn.check_params()
    at, sizes = eqn.params[0]["axis"], eqn.out_sizes()
    axes = list(common_axes(eqn, eqn.ins, [size for i, size in enumerate(sizes) if i != at]))
    axes.insert(at, fixed(len(eqn.ins), eqn.traces))
    return eqn.made([PaddedValue(tuple(axes), max(value.content for value in eqn.ins))])


def _unstack(eqn: Equation) -> Outcome:
    eqn.check_params()
    value, at = eqn.ins[0], eqn.params[0]["axis"]
    if value.axes[at].padded:
        raise eqn.refuse("takes a padded axis apart")
    axes = (*value.axes[:at], *value.axes[at + 1 :])
    return eqn.made([PaddedValue(axes, value.content) for _ in eqn.first.outvars])


def _tile(eqn: Equation) -> Outcome:
    eqn.check_params("reps")
    value, axes, content = eqn.ins[0], [], eqn.ins[0].content
    for i, sizes in enumerate(eqn.out_sizes()):
        axis = value.axes[i]
        if axis.sizes == sizes:
            axes.append(axis)
            continue
        if axis.padded:
            raise eqn.refuse("repeats a padded axis")
        if len(set(sizes)) > 1:
            if not _single(axis.sizes):
                raise eqn.refuse("repeats an axis another number of times")
            content = max(content, repeated_content(value))
        axes.append(Axis(sizes))
    return eqn.made([PaddedValue(tuple(axes), content)])


def _split(eqn: Equation) -> Outcome:
    eqn.check_params("sizes")
    value, dimension = eqn.ins[0], eqn.params[0]["axis"]
    pieces = [Axis(eqn.out_sizes(i)[dimension]) for i in range(len(eqn.first.outvars))]
    unify(value.axes[dimension], joined(pieces))
    before, after = value.axes[:dimension], value.axes[dimension + 1 :]
    return eqn.made([PaddedValue((*before, p, *after), value.content) for p in pieces])


def _slice(eqn: Equation) -> Outcome:
    eqn.check_params("start_indices", "limit_indices")
    value = eqn.ins[0]
    strides = eqn.params[0]["strides"]
    axes = []
    for i, axis in enumerate(value.axes):
        start = tuple(p["start_indices"][i] for p in eqn.params)
        limit = tuple(p["limit_indices"][i] for p in eqn.params)
        size = tuple(b - a for a, b in zip(start, limit, strict=True))
        stride = 1 if strides is None else strides[i]
        if stride == 1 and size == axis.sizes:
            axes.append(axis)
        elif axis.padded:
            if stride != 1:
                raise eqn.refuse("takes every second element or fewer of a padded axis")
            rest = tuple(s - b for s, b in zip(axis.sizes, limit, strict=True))
            middle = Axis(size)
            unify(axis, joined([Axis(start), middle, Axis(rest)]))
            axes.append(middle)
        elif len(set(start)) == 1 and len(set(limit)) == 1:
            axes.append(fixed(eqn.out_sizes()[i][0], eqn.traces))
        else:
            raise eqn.refuse("takes other elements of an axis")
    return eqn.made([PaddedValue(tuple(axes), value.content)])


def _pad(eqn: Equation) -> Outcome:
    eqn.check_params("padding_config")
    value, number = eqn.ins
    axes = []
    for i, axis in enumerate(value.axes):
        configs = [p["padding_config"][i] for p in eqn.params]
        if all(config == (0, 0, 0) for config in configs):
            axes.append(axis)
        elif len(set(configs)) == 1 and not axis.padded:
            axes.append(fixed(eqn.out_sizes()[i][0], eqn.traces))
        elif all(low >= 0 and high >= 0 and not inner for low, high, inner in configs):
            low, high = (tuple(c[at] for c in configs) for at in (0, 1))
            axes.append(joined([Axis(low), axis, Axis(high)]))
        else:
            raise eqn.refuse("cuts or spreads a padded axis")
    zero = number.number == 0.0 and value.content is Padding.ZERO
    content = Padding.ZERO if zero else Padding.ANYTHING
    return eqn.made([PaddedValue(tuple(axes), content)])


def _iota(eqn: Equation) -> Outcome:
    eqn.check_params("shape")
    axes = tuple(Axis(sizes) for sizes in eqn.out_sizes())
    axes[eqn.params[0]["dimension"]].require_prefix()
    return eqn.made([PaddedValue(axes, Padding.FINITE)])


RULES: dict[str, Rule] = {
    **dict.fromkeys(_KEEP_ZERO | _KEEP_FINITE | _OTHERS, elementwise),
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "rev": _rev,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "split": _split,
    "slice": _slice,
    "pad": _pad,
    "iota": _iota,
}
