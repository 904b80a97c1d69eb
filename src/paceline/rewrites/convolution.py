"""Convolutions in the one layout that XLA's CPU compiler has a fast kernel for, in loops too.

Where a padded image is hardly larger than the window, much of the work is multiplying by the
padding's zeros. Such a convolution is cut along the rows of its result: each piece reads the rows
of the image, and takes the rows of the window, that meet. The sums are the same but for products
with zero; the kernel adds the rest up in blocks of another size.
"""

from __future__ import annotations

import math
from typing import Any

from jax import lax

from paceline.rewrites.splice import Replacement

#: Share of the work that must be padding for a convolution to be cut.
_SAVED = 0.06
#: Floating-point operations of a piece, on average, below which calling the kernel costs more.
_PIECE = 5e7


def convolution(eqn: Any) -> Replacement | None:
    """The rule: brings operands to NHWC and HWIO by transposes of their own, and cuts."""
    params = eqn.params
    spec = params["dimension_numbers"]
    rank = len(spec.lhs_spec)
    spatial = tuple(range(1, rank - 1))
    lhs, out = (0, rank - 1, *spatial), (0, rank - 1, *spatial)
    rhs = (rank - 1, rank - 2, *range(rank - 2))
    here = (spec.lhs_spec, spec.rhs_spec, spec.out_spec) == (lhs, rhs, out)
    rows = pieces(eqn)
    if here and len(rows) == 1:
        return None
    layout = lax.ConvDimensionNumbers(lhs, rhs, out)
    given = {k: v for k, v in params.items() if k not in ("dimension_numbers", "padding")}
    padding = tuple(params["padding"])

    def convolve(x: Any, kernel: Any) -> Any:
        x = lax.transpose(x, (spec.lhs_spec[0], *spec.lhs_spec[2:], spec.lhs_spec[1]))
        kernel = lax.transpose(kernel, (*spec.rhs_spec[2:], spec.rhs_spec[1], spec.rhs_spec[0]))
        if len(rows) == 1:
            result = lax.conv_general_dilated(
                x, kernel, padding=padding, dimension_numbers=layout, **given
            )
        else:
            parts = [
                lax.conv_general_dilated(
                    lax.slice_in_dim(x, *image, axis=1),
                    lax.slice_in_dim(kernel, *window, axis=0),
                    padding=((0, 0), *padding[1:]),
                    dimension_numbers=layout,
                    **given,
                )
                for image, window in rows
            ]
            result = lax.concatenate(parts, 1)
        back = [0] * rank
        for axis, place in enumerate((spec.out_spec[0], *spec.out_spec[2:], spec.out_spec[1])):
            back[place] = axis
        return lax.transpose(result, back)

    return convolve


Span = tuple[int, int]


def pieces(eqn: Any) -> list[tuple[Span, Span]]:
    """How a convolution is cut along its first spatial axis.

    Returns:
        For each piece the rows of the image and of the window; a single one where it stays whole.
    """
    params = eqn.params
    spec = params["dimension_numbers"]
    x, kernel = (atom.aval.shape for atom in eqn.invars)
    whole = [((0, 0), (0, 0))]
    plain = all(
        set(params[name]) <= {1} for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    if not plain or params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
        return whole
    if len(spec.lhs_spec) < 4:
        return whole
    low, high = params["padding"][0]
    size, window = x[spec.lhs_spec[2]], kernel[spec.rhs_spec[2]]
    if low < 0 or high < 0 or low + high == 0 or low >= window or high >= window:
        return whole
    spans: list[list[int]] = []  # first and last row of the result, first and last of the window
    for row in range(size + low + high - window + 1):
        taps = [max(0, low - row), min(window, size + low - row)]
        if spans and spans[-1][2:] == taps:
            spans[-1][1] = row + 1
        else:
            spans.append([row, row + 1, *taps])
    n_rows = size + low + high - window + 1
    used = sum((last - first) * (end - begin) for first, last, begin, end in spans)
    result = eqn.outvars[0].aval
    work = 2.0 * math.prod(result.shape) * math.prod(kernel[axis] for axis in spec.rhs_spec[1:])
    saved = 1 - used / (n_rows * window)
    if len(spans) < 2 or saved < _SAVED or work < _PIECE * len(spans):
        return whole
    return [
        ((first + begin - low, last - 1 + end - low), (begin, end))
        for first, last, begin, end in spans
    ]
