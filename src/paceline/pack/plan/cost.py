"""How much work a traced step is: enough to tell, on a CPU, what gains from stacking and what runs
so briefly that a cheaper compile is better.

Stacking hides the cost of starting many tiny operations. A step that spends its time in matrix
products has nothing to hide, and the loop of a recurrent layer runs best on one trial's small
matrices at a time (docs/decisions/0003; the packs will measure instead of guess one day).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from paceline.program import jax_compat as jv

#: Floating-point operations in matrix products of one trial's step, above which it is trained on
#: its own.
_BUSY = 10e6
#: Steps of a search below which it is compiled for a short run: 5 to 20 s of small operations.
_FEW = 5000
#: The same for operations in matrix products: 5 s of a core or less. XLA's own code around large
#: products is a tenth slower where it is compiled for a short run.
_LITTLE = 5e11


def gains_from_stacking(closed: Any) -> bool:
    """Whether many trials in one step are faster than one after another, on a CPU."""
    loops = any(eqn.primitive.name in ("scan", "while") for eqn in _equations(closed.jaxpr))
    return not loops and _flops(closed) < _BUSY


def is_short(closed: Any, steps: float, n_slots: int) -> bool:
    """Whether so many steps of a pack are a short run, on a CPU."""
    return steps < _FEW and steps * n_slots * _flops(closed) < _LITTLE


def _flops(closed: Any) -> float:
    """Floating-point operations in a step's matrix products, those in loops left out."""
    equations = _equations(closed.jaxpr)
    return sum(product_flops(eqn) for eqn in equations if eqn.primitive.name == "dot_general")


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
