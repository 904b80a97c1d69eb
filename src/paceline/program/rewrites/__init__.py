"""Rewrites of a traced step: the same numbers by operations that XLA does well on a CPU.

Each rule is a module of its own. A rule looks at one equation and returns a function of its
operands that computes the same results, or None where it does not apply. All are exact, to the bit
(``row_max`` names what zeros and NaN are exempt from), but one: ``winograd`` differs by float32's
rounding. Accelerators have kernels of their own for all
of this: there a step stays as it was traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.program.rewrites.arg_extreme import argmax, argmin
from paceline.program.rewrites.contraction import contraction
from paceline.program.rewrites.convolution import convolution
from paceline.program.rewrites.max_pool import max_pool_gradient
from paceline.program.rewrites.one_hot import reduce_sum
from paceline.program.rewrites.random_bits import random_bits
from paceline.program.rewrites.row_max import reduce_max
from paceline.program.rewrites.splice import ChainRule, Rule, splice
from paceline.program.rewrites.winograd import winograd

#: Primitive -> rule; exact.
CPU_RULES: dict[str, Rule] = {
    "random_bits": random_bits,
    "select_and_scatter_add": max_pool_gradient,
    "conv_general_dilated": convolution,
    "dot_general": contraction,
    "argmax": argmax,
    "argmin": argmin,
    "reduce_max": reduce_max,
}
#: The same of rules that look at several equations.
CPU_CHAINS: dict[str, ChainRule] = {"reduce_sum": reduce_sum}


def rewrite(closed: Any, platform: str, without: Sequence[str] = ()) -> Any:
    """The step as it runs best on a platform.

    Args:
        closed: A closed jaxpr.
        platform: "cpu", "gpu" or "tpu".
        without: Primitives to leave as they are, or "winograd", to compare.
    """
    if platform != "cpu":
        return closed
    rules = {name: rule for name, rule in CPU_RULES.items() if name not in without}
    if not {"winograd", "conv_general_dilated"} & set(without):
        rules["conv_general_dilated"] = lambda eqn: winograd(eqn) or convolution(eqn)
    chains = {name: rule for name, rule in CPU_CHAINS.items() if name not in without}
    return splice(closed, rules, chains)
