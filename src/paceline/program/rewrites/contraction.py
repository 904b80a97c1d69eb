"""Products that sum over several leading axes: gradients of kernels of layers on sequences.

XLA's CPU compiler brings such an operand to the form of a matrix by a transposed copy. Laid side by
side first, which moves nothing, the axes are one, and the product reads it where it is. The sums
are the same ones, in the same order.

    K: what is summed over, all axes together.
"""

from __future__ import annotations

import math
from typing import Any

from jax import lax

from paceline.program.rewrites.splice import Replacement


def contraction(eqn: Any) -> Replacement | None:
    """The rule: no batch axes; the first two or more axes of both operands, in the same order."""
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
