"""Groups, programs and planners that compile nothing, for tests of what happens around training."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from paceline.data.adapters import EpochBatches
from paceline.data.chunks import ResidentArrays
from paceline.executor.sharing.grouping import LocalGroup
from paceline.executor.state.facts import PackFacts
from paceline.pack.pack import Pack, SlotTrial
from paceline.program.compile import CompileEffort
from paceline.program.trace import State


def stored(facts: PackFacts) -> dict[str, Any]:
    """What a file holds of a snapshot's facts."""
    return json.loads(json.dumps(msgspec.to_builtins(facts, str_keys=True)))


def read(facts: dict[str, Any]) -> PackFacts:
    """The inverse of ``stored``, as a search reads a file."""
    return msgspec.convert(facts, PackFacts, str_keys=True)


class FakeProgram:
    """A program that is compiled already."""

    def __init__(self, n_slots: int, plan: str = "vectorized", **attributes: Any) -> None:
        self.n_slots, self.plan, self.effort = n_slots, plan, CompileEffort.QUICKLY
        self.layout = None
        self.__dict__ |= attributes

    def ready(self) -> bool:
        return True


@dataclass
class FakePlanner:
    """A planner with that many packs at once."""

    packs_at_once: int = 1
    chooses_slots: bool = True
    slots: int = 4
    halves: bool = True

    def can_halve(self, program: Any) -> bool:
        return self.halves

    def slots_now(self, groups: list[LocalGroup]) -> int:
        return self.slots


@dataclass
class FakeDriver:
    """Callbacks of a trial; ``fails`` names the call that raises.

    Attributes:
        calls: What was called.
    """

    logs: dict[str, float] = field(default_factory=dict)
    stopped: bool = False
    froze: bool = False
    fails: str = ""
    calls: list[Any] = field(default_factory=list)

    def _call(self, name: str, *values: Any) -> None:
        self.calls.append((name, *values) if values else name)
        if name == self.fails:
            raise ValueError(f"no {name}")

    def attach(self, place: Any) -> None:
        pass

    def begin_epoch(self, epoch: int) -> None:
        self._call("begin_epoch", epoch)

    def end_epoch(self, logs: dict[str, float]) -> dict[str, float]:
        self._call("end_epoch")
        return logs | self.logs

    def end(self) -> None:
        self._call("end")

    def abandon(self) -> None:
        self._call("abandon")

    def seconds(self) -> float:
        return 0.5


def state(value: float = 0.0) -> State:
    """Variables of a trial, all of one value."""
    leaf = np.full(3, value, np.float32)
    return State([leaf], [], [leaf + 1], [])


def trial(number: int, epochs: int = 9, epoch: int = 0, **attributes: Any) -> SlotTrial:
    """A trial whose variables are its number."""
    return SlotTrial(number, number, epochs, state(number), (), epoch, **attributes)


def group(
    *numbers: int, n_slots: int | None = 2, steps_per_epoch: int | None = None, name: str = "g"
) -> LocalGroup:
    """A group with these trials in its queue, and a program of so many slots (None: no program).

    Args:
        *numbers: Of the trials.
        n_slots: Slots of a pack.
        steps_per_epoch: Of the 4 batches of a pass.
        name: The group's.
    """
    epochs = EpochBatches(4, steps_per_epoch)
    work: Any = SimpleNamespace(n_train=8, n_validation=0, epochs=epochs, batch_size=2)
    step: Any = SimpleNamespace(full=SimpleNamespace(log_names=("loss",)))
    made = LocalGroup(name, work, [step], state(), [], rng_differs=False, convolves=False)
    made.queue.extend(map(trial, numbers))
    made.n_trials = made.n_seen = len(numbers)
    if n_slots is not None:
        made.program = FakeProgram(n_slots)  # type: ignore[assignment]
    return made


def empty_pack(program: Any) -> Pack:
    """A pack of a program, without data."""
    data = ResidentArrays(None, 8, 2, EpochBatches(4))
    return Pack(program, data, None, True, [("loss",)])


def numbers(trials: Any) -> list[int]:
    """Numbers of trials."""
    return [each.number for each in trials]


def slots_of(made: LocalGroup) -> list[list[int | None]]:
    """What each slot of each pack holds."""
    return [[None if t is None else t.number for t in pack.slots] for pack in made.packs]
