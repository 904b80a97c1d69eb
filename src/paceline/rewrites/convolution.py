"""Convolutions in the one layout that XLA's CPU compiler has a fast kernel for, in loops too."""

from __future__ import annotations

from typing import Any

from jax import lax

from paceline.rewrites.splice import Replacement


def convolution(eqn: Any) -> Replacement | None:
    """The rule: brings operands to NHWC and HWIO by transposes of their own."""
    params = eqn.params
    spec = params["dimension_numbers"]
    rank = len(spec.lhs_spec)
    spatial = tuple(range(1, rank - 1))
    lhs, out = (0, rank - 1, *spatial), (0, rank - 1, *spatial)
    rhs = (rank - 1, rank - 2, *range(rank - 2))
    if (spec.lhs_spec, spec.rhs_spec, spec.out_spec) == (lhs, rhs, out):
        return None
    layout = lax.ConvDimensionNumbers(lhs, rhs, out)
    given = {key: value for key, value in params.items() if key != "dimension_numbers"}

    def convolve(x: Any, kernel: Any) -> Any:
        x = lax.transpose(x, (spec.lhs_spec[0], *spec.lhs_spec[2:], spec.lhs_spec[1]))
        kernel = lax.transpose(kernel, (*spec.rhs_spec[2:], spec.rhs_spec[1], spec.rhs_spec[0]))
        result = lax.conv_general_dilated(x, kernel, dimension_numbers=layout, **given)
        back = [0] * rank
        for axis, place in enumerate((spec.out_spec[0], *spec.out_spec[2:], spec.out_spec[1])):
            back[place] = axis
        return lax.transpose(result, back)

    return convolve
