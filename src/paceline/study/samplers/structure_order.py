"""Asks for trials of one structure one after another: they share a program and fill a pack.

``StructuralParameters`` learns from finished trials which parameters decide a trial's program;
``StructureOrder`` orders the proposals of a sampler by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.search_space import Space
from paceline.study.samplers.samplers import Sampler
from paceline.study.samplers.values import RandomDraws
from paceline.study.trials.trial import INTERRUPTED

#: Trials in a row that TPE is asked for with the structure of the first (docs/decisions/0009).
WAVE = 8
#: Attempts at such a trial that keep the structure. TPE often proposes what it has tried: further
#: attempts are free.
FIXED_ATTEMPTS = 3
_ABSENT = object()  # the value of a parameter that a trial does not have
#: Ended trials from which TPE learns by values. Before that its trials are random, and waves would
#: only try fewer structures.
TPE_BEGINS = 10
#: Trials in a wave before that, where time ends the search. To compile one more structure takes as
#: long as a few epochs of one that is compiled (docs/decisions/0056).
TIMED_WAVE = 4


class StructureOrder:
    """Decides which trials have the structure of the one before.

    Random search tries its draws in another order, which does not change the configurations that it
    tries in all. TPE is asked in waves: it chooses the first trial of a wave freely, and the others
    have the structural values of the first. Where time ends the search, waves begin with the first
    trial, and fix all values that may be structural. Late in that time, all trials have those of
    the best trial. Other samplers keep their order.
    """

    def __init__(
        self,
        sampler: Sampler,
        seed: int,
        space: Space,
        past: Iterable[FrozenTrial],
        resumed: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin, or continue the session of a ``state``, after trials of earlier sessions."""
        # Trials that train at once (with one the order is free). How many of an adaptive sampler
        # may be open at once. How many more are certain to run, so that their order is free.
        self.slots = self.open = self.sure = 1
        self.by_time = False  # whether time may end the search; the proposer sets it
        self._space = space  # it grows
        self._structure = StructuralParameters()
        self.in_waves = sampler.name == "tpe"  # whether several trials in a row share a structure
        self._n_ended = 0
        self._values: dict[int, dict[str, Any]] = {}  # trial number -> stored values
        self._numbers: list[int] = []  # this session's trials
        self._programs: dict[int, str] = {}  # trial number -> its program
        # Trials of this session by structure, how many of them are counted, and under which names.
        self._counts: dict[tuple[tuple[str, Any], ...], int] = {}
        self._n_counted, self._counted_by = 0, self._structure.names
        # The wave: its first trial (None if that was not of TPE's choice), how many it has, and
        # which of them have not ended.
        self._leader: int | None = None
        self._n_asked = 0
        self._under_way: set[int] = set()
        self._kept: int | None = None  # the trial whose structure all others have; None: no such
        # Whether the leader of an early wave trained longer than its program compiles: then new
        # structures cost little.
        self._trains_long = False
        self._rejected = False  # whether the last trial was rejected before it trained
        used: list[int] = []
        # A trial that failed before its first epoch, or moved to fit, is stored without a program.
        stopped = (resumed or {}).get("programs", {})
        known = {number: program for program, numbers in stopped.items() for number in numbers}
        for trial in past:
            attrs = trial.user_attrs
            self._values[trial.number] = trial.params
            if trial.state in (OptunaState.COMPLETE, OptunaState.PRUNED):
                self._n_ended += 1
            # Trials that other programs have stored may have attributes of any type.
            program = known.get(trial.number, attrs.get("program_id"))
            if isinstance(program, str):
                self.learn_program(trial.number, program)
            over = trial.state.is_finished() and attrs.get("error") != INTERRUPTED
            if isinstance(attrs.get("draw"), int) and (
                over or (resumed and not trial.state.is_finished())
            ):
                used.append(attrs["draw"])
        if resumed:
            self._numbers = list(resumed["numbers"])
            self._leader, self._n_asked = resumed["leader"], resumed["asked"]
            self._under_way = set(resumed["under_way"])
            self._rejected = resumed.get("rejected", False)
            self._trains_long = resumed.get("trains_long", False)
            self.open = resumed.get("open", 1)  # ``goes_on`` is read before ``expect``
        used += (resumed or {}).get("draws", ())
        self.draws = RandomDraws(seed, used) if sampler.name == "random" else None

    def next_draw(self) -> int:
        """Return the number of the draw that random search tries next.

        The last trial's structure comes first, until it fills the slots. Then comes a structure
        that was begun and can fill the slots, because its program is compiled for as many trials.
        Otherwise the largest structure in the pool comes next. Draws of other structures wait for
        more of their kind. A search that is stopped early has still met most structures.
        """
        draws, names, parameters = self.draws, self._structure.names, self._space.parameters
        assert draws is not None
        pool = self.slots * max(4, self._structure.n_programs) if self.slots > 1 else 1
        draws.fill(min(self.sure, pool))
        # Many draws of the pool may share a structure that is not allowed.
        if not names or self.slots == 1 or self._rejected:
            return draws.first
        if found := self._rest_of_family():
            return found[0]
        asked = self._asked()
        for structure, n in asked.items():
            if n % self.slots:
                found = draws.like(dict(structure), parameters)
                if len(found) >= self.slots - n % self.slots:
                    return found[0]
        return draws.of_largest(map(dict, asked), names, parameters)

    def fill(self, slots: int) -> None:
        """Have trials that share a program fill this many slots; 1 is the sampler's own order."""
        self.slots = slots

    @property
    def early_leader(self) -> int | None:
        """The first trial of a wave that time makes worth it; None without such a wave."""
        return self._leader if self._is_early else None

    def end_wave(self) -> None:
        """Let TPE choose the next trial freely: the leader trains longer than it compiles."""
        self._leader, self._trains_long = None, True

    def keep(self, number: int) -> None:
        """Have all further trials share the structure of this one, if that saves much."""
        saves = self.in_waves and self.by_time and not self._trains_long
        self._kept = number if saves and number in self._programs else None

    def expect(self, n_open: int, n_sure: int | None) -> None:
        """Set how many trials may be open of an adaptive sampler, and how many are sure to come."""
        self.open = n_open
        if n_sure is not None:
            self.sure = n_sure

    @property
    def wave(self) -> int:
        """How many trials TPE is asked for with one structure; 1 with other samplers."""
        if not self.in_waves:
            return 1
        return min(TIMED_WAVE if self._is_early else min(WAVE, self.slots), self.open)

    def fixed(self, attempt: int = 0) -> dict[str, Any]:
        """Return the values that TPE does not choose: storage name -> stored value; often none.

        A wave also ends when all its trials have ended: a trial that trains alone may have any
        structure.
        """
        number = self._leader if self._kept is None and self._in_wave() else self._kept
        if number is None or attempt >= FIXED_ATTEMPTS:
            return {}
        values = self._values[number]
        if self.by_time:
            found = self._suspects(number)
            # With all values fixed, the next trial would repeat the leader.
            return found if len(found) < len(values) else {}
        return self._structure.of(values)

    @property
    def goes_on(self) -> bool:
        """Whether the next trial can have the structure of the last one."""
        if self.by_time and self.in_waves:
            return self._kept is None and bool(self.fixed())
        if not self._structure.names or not self._numbers:
            return False
        return bool(self._rest_of_family()) if self.draws is not None else self._in_wave()

    def state(self) -> dict[str, Any]:
        """What cannot be told from the trials, as JSON values."""
        programs: dict[str, list[int]] = {}
        for number in self._numbers:
            if number in self._programs:
                programs.setdefault(self._programs[number], []).append(number)
        return {
            "numbers": list(self._numbers),  # a copy, written while the search continues
            "leader": self._leader,
            "asked": self._n_asked,
            "under_way": sorted(self._under_way),
            "draws": [] if self.draws is None else sorted(self.draws.used),
            "rejected": self._rejected,
            "trains_long": self._trains_long,
            "open": self.open,
            "programs": programs,
        }

    # Learning

    def begin_trial(
        self, number: int, values: Mapping[str, Any], draw: int | None, *, given: bool
    ) -> None:
        """Note a trial that was accepted; where some values were ``given``, it is in no wave."""
        in_wave, self._rejected = self._in_wave(), False
        if not in_wave:
            leads = not given and (self.by_time or self._n_ended >= TPE_BEGINS)
            self._leader = number if leads else None
            self._n_asked = 0
            self._under_way.clear()
        if not in_wave or not given:
            self._n_asked += 1
            self._under_way.add(number)
        self._values[number] = dict(values)
        self._numbers.append(number)
        self.reject_draw(draw)

    def note_rejected(self, number: int, values: Mapping[str, Any], draw: int | None) -> None:
        """Note a trial that is not trained: it is of no structure, and ends a wave."""
        self._leader, self._rejected = None, True
        self._values[number] = dict(values)
        self.reject_draw(draw)

    def reject_draw(self, draw: int | None) -> None:
        """Note that a draw is not tried again."""
        if self.draws is not None and draw is not None:
            self.draws.done(draw)

    def learn_program(self, number: int, program: str) -> None:
        """Note that a trial fell into a program."""
        values, known = self._values[number], self._space.parameters
        self._programs[number] = program
        finite = [name for name in values if name in known and known[name].is_finite]
        self._structure.learn(program, values, finite)

    def end_trial(self, number: int, state: OptunaState) -> None:
        """Note that a trial has ended."""
        self._under_way.discard(number)
        self._n_ended += state in (OptunaState.COMPLETE, OptunaState.PRUNED)

    def renumber(self, number: int, now: int) -> None:
        """Know a trial by another number."""
        if number in self._values:
            self._values[now] = self._values.pop(number)
        if number in self._programs:
            self._programs[now] = self._programs.pop(number)
        self._numbers = [now if one == number else one for one in self._numbers]
        if number in self._under_way:
            self._under_way.discard(number)
            self._under_way.add(now)
        if self._leader == number:
            self._leader = now
        if self._kept == number:
            self._kept = now

    @property
    def _is_early(self) -> bool:
        """Whether waves are short, since time ends the search and TPE knows little."""
        return self.by_time and self._n_ended < TPE_BEGINS

    def _in_wave(self) -> bool:
        if self._leader is None or self._n_asked >= self.wave:
            return False
        if self.by_time and self._n_asked >= self._n_like(self._leader):
            return False  # the next trial would repeat one of the wave
        # A leader whose build or trace failed, or that trains in fit, has no program to share.
        return self._leader in self._programs if self._is_early else bool(self._under_way)

    def _suspects(self, leader: int) -> dict[str, Any]:
        return self._structure.suspects(self._values[leader], self._programs.get(leader))

    def _n_like(self, leader: int) -> float:
        """How many trials can have the values that a timed wave takes from its first."""
        known, free = self._space.parameters, self._values[leader].keys() - self._suspects(leader)
        counts = [known[name].cardinality if name in known else None for name in free]
        return math.prod(math.inf if n is None else n for n in counts)

    def _rest_of_family(self) -> list[int]:
        """Return the draws like the last trial, as long as they fill the slots."""
        if self.draws is None or not self._numbers:
            return []
        last = self._structure.of(self._values[self._numbers[-1]])
        if self._asked()[tuple(last.items())] % self.slots == 0:
            return []
        return self.draws.like(last, self._space.parameters)

    def _asked(self) -> dict[tuple[tuple[str, Any], ...], int]:
        """Return how many trials of each structure this session has asked for."""
        if self._counted_by != self._structure.names:
            self._counts, self._n_counted = {}, 0
            self._counted_by = self._structure.names
        for number in self._numbers[self._n_counted :]:
            structure = tuple(self._structure.of(self._values[number]).items())
            self._counts[structure] = self._counts.get(structure, 0) + 1
        self._n_counted = len(self._numbers)
        return self._counts


