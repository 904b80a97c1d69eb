"""What trials of several structures cost in one program on an accelerator, and what that saves.

A short step leaves most of an accelerator idle: launching its kernels takes longer than their
arithmetic. So trials gain from each other's company even where no compile is saved. The numbers are
those of an H100 (docs/decisions/0046-sharing-on-a-gpu.md); of a TPU nothing has been measured.
"""

from __future__ import annotations

#: Floating-point operations a second, in the products and convolutions of a pack of eight trials.
_PRODUCTS = 4e13
#: Simple operations on single elements a second, in kernels that read and write them anyway.
_ELEMENTS = 1e12
#: Seconds of a step that do not depend on its size.
_LAUNCHES = 5e-5
#: Seconds to trace and compile one more structure.
_STRUCTURE = 4.0
#: Compiles have to save so many times what they cost: few trials may fall into a family.
_MARGIN = 2


def sharing_pays(
    *, flops: float, elements: float, steps: int, structures: float, trials: int
) -> bool:
    """Whether trials of several structures are trained sooner in one program.

    Args:
        flops: Floating-point operations that each step of a trial makes more than alone.
        elements: Operations on single elements that each step makes more than alone.
        steps: Training steps of a trial.
        structures: Structures that a trial of the family saves from being compiled, on average.
        trials: Trials that the family is judged by.
    """
    more = flops / _PRODUCTS + elements / _ELEMENTS
    less = _LAUNCHES * (1 - 1 / trials)
    return (more - less) * steps < structures * _STRUCTURE / _MARGIN
