"""Floating-point operations of a training step, counted by XLA or, for steps with loops, here.

XLA's cost analysis counts one pass of a loop, however many passes the loop makes. That is right for
the loop over the steps of an epoch, and wrong for a loop inside the step (recurrent layers). For a
step with such a loop, this module counts the matrix products and convolutions of the traced step,
each ``scan`` as often as it runs.
"""

from __future__ import annotations

from typing import Any

from paceline.pack.plan.flops import count_flops
from paceline.program.compile import Executable


def of_step(closed: Any, executable: Executable, side_by_side: int) -> tuple[float | None, str]:
    """Counts the floating-point operations of one step of one trial; None if they are unknown.

    Also returns who counted: "xla" or "trace".

    Args:
        closed: The traced step, a ``ClosedJaxpr``.
        executable: The compiled step, or a program that holds the step as the body of a loop.
        side_by_side: Number of trials that one pass of the step trains.
    """
    counted, loops = count_flops(closed.jaxpr)
    if loops:
        return counted or None, "trace"
    flops = executable.flops()
    return (None if flops is None else flops / side_by_side), "xla"
