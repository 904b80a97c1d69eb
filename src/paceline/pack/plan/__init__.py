"""How a pack is executed: ``stacked``, ``mapped`` or ``sequential``."""

from paceline.pack.plan.base import Arrays, CompiledPlan, Workload
from paceline.pack.plan.sequential import SequentialProgram
from paceline.pack.plan.stacked import MappedProgram, StackedProgram

__all__ = [
    "Arrays",
    "CompiledPlan",
    "MappedProgram",
    "SequentialProgram",
    "StackedProgram",
    "Workload",
]
