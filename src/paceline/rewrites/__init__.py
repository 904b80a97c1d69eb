"""Exact rewrites of a traced step: the same numbers by operations that XLA does well on a CPU.

Each rule is a module of its own. A rule looks at one equation and returns a function of its
operands that computes the same results to the bit, or None where it does not apply. Accelerators
have kernels of their own for all of this: there a step stays as it was traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.rewrites.arg_extreme import argmax, argmin
from paceline.rewrites.contraction import contraction
from paceline.rewrites.convolution import convolution
from paceline.rewrites.max_pool import max_pool_gradient
from paceline.rewrites.random_bits import random_bits
from paceline.rewrites.splice import Rule, splice

#: Primitive -> rule.
CPU_RULES: dict[str, Rule] = {
    "random_bits": random_bits,
    "select_and_scatter_add": max_pool_gradient,
    "conv_general_dilated": convolution,
    "dot_general": contraction,
    "argmax": argmax,
    "argmin": argmin,
}


def rewrite(closed: Any, platform: str, without: Sequence[str] = ()) -> Any:
    """The step as it runs best on a platform.

    Args:
        closed: A closed jaxpr.
        platform: "cpu", "gpu" or "tpu".
        without: Primitives to leave as they are, to compare.
    """
    if platform != "cpu":
        return closed
    return splice(closed, {name: rule for name, rule in CPU_RULES.items() if name not in without})
