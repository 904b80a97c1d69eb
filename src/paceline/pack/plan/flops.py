"""Floating-point operations of a traced program: those of its matrix products and convolutions."""

from __future__ import annotations

import math
from typing import Any

from paceline.pack.plan.base import product_flops
from paceline.program import jax_compat as jv


def count_flops(jaxpr: Any) -> tuple[float, bool]:
    """Floating-point operations of a jaxpr's matrix products and convolutions; whether it loops.

    A ``scan`` counts as often as it runs. A ``while`` loop, whose number of passes is unknown,
    counts once. Of the branches of a ``cond`` the longest counts.
    """
    flops, loops = 0.0, False
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "dot_general":
            flops += product_flops(eqn)
        elif name == "conv_general_dilated":
            flops += _convolution_flops(eqn)
        elif name == "scan":
            inner, _ = count_flops(eqn.params["jaxpr"].jaxpr)
            flops, loops = flops + inner * eqn.params["length"], True
        elif name == "while":
            # A while loop does not say how often it runs: its body is counted once.
            inner, _ = count_flops(eqn.params["body_jaxpr"].jaxpr)
            flops, loops = flops + inner, True
        elif name == "cond":
            branches = [count_flops(branch.jaxpr) for branch in eqn.params["branches"]]
            flops += max(inner for inner, _ in branches)
            loops = loops or any(has for _, has in branches)
        elif name in jv.CALLS or name in jv.REMAT:
            body = eqn.params["jaxpr"] if name in jv.REMAT else jv.call_body(eqn.params)[0]
            inner, has = count_flops(body)
            flops, loops = flops + inner, loops or has
    return flops, loops


def _convolution_flops(eqn: Any) -> float:
    """Two operations, a product and a sum, for each weight and result; padding counts as data."""
    kernel = eqn.invars[1].aval.shape
    numbers = eqn.params["dimension_numbers"]
    inputs = kernel[numbers.rhs_spec[1]]  # of a group
    window = math.prod(kernel[axis] for axis in numbers.rhs_spec[2:])
    return 2.0 * math.prod(eqn.outvars[0].aval.shape) * inputs * window / _dilation(eqn)


def _dilation(eqn: Any) -> int:
    """The factor by which dilation enlarges an input with zeros; XLA does not multiply those."""
    return math.prod(eqn.params["lhs_dilation"])
