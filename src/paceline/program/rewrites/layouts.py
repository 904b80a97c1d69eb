"""Operands brought into the layout that XLA's CPU compiler has fast code for.

``convolution`` brings images and kernels to NHWC and HWIO: the one layout of the fast kernel, which
    XLA then uses in loops too. An accelerator's compiler chooses layouts itself.
``contraction`` serves products that sum over several leading axes: gradients of the kernels of
    layers on sequences. XLA brings such an operand to the form of a matrix by a transposed copy.
    Reshaped first, which moves nothing, the axes are one, and the product reads the operand where
    it lies. It adds the same numbers in the same order.

Notation
    N: images. C: channels. H, W (one to three axes in all): space. K: what a product sums over, all
    axes together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax

from paceline.program.rewrites.splice import Replacement


@dataclass(frozen=True)
class ConvLayout:
    """The axes of a convolution's arrays, in the order of the fast layout."""

    x: tuple[int, ...]  # of the images: N, then space, then C
    kernel: tuple[int, ...]  # space, then channels of the images, then those of the result
    result: tuple[int, ...]  # as of the images

    @classmethod
    def of(cls, eqn: Any) -> ConvLayout:
        """The layout of a ``conv_general_dilated``."""
        spec = eqn.params["dimension_numbers"]
        return cls(
            (spec.lhs_spec[0], *spec.lhs_spec[2:], spec.lhs_spec[1]),
            (*spec.rhs_spec[2:], spec.rhs_spec[1], spec.rhs_spec[0]),
            (spec.out_spec[0], *spec.out_spec[2:], spec.out_spec[1]),
        )

    @property
    def is_fast(self) -> bool:
        """Whether all arrays have the fast layout already."""
        return all(list(axes) == sorted(axes) for axes in (self.x, self.kernel, self.result))

    def shapes(self, eqn: Any) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Shapes of the two operands and the result, in the fast layout."""
        x, kernel, result = (var.aval.shape for var in (*eqn.invars, *eqn.outvars))
        return (
            [x[axis] for axis in self.x],
            [kernel[axis] for axis in self.kernel],
            [result[axis] for axis in self.result],
        )

    def around(self, convolve: Replacement) -> Replacement:
        """Wraps a function of operands in the fast layout to take the equation's operands."""

        def run(x: Any, kernel: Any) -> Any:
            found = convolve(lax.transpose(x, self.x), lax.transpose(kernel, self.kernel))
            back = [0] * len(self.result)
            for axis, place in enumerate(self.result):
                back[place] = axis
            return lax.transpose(found, back)

        return run


def convolution(eqn: Any) -> Replacement | None:
    """The rule for convolutions that are in another layout."""
    layout = ConvLayout.of(eqn)
    if layout.is_fast:
        return None
    rank = len(layout.x)
    spatial = tuple(range(1, rank - 1))
    fast = (0, rank - 1, *spatial)
    numbers = lax.ConvDimensionNumbers(fast, (rank - 1, rank - 2, *range(rank - 2)), fast)
    given = {key: value for key, value in eqn.params.items() if key != "dimension_numbers"}
    return layout.around(
        lambda x, kernel: lax.conv_general_dilated(x, kernel, dimension_numbers=numbers, **given)
    )


def contraction(eqn: Any) -> Replacement | None:
    """The rule for products without batch axes that sum over the first two or more axes of both."""
    (left, right), batch = eqn.params["dimension_numbers"]
    n = len(left)
    leading = tuple(range(n))
    if any(batch) or n < 2 or tuple(left) != leading or tuple(right) != leading:
        return None
    params = dict(eqn.params, dimension_numbers=(((0,), (0,)), ((), ())))

    def product(a: Any, b: Any) -> Any:
        k = math.prod(a.shape[:n])
        return lax.dot_general(
            lax.reshape(a, (k, *a.shape[n:])), lax.reshape(b, (k, *b.shape[n:])), **params
        )

    return product
