"""Floating-point operations of a training step, counted by XLA or, for steps with loops, here.

XLA's cost analysis counts one pass of a loop, however many passes the loop makes. That is right for
the loop over the steps of an epoch, and wrong for a loop inside the step (recurrent layers). For a
step with such a loop, this module counts the matrix products and convolutions of the traced step,
each ``scan`` as often as it runs.
"""

from __future__ import annotations

import math
from typing import Any

from paceline.pack.plan.base import product_flops
from paceline.program import jax_compat as jv
from paceline.program.compile import Executable


def of_step(closed: Any, executable: Executable, side_by_side: int) -> tuple[float | None, str]:
    """Counts the floating-point operations of one step of one trial.

    Args:
        closed: The traced step, a ``ClosedJaxpr``.
        executable: The compiled step, or a program that holds the step as the body of a loop.
        side_by_side: Number of trials that one pass of the step trains.

    Returns:
        The number, None if it is unknown; and who counted, "xla" or "trace".
    """
    counted, loops = _of_jaxpr(closed.jaxpr)
    if loops:
        return counted or None, "trace"
    flops = executable.flops()
    return (None if flops is None else flops / side_by_side), "xla"


def _of_jaxpr(jaxpr: Any) -> tuple[float, bool]:
    """The operations of matrix products and convolutions, and whether there are loops."""
    flops, loops = 0.0, False
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "dot_general":
            flops += product_flops(eqn)
        elif name == "conv_general_dilated":
            flops += _convolution_flops(eqn)
        elif name == "scan":
            inner, _ = _of_jaxpr(eqn.params["jaxpr"].jaxpr)
            flops, loops = flops + inner * eqn.params["length"], True
        elif name == "while":
            # A while loop does not say how often it runs: its body is counted once.
            inner, _ = _of_jaxpr(eqn.params["body_jaxpr"].jaxpr)
            flops, loops = flops + inner, True
        elif name == "cond":
            branches = [_of_jaxpr(branch.jaxpr) for branch in eqn.params["branches"]]
            flops += max(inner for inner, _ in branches)
            loops = loops or any(has for _, has in branches)
        elif name in jv.CALLS or name in jv.REMAT:
            body = eqn.params["jaxpr"] if name in jv.REMAT else jv.call_body(eqn.params)[0]
            inner, has = _of_jaxpr(body)
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
