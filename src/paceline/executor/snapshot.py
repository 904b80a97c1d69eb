"""States of trials outside of their packs: paused trials, and snapshots for checkpoints.

A snapshot is a dictionary of JSON values and a dictionary of arrays. The keys of both lie in users'
checkpoints, so they never change. A trial's arrays are named ``{prefix}.{part}.{leaf}``; parts 0 to
3 are its trainable, non-trainable, optimizer and metric variables.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.executor.base import Notes, UnsavedAttributes
from paceline.executor.grouping import Group, TrialGrouper
from paceline.executor.plan_choice import Candidate, RestoredProgram
from paceline.executor.planner import Planner, layout_of, trying
from paceline.executor.restored import (
    Arrays,
    Example,
    Facts,
    group_of,
    restore_roles,
    restored_trials,
)
from paceline.executor.slots import SlotAllocator
from paceline.pack.pack import SlotTrial
from paceline.pack.slot_rows import is_on_device, on_host
from paceline.program.compile import Effort
from paceline.program.files import put_parts
from paceline.program.step_template import StepTemplate
from paceline.program.trace import State

#: Bytes of paused trials that are kept in memory.
LIMIT = 2 * 2**30

#: In place of the devices, in snapshots of an executor whose programs other machines compile.
ELSEWHERE = ["elsewhere"]
_NOBODY: Facts = {"packs": [], "queue": [], "parked": [], "epochs": {}, "callbacks": {}}


@dataclass
class _PausedTrial:
    """A trial that waits, with its state, or with the path of its state and how to read it."""

    trial: SlotTrial  # without its state
    group: Group
    state: State | None  # perhaps lent by the pack; None once it is on disk
    nbytes: int  # of its variables
    serial: int  # tells this pause from all others
    path: Path | None = None  # the file of the variables, once they are on disk
    # Shape and dtype of each array in the file, part by part.
    layout: tuple[list[tuple[tuple[int, ...], np.dtype]], ...] = ()


class PausedStates:
    """Paused trials by number: their states on the device, on the host, or on disk beyond a limit.

    On the device a state is lent by a pack, which says when it needs its arrays again. Each state
    is written once. The files hold raw bytes, and what the bytes mean is kept in memory: the files
    are of use to this process alone, and are removed with it. Beyond ``limit`` bytes in memory, the
    trials that were paused first go to disk first.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._paused: dict[int, _PausedTrial] = {}
        # Those whose variables lie on a device, and not in the host's memory.
        self._on_device: dict[int, _PausedTrial] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._held = 0
        self._serials = itertools.count()

    def __len__(self) -> int:
        return len(self._paused)

    def __contains__(self, number: int) -> bool:
        return number in self._paused

    @property
    def on_disk(self) -> int:
        """Number of states on disk."""
        return sum(paused.path is not None for paused in self._paused.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the variables of all paused trials."""
        return sum(paused.group.nbytes for paused in self._paused.values())

    @property
    def numbers(self) -> list[int]:
        """Numbers of the paused trials, in the order in which they were paused."""
        return list(self._paused)

    def put(self, trial: SlotTrial, group: Group) -> None:
        """Takes a trial in, whose ``state`` becomes None."""
        state, trial.state = trial.state, None
        assert state is not None
        paused = _PausedTrial(trial, group, state, state.nbytes, next(self._serials))
        self._paused[trial.number] = paused
        if is_on_device(state):
            self._on_device[trial.number] = paused
        else:
            self._hold(state.nbytes)

    def _hold(self, nbytes: int) -> None:
        """Counts bytes that have come to the host, and writes states to disk beyond the limit."""
        self._held += nbytes
        for number, paused in self._paused.items():
            if self._held <= self._limit:
                break
            if paused.state is not None and number not in self._on_device:
                self._write(paused)

    @property
    def device_bytes(self) -> int:
        """Bytes of the states that lie on a device, and not in the host's memory."""
        return sum(paused.nbytes for paused in self._on_device.values())

    def leave_device(self) -> None:
        """Copies all states to the host: the device lacks memory."""
        for paused in self._on_device.values():
            assert paused.state is not None
            paused.state = on_host(paused.state)
        self.count_anew()

    def count_anew(self) -> None:
        """Finds the states that have come from a device to the host."""
        for number, paused in list(self._on_device.items()):
            assert paused.state is not None
            if not is_on_device(paused.state):
                del self._on_device[number]
                self._hold(paused.nbytes)

    def take(self, number: int) -> tuple[SlotTrial, Group]:
        """Gives a trial back, with its state, and the trial's group.

        Raises KeyError if no trial of that number is paused.
        """
        paused = self._paused[number]
        state = self.state_of(number)
        self.drop(number)
        paused.trial.state = state
        return paused.trial, paused.group

    def state_of(self, number: int) -> State:
        """A trial's state; the trial stays."""
        paused = self._paused[number]
        return paused.state if paused.state is not None else _read(paused)

    def trial(self, number: int) -> SlotTrial:
        """A trial, without its state; it stays."""
        return self._paused[number].trial

    def key(self, number: int) -> str:
        """A name for this pause of this trial; no other trial and no other pause has the same."""
        return f"{number}.{self._paused[number].serial}"

    @property
    def trials(self) -> list[SlotTrial]:
        """The trials, without their states."""
        return [paused.trial for paused in self._paused.values()]

    def of(self, group: Group) -> list[SlotTrial]:
        """A group's trials, without their states."""
        return [paused.trial for paused in self._paused.values() if paused.group is group]

    def drop(self, number: int) -> SlotTrial | None:
        """Forgets a trial and returns it without its state; None if no such trial is paused."""
        paused = self._paused.pop(number, None)
        if paused is None:
            return None
        if paused.path is not None:
            paused.path.unlink(missing_ok=True)
        elif self._on_device.pop(number, None) is None:
            self._held -= paused.nbytes
        return paused.trial

    def close(self) -> None:
        """Forgets all trials and removes their files."""
        self._paused.clear()
        self._on_device.clear()
        self._held = 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _write(self, paused: _PausedTrial) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="paceline-paused-")
        assert paused.state is not None
        path = Path(self._folder.name) / f"{paused.trial.number}.state"
        arrays = [[np.asarray(a) for a in part] for part in paused.state.lists()]
        try:
            with path.open("wb") as file:
                for part in arrays:
                    for array in part:
                        file.write(np.ascontiguousarray(array).tobytes())
        except OSError:  # a full disk: the state stays in memory
            path.unlink(missing_ok=True)
            return
        paused.layout = tuple([(a.shape, a.dtype) for a in part] for part in arrays)
        paused.path, paused.state = path, None
        self._held -= paused.nbytes


