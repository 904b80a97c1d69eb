"""How a pack is executed: ``stacked``, ``mapped`` or ``sequential``."""

from paceline.plan.base import Arrays, Program, Workload
from paceline.plan.sequential import SequentialProgram
from paceline.plan.stacked import MappedProgram, StackedProgram

__all__ = ["Arrays", "MappedProgram", "Program", "SequentialProgram", "StackedProgram", "Workload"]
