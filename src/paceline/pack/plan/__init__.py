"""How a pack is executed: ``vectorized``, ``looped`` or ``sequential``."""

from paceline.pack.plan.base import Arrays, CompiledPlan, Workload
from paceline.pack.plan.sequential import SequentialProgram
from paceline.pack.plan.vectorized import LoopedProgram, VectorizedProgram

__all__ = [
    "Arrays",
    "CompiledPlan",
    "LoopedProgram",
    "SequentialProgram",
    "VectorizedProgram",
    "Workload",
]