def _read(paused: _PausedTrial) -> State:
    assert paused.path is not None
    data, at = paused.path.read_bytes(), 0
    lists = []
    for part in paused.layout:
        arrays = []
        for shape, dtype in part:
            size = int(np.prod(shape)) * dtype.itemsize
            arrays.append(np.frombuffer(data[at : at + size], dtype).reshape(shape))
            at += size
        lists.append(arrays)
    return State(*lists)


class PackSnapshots:
    """Takes snapshots of an executor's packs, and puts trials back to where a snapshot has them."""

    def __init__(
        self,
        grouper: TrialGrouper,
        planner: Planner,
        slots: SlotAllocator,
        paused: PausedStates,
        notes: Notes,
    ) -> None:
        self._grouper, self._planner = grouper, planner
        self._slots, self._paused = slots, paused
        self._unsaved = UnsavedAttributes(notes.tell_once)

    def capture(self, arrays: Arrays, lasting: dict[str, Arrays]) -> Facts:
        """All trials under way; see ``PackExecutor.snapshot``."""
        groups = [
            _capture(group, self._paused.of(group), arrays, at)
            for at, group in enumerate(self._grouper.groups)
        ]
        for number in self._paused.numbers:
            own = lasting.setdefault(self._paused.key(number), {})
            put_parts(f"wait.{number}", on_host(self._paused.state_of(number)).lists(), own)
        for group in groups:
            for driver in group["callbacks"].values():
                self._unsaved.say(driver["callbacks"])
        return self._facts(groups)

    def states(self) -> dict[int, tuple[int, State]]:
        """Epoch and variables of the trials that need nothing else to train on, by number.

        Trials that have trained no epoch, are paused, or have callbacks are left out.
        """
        found: dict[int, tuple[int, State]] = {}
        for group in self._grouper.groups:
            states = [(trial, trial.state) for trial in group.queue]
            for pack in group.packs:
                there = pack.states()
                states += [(trial, there[trial.number]) for trial in pack.live]
            for trial, state in states:
                if state is not None and trial.epoch and trial.driver is None:
                    found[trial.number] = trial.epoch, on_host(state)
        return found

    def capture_programs(self) -> Facts:
        """The programs without the trials."""
        groups = [{**_program_facts(group), **_NOBODY} for group in self._grouper.groups]
        return self._facts(groups)

    def _facts(self, groups: list[Facts]) -> Facts:
        founders = list(self._grouper.founders)
        return {"device": self._planner.signature, "founders": founders, "groups": groups}

    def restore_trials(self, facts: Facts, arrays: Arrays, example: Example) -> list[int]:
        """Puts trials that have been submitted back; see ``PackExecutor.restore``."""
        order, lost = [], []
        for at, was in enumerate(facts["groups"]):
            group = group_of(self._grouper, was, example)
            if group is None or not restore_roles(group, was["roles"]):
                lost += [int(number) for number, epoch in was["epochs"].items() if epoch]
                continue
            order.append(group)
            group.n_seen, group.n_trials = was["seen"], was["trials"]
            group.example, group.most_slots = was["example"], was["most_slots"]
            trials, again = restored_trials(group, was, arrays, at)
            lost += again
            group.queue.clear()
            for number in was["parked"]:
                if number in trials and number not in again:
                    self._paused.put(trials.pop(number), group)
            program = was["program"]
            if program is not None and self._compiles_alike(facts["device"]):
                candidate = Candidate(program["plan"], program["slots"])
                restored = RestoredProgram(candidate, Effort(program["quick"]), program["layout"])
                group.restored_program = restored
                if trials:
                    self._planner.compile_again(group)
                    self._fill_slots(group, was["packs"], trials)
            group.asked_round = was["met"]
            # A file from elsewhere may name a trial twice.
            waiting = list(dict.fromkeys(n for n in was["queue"] if n in trials))
            group.queue.extend(trials[n] for n in trials if n not in waiting)
            group.queue.extend(trials[n] for n in waiting)
        self._grouper.reorder(order)
        return lost

    def _fill_slots(
        self, group: Group, packs: list[list[int | None]], trials: dict[int, SlotTrial]
    ) -> None:
        """Puts trials into the slots that they had, and removes them from ``trials``."""
        for numbers in packs:
            pack = self._slots.new_pack(group)
            group.packs.append(pack)
            for slot, number in enumerate(numbers):
                if number in trials:
                    pack.admit(trials.pop(number), slot)

    def _compiles_alike(self, device: Sequence[Any]) -> bool:
        """Whether a program is compiled here as a snapshot of such devices says."""
        one = len(self._planner.devices) == 1
        return device == self._planner.signature or (device == ELSEWHERE and one)


