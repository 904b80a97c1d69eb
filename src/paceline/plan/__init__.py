"""How a pack is executed: ``stacked`` or ``sequential``."""

from paceline.plan.base import Arrays, Program, Workload
from paceline.plan.sequential import SequentialProgram
from paceline.plan.stacked import StackedProgram

__all__ = ["Arrays", "Program", "SequentialProgram", "StackedProgram", "Workload"]
