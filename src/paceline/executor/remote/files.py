"""What callbacks write on other machines, brought to the machine of the search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline.executor.base import Notes
from paceline.executor.remote.machines import Machine
from paceline.executor.remote.messages import RoundAnswer, Submitted
from paceline.pack.callbacks.elsewhere import UserPlaces


class CollectedFiles:
    """Writes the files of all jobs where the user wanted them.

    Args:
        notes: Told of files that cannot be written.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._places: dict[int, UserPlaces] = {}
        # The machine that had a job last. It may send the last files of a job that has ended.
        self._hosts: dict[int, str] = {}

    def expect(self, number: int, callbacks: Sequence[Any]) -> None:
        """Takes note of where the callbacks of a job would write on this machine."""
        found = UserPlaces(callbacks)
        if found:
            self._places[number] = found

    def kept(self, number: int) -> dict[str, int]:
        """As of ``UserPlaces``, of a job; empty where it writes no log."""
        return self._places[number].kept if number in self._places else {}

    def begun_before(self, number: int, kept: Mapping[str, int]) -> None:
        """As of ``UserPlaces``, of a job that was submitted again."""
        if number in self._places:
            self._places[number].begun_before(kept)

    def sent(self, submitted: Submitted, machine: Machine) -> Submitted:
        """A job as a machine is sent it, with the files that it goes on from."""
        number, state = submitted.spec.number, submitted.state
        if number not in self._places:
            return submitted
        self._hosts[number] = machine.host
        begins = state is None or state.callbacks is None
        if begins:  # a machine of this disk may have died after some epochs
            self._places[number].begin()
        return replace(submitted, files=self._places[number].taken_along(begins))

    def __bool__(self) -> bool:
        """Whether any job has callbacks that write."""
        return bool(self._places)

    def may_come(self, machines: Iterable[Machine]) -> bool:
        """Whether a machine is still to end a job, whose callbacks may write at its end."""
        return bool(self._hosts) and any(machine.busy or machine.stop for machine in machines)

    def put(self, machine: Machine, answer: RoundAnswer) -> None:
        """Writes the files of an answer."""
        for number, files in answer.files.items():
            if self._hosts.get(number) != machine.host:
                continue  # it trains elsewhere by now
            for file in files:
                try:
                    self._places[number].put(file)
                except (OSError, ValueError) as error:
                    self._notes.tell_once(f"callbacks: a file cannot be written: {error}")