def _capture(group: Group, paused: Sequence[SlotTrial], arrays: Arrays, index: int) -> Facts:
    """A group between two epochs as JSON values; its trials' variables are added to ``arrays``.

    Those of ``paused`` trials are put elsewhere. ``index`` is the group's, for names.
    """
    packs = []
    for at, pack in enumerate(group.packs):
        packs.append([None if trial is None else trial.number for trial in pack.slots])
        states = pack.states()
        for trial in pack.live:
            put_parts(f"pack{index}.{at}.{trial.number}", states[trial.number].lists(), arrays)
    # A trial that has trained no epoch begins again from its seed, so its state is not needed.
    waiting = [(trial, trial.state) for trial in group.queue if trial.epoch]
    for trial, state in waiting:
        assert state is not None
        put_parts(f"wait.{trial.number}", on_host(state).lists(), arrays)
    trials = [*group.trials, *paused]
    behind = {str(trial.number): trial.epoch for trial in trials if trial.epoch < trial.known}
    return {
        **_program_facts(group),
        "packs": packs,
        "queue": [trial.number for trial in group.queue],
        "parked": [trial.number for trial in paused],
        "epochs": {str(trial.number): max(trial.epoch, trial.known) for trial in trials},
        **({"held": behind} if behind else {}),
        "callbacks": {
            str(trial.number): trial.driver.saved(f"callbacks.{trial.number}", arrays)
            for trial in trials
            if trial.driver is not None and trial.epoch
        },
        **logs_facts(
            {
                str(trial.number): trial.driver.logs
                for trial in trials
                if trial.driver is not None and not trial.epoch
            }
        ),
    }


def _program_facts(group: Group) -> Facts:
    """A group as JSON values, without its trials."""
    program, restored = group.program, group.restored_program
    if program is None and restored is not None:  # no trial has needed it since it was restored
        candidate, effort, shape = restored.candidate, restored.effort, restored.layout
    elif program is None or trying(group):  # one that is only being tried out is chosen again
        return group_facts(group, None)
    else:
        candidate, effort = Candidate(program.plan, program.n_slots), program.effort
        layout = layout_of(program)
        shape = None if layout is None else (layout.trial, layout.data)
    found = {
        "plan": candidate.plan,
        "slots": candidate.slots,
        "quick": int(effort),
        "layout": None if shape is None else list(shape),
    }
    return group_facts(group, found)


def group_facts(group: Group, program: Facts | None) -> Facts:
    """A group as JSON values, without its trials.

    ``program`` says how its program is compiled; None where that is to be chosen again.
    """
    return {
        "name": group.name,
        "example": group.example,
        "seen": group.n_seen,
        "trials": group.n_trials,
        "most_slots": group.most_slots,
        "program": program,
        "met": group.asked_round,
        "roles": [role_facts(role) for role in group.roles],
    }


def logs_facts(logs: Mapping[str, Mapping[str, int]]) -> Facts:
    """What trials that begin again keep of the logs that their callbacks append to.

    ``logs``: number of a trial -> ``UserPlaces.kept``.
    """
    found = {number: kept for number, kept in logs.items() if kept}
    return {"logs": found} if found else {}


def role_facts(role: StepTemplate) -> Facts:
    """Which constants of a step are inputs, as JSON values; ``restore_roles`` takes them."""
    return {
        "constants": len(role.full.canonical.constants),
        "observed": sorted(role.observed),
        "lifted": list(role.lifted),
        "settled": role.settled,
        "widened": role.widened,
    }
