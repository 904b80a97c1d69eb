"""Rewrites of a traced step: the same numbers by operations that XLA compiles well for a CPU.

A rule looks at one equation, or at a chain of them. It returns a function of its operands that
computes the same results; None if it does not apply.

``random_bits``
    dropout masks: threefry without a loop
``max_pool``
    the gradient of max-pooling without select-and-scatter
``reductions``
    max, argmax and argmin of rows; sparse cross-entropy without one-hot arrays
``layouts``
    convolutions and products on operands that lie as XLA reads them fast
``winograd``
    large convolutions by fewer multiplications

``splice`` applies the rules to a jaxpr. All rules are exact, bit for bit, with two exceptions.
``winograd`` differs by float32's rounding. ``reductions`` describes its maxima of zeros and NaN.
Accelerators have kernels of their own for all of this: on them a step stays as it was traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.program.rewrites.layouts import contraction, convolution
from paceline.program.rewrites.max_pool import max_pool_gradient
from paceline.program.rewrites.random_bits import random_bits
from paceline.program.rewrites.reductions import argmax, argmin, reduce_max, reduce_sum
from paceline.program.rewrites.splice import ChainRule, Rule, splice
from paceline.program.rewrites.winograd import winograd

#: Primitive -> rule for one equation; all exact.
CPU_RULES: dict[str, Rule] = {
    "random_bits": random_bits,
    "select_and_scatter_add": max_pool_gradient,
    "conv_general_dilated": convolution,
    "dot_general": contraction,
    "argmax": argmax,
    "argmin": argmin,
    "reduce_max": reduce_max,
}
#: Primitive -> rule for an equation and those before it; all exact.
CPU_CHAINS: dict[str, ChainRule] = {"reduce_sum": reduce_sum}


def rewrite(closed: Any, platform: str, without: Sequence[str] = ()) -> Any:
    """A closed jaxpr with all rules that a platform needs applied; ``closed`` itself off the CPU.

    ``platform``: "cpu", "gpu" or "tpu". ``without``: primitives to leave as they are, or
    "winograd": to measure what a rule gains.
    """
    if platform != "cpu":
        return closed
    rules = {name: rule for name, rule in CPU_RULES.items() if name not in without}
    if not {"winograd", "conv_general_dilated"} & set(without):
        rules["conv_general_dilated"] = lambda eqn: winograd(eqn) or convolution(eqn)
    chains = {name: rule for name, rule in CPU_CHAINS.items() if name not in without}
    return splice(closed, rules, chains)
