"""The machines of a search, as the search sees them: orders out, events in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paceline.executor.remote.messages import HostFacts, RoundAnswer, RoundOrder


@dataclass(frozen=True)
class MachineJoined:
    """A machine is ready for its first order."""

    host: str  # its name; no other machine of the search ever has the same
    facts: HostFacts  # what it says of itself


@dataclass(frozen=True)
class MachineAnswered:
    """A machine has done what it was told, and waits for its next order."""

    host: str
    answer: RoundAnswer


@dataclass(frozen=True)
class MachineLeft:
    """A machine is gone for good: nothing that it says later counts."""

    host: str  # its name
    why: str  # the reason, for the user


@dataclass(frozen=True)
class MachineLeaving:
    """A machine will go soon: it is to hand its jobs back."""

    host: str


Event = MachineJoined | MachineAnswered | MachineLeft | MachineLeaving


class HostPool(Protocol):
    """Carries orders to machines, and their answers back.

    A machine has one order at a time. Nothing comes of a machine after ``MachineLeft``, nor after
    ``remove``: a pool drops what arrives later.
    """

    def send(self, host: str, order: RoundOrder) -> None:
        """Gives a machine its next order; a machine that cannot be reached leaves."""
        ...

    def wait(self, seconds: float) -> list[Event]:
        """What has happened; waits so long for it at most.

        Raises ClusterError if there is no machine any more, and none has come for a while.
        """
        ...

    def remove(self, host: str) -> None:
        """Ends a machine for good, whatever it does. It does not leave: it is forgotten."""
        ...

    def close(self) -> None:
        """Ends all machines."""
        ...