class StructuralParameters:
    """The structural parameters, as far as trials have shown which they are.

    A parameter in which two trials of one program differ is not structural. Of the others, those
    with the most values are structural: as many as are needed to tell the programs apart. A wrong
    guess does not last: each new trial can only show that a parameter is needed, or not. Parameters
    that change the program for a few values only (a dropout rate of 0) are not structural: such
    programs stay in one wave.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] | None = ()  # None: to be found again
        # Program -> stored values of its first trial; its trials differ only in free values.
        self._first: dict[str, dict[str, Any]] = {}
        self._free: set[str] = set()
        self._free_in: dict[str, set[str]] = {}  # by program
        self._finite: dict[str, None] = {}  # a set in the order met

    def learn(self, program: str, values: Mapping[str, Any], finite: Iterable[str]) -> None:
        """Learn from a trial of a program, by the stored values of its active parameters.

        ``finite`` are those with finitely many values: continuous numbers are not of the structure.
        """
        self._finite |= dict.fromkeys(finite)
        first = self._first.get(program)
        if first is None:
            self._first[program] = dict(values)
            self._names = None
            return
        free = {
            name
            for name in first.keys() | values.keys()
            if first.get(name, _ABSENT) != values.get(name, _ABSENT)
        }
        self._free_in.setdefault(program, set()).update(free)
        if not free <= self._free:
            self._free |= free
            self._names = None

    @property
    def names(self) -> tuple[str, ...]:
        """Storage names of the structural parameters; none while one program is known."""
        if self._names is None:
            self._names = tuple(self._separating())
        return self._names

    @property
    def n_programs(self) -> int:
        """How many programs trials have fallen into."""
        return len(self._first)

    def of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of a trial's stored values that are structural; only of active parameters.

        A draw that agrees with them has the same structure, whatever it holds for parameters that
        are not active there.
        """
        return {name: values[name] for name in self.names if name in values}

    def suspects(self, values: Mapping[str, Any], program: str | None) -> dict[str, Any]:
        """Return those of a trial's stored values that may decide its program.

        Without those in which another trial of the program differs. Choices of floating-point
        numbers, such as learning rates, seldom decide a program.
        """
        free = self._free_in.get(program or "", set())
        return {
            name: value
            for name, value in values.items()
            if name in self._finite and name not in free and not isinstance(value, float)
        }

    def _separating(self) -> list[str]:
        """Return parameters that tell programs apart, each time the one that tells most.

        A parameter that is not always active comes after those that activate it, since a draw does
        not show whether build asks for it.
        """
        candidates = [name for name in self._finite if name not in self._free]
        names: list[str] = []
        alike = [list(self._first.values())]
        for absent in (False, True):
            while len(alike) < len(self._first):
                splits = {name: _split(alike, name, absent) for name in candidates}
                best = max(splits, key=lambda name: len(splits[name]), default=None)
                if best is None or len(splits[best]) == len(alike):
                    break  # nothing tells the others apart
                names.append(best)
                alike = splits[best]
        return names


def _split(
    alike: list[list[dict[str, Any]]], name: str, absent: bool
) -> list[list[dict[str, Any]]]:
    """Split lists of trials by one parameter; ``absent``: also where some trials do not have it."""
    parts: list[list[dict[str, Any]]] = []
    for trials in alike:
        by_value: dict[Any, list[dict[str, Any]]] = {}
        for values in trials:
            by_value.setdefault(values.get(name, _ABSENT), []).append(values)
        parts += by_value.values() if absent or _ABSENT not in by_value else [trials]
    return parts
