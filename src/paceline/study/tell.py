"""What becomes of a study's trials, told to all three that keep them: see ``study.py``."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from paceline.study import trial_codec
from paceline.study.ask import TrialAsker
from paceline.study.metadata import RestoredStudy, StudyMetadata
from paceline.study.storage.events import EpochReported, TrialAnnotated, TrialFinished
from paceline.study.storage.write_behind import Ledger
from paceline.study.trial import INTERRUPTED, Trial, TrialState
from paceline.study.trials import TrialTable
from paceline.study.workers.shared_study import Membership


class TrialUpdates:
    """The course of a study's trials, from their begin to their end.

    Args:
        book: The trials, for users.
        agenda: Has samplers learn from them.
        ledger: Has them written to the storage.
        membership: The study's part among the workers that search it.
        past: What the study had before this search.
        description: What the study says of itself.
    """

    def __init__(
        self,
        book: TrialTable,
        agenda: TrialAsker,
        ledger: Ledger,
        membership: Membership,
        past: RestoredStudy,
        description: StudyMetadata,
    ) -> None:
        self._book, self._agenda, self._ledger = book, agenda, ledger
        self._membership, self._past, self._description = membership, past, description
        self._left_running: list[int] = []
        for stored in past.trials:
            trial = trial_codec.from_frozen(stored)
            if trial is not None:
                self._take_over(trial)
        if past.resumed is not None:
            for number, was in past.resumed["open"].items():
                trial_codec.update_from_json(book.trial(int(number)), was)

    @property
    def n_again(self) -> int:
        """Trials that a dead process left under way, to be begun again as new ones."""
        return len(self._left_running)

    def learn_program(self, number: int, program: str) -> None:
        """Note into which program a trial fell: that tells which hyperparameters are structural.

        Args:
            number: The trial's.
            program: The program's name.
        """
        self._book.trial(number).program = program
        self._agenda.proposer.families.learn_program(number, program)

    def report(
        self,
        number: int,
        epoch: int,
        logs: Mapping[str, float],
        value: float | None,
        members: Sequence[float] = (),
    ) -> None:
        """Note an epoch of a running trial.

        Args:
            number: The trial's.
            epoch: Counted from 1; one reported again, after a restart, replaces what was.
            logs: Metric name -> value.
            value: The objective; None when there is none this time.
            members: The objective of each member, where ``value`` is their mean.
        """
        value = None if value is None else float(value)
        self._book.note_epoch(self._running(number), epoch, logs, value, members)
        if value is not None:
            self._agenda.proposer.report(number, epoch, self._book.sign * value)
            self._ledger.put(EpochReported(number, epoch, value))

    def finish(
        self,
        number: int,
        state: TrialState,
        *,
        value: float | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> TrialState:
        """End a trial.

        Args:
            number: The trial's.
            state: complete, pruned or failed. Complete without a number for a value is failed.
            value: The objective at its best epoch; None takes the best one reported.
            attrs: Fields of ``Trial`` (seconds, program, plan, error, history, ...) and anything
                else worth storing, JSON values.

        Returns:
            Its state; where it comes again after a checkpoint, that of its first end.

        Raises:
            SamplerError: The sampler failed at learning of it.
        """
        if self._book.trial(number).state == "paused":
            self.unpause(number)
        trial = self._running(number)
        if state not in ("complete", "pruned", "failed"):
            raise ValueError(f"state is {state!r}; a trial ends complete, pruned or failed")
        if value is not None:
            trial.value = float(value)
        other = trial_codec.set_fields(trial, attrs or {})
        if state == "complete" and (trial.value is None or math.isnan(trial.value)):
            state, trial.value = "failed", None
            trial.error = trial.error or "the objective was not a number in any epoch"
        trial.state = state
        kept = self._past.end_of(number, state, trial.value)
        if kept is not None:
            self._book.put(kept)
            trial, state = kept, kept.state
        complete = state == "complete" and trial.value is not None
        loss = self._book.sign * trial.value if complete and trial.value is not None else None
        self._ledger.put(TrialFinished(number, state, *trial_codec.ended(trial, other)))
        self._agenda.proposer.tell(number, trial_codec.OPTUNA_STATES[state], loss)
        self._membership.ended(number)
        return state

    def pause(self, number: int) -> None:
        """Have a running trial wait; in the storage it runs, with the attribute "paused"."""
        self.annotate(number, paused=True)
        self._book.trial(number).state = "paused"

    def unpause(self, number: int) -> None:
        """Let a paused trial go on."""
        self._book.trial(number).state = "running"
        self.annotate(number, paused=False)

    def annotate(self, number: int, **attrs: Any) -> None:
        """Store attributes of a running trial; storages accept none once it has ended.

        Args:
            number: The trial's.
            **attrs: As those of ``finish``.
        """
        trial_codec.set_fields(self._running(number), attrs)
        self._ledger.put(TrialAnnotated(number, trial_codec.plain(attrs)))

    def take_up(self, number: int, history: Mapping[str, Sequence[float]], epochs: int) -> None:
        """Give a trial that has just begun epochs that were trained before.

        Args:
            number: The trial's.
            history: Metric name -> values, one for each epoch.
            epochs: How many.
        """
        objective = self._description.meta["objective"]
        for epoch in range(1, epochs + 1):
            logs = {name: column[epoch - 1] for name, column in history.items()}
            value = logs.get(objective, math.nan)
            self.report(number, epoch, logs, None if math.isnan(value) else value)

    def begin_again(self, number: int) -> None:
        """Forget the epochs of a trial under way, which trains from its first one again."""
        trial = self._book.trial(number)
        trial_codec.update_from_json(trial, trial_codec.to_json(trial, afresh=True))

    # What was there before

    def give_up_left(self) -> None:
        """Trials that a dead process left running become failed, with the error "interrupted"."""
        for number in self._left_running:
            trial = self._book.trial(number)
            trial.state, trial.error = "failed", INTERRUPTED
            self._ledger.put(TrialFinished(number, "failed", None, {"error": INTERRUPTED}))
        self._left_running = []

    def show_ends(self) -> None:
        """Show trials that were to come again and have not as they ended before."""
        for trial in self._past.not_again():
            self._book.put(trial)

    def under_way(self, afresh: Container[int]) -> dict[str, Any]:
        """Trials that have not ended, by number, as JSON values.

        Args:
            afresh: Those that would begin again from their first epoch.
        """
        return {
            str(trial.number): trial_codec.to_json(trial, afresh=trial.number in afresh)
            for trial in self._book.trials
            if trial.state in ("running", "paused")
        }

    # Inside

    def _take_over(self, trial: Trial) -> None:
        """Know a trial that the study had before."""
        self._book.put(trial)
        if trial.state == "running" and self._past.resumed is None:
            if self._membership.shared:
                return  # it is another's, or taken over when one hears of it
            self._left_running.append(trial.number)
            if trial.continues is None:
                self._agenda.proposer.enqueue(trial.hparams, users=False)
        elif trial.error != INTERRUPTED:
            self._agenda.n_counted += trial.continues is None
            self._agenda.proposer.have_seen(trial.hparams)

    def _running(self, number: int) -> Trial:
        trial = self._book.trial(number)
        if trial.state != "running" or number in self._left_running:
            raise RuntimeError(f"trial {number} is not running here")
        return trial
