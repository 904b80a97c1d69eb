"""How much work a traced step is: enough to tell which steps gain from stacking on a CPU.

Stacking hides the cost of starting many tiny operations. A step that spends its time in matrix
products has nothing to hide, and the loop of a recurrent layer runs best on one trial's small
matrices at a time (docs/decisions/0003; the packs will measure instead of guess one day).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from paceline.program import versions as jv

#: Floating-point operations in matrix products of one trial's step, above which it is trained on
#: its own.
_BUSY = 10e6


def gains_from_stacking(closed: Any) -> bool:
    """Whether many trials in one step are faster than one after another, on a CPU."""
    flops = 0.0
    for eqn in _equations(closed.jaxpr):
        if eqn.primitive.name in ("scan", "while"):
            return False
        if eqn.primitive.name == "dot_general":
            flops += product_flops(eqn)
    return flops < _BUSY


def product_flops(eqn: Any) -> float:
    """Two operations for each product summed into each result."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = eqn.invars[0].aval.shape
    return 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(left[d] for d in contracted)


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name in jv.CALLS:
            yield from _equations(jv.call_body(eqn.params)[0])
        elif eqn.primitive.name in jv.REMAT:
            yield from _equations(eqn.params["jaxpr"])
