"""A search between two rounds as a snapshot, and a search put back to where a snapshot was taken.

What has ended since is taken back and comes again: decisions are made anew from the same state, and
a trial's numbers hang on nothing else. So a search that was killed ends as it would have ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.executor.memory import host_bytes
from paceline.executor.snapshot import Example
from paceline.study.pruners.pruners import Pruner
from paceline.study.study import Study
from paceline.tuner.checkpoint import handoff
from paceline.tuner.checkpoint.best_models import BestModels
from paceline.tuner.checkpoint.files import Snapshot
from paceline.tuner.checkpoint.handoff import HandedOverTrial
from paceline.tuner.members import MemberReports
from paceline.tuner.running_trials import RunningTrial, RunningTrials

#: Of the host's free memory, what a snapshot may take.
_SHARE = 0.5


class SearchState:
    """Takes snapshots of one search, and restores it.

    Args:
        study: Its study.
        roster: Who is under way.
        teams: Members of trials.
        packs: Where they train; None when none can be packed.
        fit: Where the others do.
        best: The best models.
        pruner: Judges trials, or None.
        note: Told what users may want to know.
    """

    def __init__(
        self,
        study: Study,
        roster: RunningTrials,
        teams: MemberReports,
        packs: LocalExecutor | None,
        fit: FitExecutor,
        best: BestModels,
        pruner: Pruner | None,
        note: Callable[[str], None],
    ) -> None:
        self._study, self._roster, self._teams, self._packs = study, roster, teams, packs
        self._fit, self._best, self._pruner, self._note = fit, best, pruner, note
        self._said = False

    def taken(self) -> Snapshot:
        """The search as it is."""
        arrays: dict[str, np.ndarray] = {}
        lasting: dict[str, dict[str, np.ndarray]] = {}
        under_way = {**self._roster.running, **self._roster.paused}
        packs, packed = self._packs, None
        large = packs is not None and packs.state_bytes > _SHARE * host_bytes()
        if large and not self._said:
            self._said = True
            self._note(
                "checkpoints do not hold the variables of trials, which would not fit into the "
                "host's memory: trials under way would begin again"
            )
        if packs is not None:
            packed = packs.programs_snapshot() if large else packs.snapshot(arrays, lasting)
        # A trial's members wait for one another in fit: none of them can go on by itself.
        fitted = self._fit.snapshot(arrays, under_way if self._teams.size == 1 else ())
        # Those whose state is not kept.
        afresh = {number for number, was in under_way.items() if was.not_packed or large}
        if fitted is not None:
            afresh.discard(fitted["job"])
        facts: dict[str, Any] = {
            "study": self._study.state(afresh),
            "packs": packed,
            "fit": fitted,
            "teams": self._teams.snapshot(sorted({*under_way} - afresh), arrays),
            "trials": {
                str(number): dataclasses.asdict(RunningTrial(r.epochs) if number in afresh else r)
                for number, r in under_way.items()
            },
            "trial_epochs": self._roster.trial_epochs,
            "n_begun": self._roster.n_begun,
            "n_extra": self._roster.n_extra,
            "best": self._best.snapshot(arrays, afresh),
            "pruner": None if self._pruner is None else self._pruner.state(),
        }
        return Snapshot(facts, arrays, lasting)

    def shared(self) -> Snapshot | None:
        """The trials one by one, for a worker that takes them over; None where it could not.

        What a pruner has seen of a trial, and what its members wait for, are this search's.
        """
        packs = self._packs
        if packs is None or self._pruner is not None or self._teams.size > 1:
            return None
        if packs.state_bytes > _SHARE * host_bytes():
            return None
        trials = []
        for number, (epoch, state) in packs.states().items():
            running = self._roster.running.get(number)
            if running is not None and running.epoch == epoch:
                trial = self._study.trials.by_number(number)
                history = {name: list(column) for name, column in trial.history.items()}
                left = HandedOverTrial(
                    epoch, running.seconds, history, state.lists(), self._best.held(number)
                )
                trials.append((trial, left))
        return handoff.taken(trials) if trials else None

    def restore(self, snapshot: Snapshot, submit: Callable[[int], None], example: Example) -> None:
        """Puts the trials under way back to where they were.

        Args:
            snapshot: The study is open as it says.
            submit: Builds a trial under way, by number, and hands it to its executor.
            example: The model of a trial that has ended.
        """
        facts, arrays = snapshot.facts, snapshot.arrays
        under_way = {int(number): _running(was) for number, was in facts["trials"].items()}
        for number, was in sorted(under_way.items()):
            self._roster.running[number] = was
            self._teams.begin(number, was.epochs)
        self._best.restore(facts["best"], arrays)
        if facts.get("fit") is not None:
            self._fit.restore(facts["fit"], arrays)
        lost = self._packed(facts, arrays, sorted(under_way), submit, example)
        for number in lost:
            self._roster.running[number] = RunningTrial(under_way[number].epochs)
            self._study.updates.restart(number)
            self._best.drop(number)
        teams = facts.get("teams", {})
        running = {str(number) for number in self._roster.running if number not in lost}
        self._teams.restore({n: was for n, was in teams.items() if n in running}, arrays)
        if self._pruner is not None:
            self._pruner.load_state(facts["pruner"])
            for number in under_way:
                if number not in self._roster.running:  # its build failed this time
                    self._pruner.end_trial(self._study.trials.by_number(number))
        for number in sorted(under_way):
            # Its build may have failed this time.
            if (
                number in self._roster.running
                and self._study.trials.by_number(number).state == "paused"
            ):
                self._roster.pause(number)
        arrays.clear()  # whoever needs some has them
        self._roster.trial_epochs, self._roster.n_begun = facts["trial_epochs"], facts["n_begun"]
        self._roster.n_extra = facts.get("n_extra", 0)

    def _packed(
        self,
        snapshot: Mapping[str, Any],
        arrays: dict[str, np.ndarray],
        numbers: list[int],
        submit: Callable[[int], None],
        example: Example,
    ) -> list[int]:
        """Submits trials and puts them into their slots; returns those that must begin again."""
        packs, lost, facts = self._packs, [], snapshot["packs"]
        # Checkpoints of earlier versions know nothing of members, which begin again in any slot.
        whole = self._teams.size == 1 or "teams" in snapshot
        if packs is None or facts is None:
            for number in numbers:
                submit(number)
            return []
        if not whole:
            packs.restore(facts, arrays, example)
        with packs.resubmitting():
            for number in numbers:
                submit(number)
        if whole:
            self._leave_ended(packs, facts, snapshot.get("teams", {}))
            jobs = packs.restore(facts, arrays, example)
            trials = dict.fromkeys(map(self._teams.trial_of, jobs))
            lost = [number for number in trials if number in self._roster.running]
            for number in lost if self._teams.size > 1 else ():
                for job in self._teams.jobs_of(number):  # those that are not lost as well
                    packs.withdraw(job)
                submit(number)
        if lost:
            self._note(
                f"{len(lost)} trials under way begin again: their model is not what it was when "
                "the search stopped"
            )
        return lost

    def _leave_ended(
        self, packs: LocalExecutor, facts: Mapping[str, Any], teams: Mapping[str, Any]
    ) -> None:
        """Takes members out again that had trained all their epochs, while others had not."""
        there = {int(job) for group in facts["groups"] for job in group["epochs"]}
        for number in map(int, teams):
            for job in self._teams.jobs_of(number):
                if job not in there:
                    packs.drop(job)


def _running(was: Mapping[str, Any]) -> RunningTrial:
    """A trial under way; what another version has added is left out."""
    known = {field.name for field in dataclasses.fields(RunningTrial)}
    return RunningTrial(**{name: value for name, value in was.items() if name in known})
