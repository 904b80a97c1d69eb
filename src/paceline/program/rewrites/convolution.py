"""Convolutions in the one layout that XLA's CPU compiler has a fast kernel for, in loops too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax

from paceline.program.rewrites.splice import Replacement


@dataclass(frozen=True)
class ConvLayout:
    """How to bring an equation's arrays to N, space, C and space, I, O, and its result back.

    Attributes:
        x, kernel, result: Axes of each, in that order.
    """

    x: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]

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
        """Whether nothing is to be brought anywhere."""
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
        """A function of the equation's operands, by one of operands in the fast layout."""

        def run(x: Any, kernel: Any) -> Any:
            found = convolve(lax.transpose(x, self.x), lax.transpose(kernel, self.kernel))
            back = [0] * len(self.result)
            for axis, place in enumerate(self.result):
                back[place] = axis
            return lax.transpose(found, back)

        return run


def convolution(eqn: Any) -> Replacement | None:
    """The rule: brings operands to NHWC and HWIO by transposes of their own."""
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
