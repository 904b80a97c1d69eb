"""What becomes of a study's trials: their epochs and their ends.

Each change is told to all three that keep trials: the table that users see, the sampler's study in
memory, and the storage; see ``study.py``.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from paceline.study import trial_codec
from paceline.study.ask import TrialAsker
from paceline.study.metadata import RestoredStudy, StudyMetadata
from paceline.study.proposer import Proposer
from paceline.study.storage.events import EpochReported, TrialAnnotated, TrialFinished
from paceline.study.storage.write_behind import WriteBehind
from paceline.study.trial import INTERRUPTED, Trial, TrialState
from paceline.study.trials import TrialTable
from paceline.study.workers.shared_study import StudyPeers


class TrialUpdates:
    """Reports, ends, pauses and annotates the trials of a study.

    Args:
        trials: The trials, for users.
        asker: Counts the trials that were there before.
        proposer: Has samplers learn from the trials.
        writer: Has the changes written to the storage.
        peers: The other workers of the study.
        restored: The trials that the search begins with.
        metadata: What the storage holds of the study beside its trials.
    """

    def __init__(
        self,
        trials: TrialTable,
        asker: TrialAsker,
        proposer: Proposer,
        writer: WriteBehind,
        peers: StudyPeers,
        restored: RestoredStudy,
        metadata: StudyMetadata,
    ) -> None:
        self._trials, self._asker, self._proposer = trials, asker, proposer
        self._writer, self._peers = writer, peers
        self._restored, self._metadata = restored, metadata
        self._left_running: list[int] = []
        for stored in restored.trials:
            trial = trial_codec.from_frozen(stored)
            if trial is not None:
                self._take_over(trial)
        if restored.resumed is not None:
            for number, was in restored.resumed["open"].items():
                trial_codec.update_from_json(trials.by_number(int(number)), was)

    @property
    def n_again(self) -> int:
        """How many trials a dead process left under way: they begin again as new ones."""
        return len(self._left_running)

    def learn_program(self, number: int, program: str) -> None:
        """Note the program of a trial, which tells which hyperparameters are structural.

        Args:
            number: The trial's.
            program: The program's name.
        """
        self._trials.by_number(number).program = program
        self._proposer.families.learn_program(number, program)

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
        self._trials.note_epoch(self._running(number), epoch, logs, value, members)
        if value is not None:
            self._proposer.sampled.report(number, epoch, self._trials.sign * value)
            self._writer.record(EpochReported(number, epoch, value))

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
            The trial's state. A trial that comes again after a checkpoint keeps its first end.

        Raises:
            SamplerError: The sampler failed to learn from the trial.
        """
        if self._trials.by_number(number).state == "paused":
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
        kept = self._restored.end_of(number, state, trial.value)
        if kept is not None:
            self._trials.add(kept)
            trial, state = kept, kept.state
        complete = state == "complete" and trial.value is not None
        loss = self._trials.sign * trial.value if complete and trial.value is not None else None
        self._writer.record(TrialFinished(number, state, *trial_codec.end_of(trial, other)))
        self._proposer.tell(number, trial_codec.OPTUNA_STATES[state], loss)
        self._peers.release(number)
        return state

    def pause(self, number: int) -> None:
        """Pause a running trial; in the storage it still runs, with the attribute "paused"."""
        self.annotate(number, paused=True)
        self._trials.by_number(number).state = "paused"

    def unpause(self, number: int) -> None:
        """Continue a paused trial."""
        self._trials.by_number(number).state = "running"
        self.annotate(number, paused=False)

    def annotate(self, number: int, **attrs: Any) -> None:
        """Store attributes of a running trial; storages accept none once it has ended.

        Args:
            number: The trial's.
            **attrs: As those of ``finish``.
        """
        trial_codec.set_fields(self._running(number), attrs)
        self._writer.record(TrialAnnotated(number, trial_codec.plain(attrs)))

    def copy_epochs(self, number: int, history: Mapping[str, Sequence[float]], epochs: int) -> None:
        """Report the epochs of a trial that has just begun and continues another.

        Args:
            number: The trial's.
            history: Metric name -> values, one for each epoch.
            epochs: How many were trained before.
        """
        objective = self._metadata.meta["objective"]
        for epoch in range(1, epochs + 1):
            logs = {name: column[epoch - 1] for name, column in history.items()}
            value = logs.get(objective, math.nan)
            self.report(number, epoch, logs, None if math.isnan(value) else value)

    def restart(self, number: int) -> None:
        """Forget the epochs of a trial under way, which is trained from its first epoch again."""
        trial = self._trials.by_number(number)
        trial_codec.update_from_json(trial, trial_codec.to_json(trial, afresh=True))

    # Trials that the study had before this search

    def fail_left_running(self) -> None:
        """Mark trials that a dead process left running as failed, with the error "interrupted"."""
        for number in self._left_running:
            trial = self._trials.by_number(number)
            trial.state, trial.error = "failed", INTERRUPTED
            self._writer.record(TrialFinished(number, "failed", None, {"error": INTERRUPTED}))
        self._left_running = []

    def show_ends(self) -> None:
        """Restore the ends of trials that were to come again and have not."""
        for trial in self._restored.not_come_again():
            self._trials.add(trial)

    def under_way(self, afresh: Container[int]) -> dict[str, Any]:
        """Return the trials that have not ended, by number, as JSON values.

        Args:
            afresh: Numbers of those that would begin again from their first epoch.
        """
        return {
            str(trial.number): trial_codec.to_json(trial, afresh=trial.number in afresh)
            for trial in self._trials
            if trial.state in ("running", "paused")
        }

    # Inside

    def _take_over(self, trial: Trial) -> None:
        """Add a trial that the study had before."""
        self._trials.add(trial)
        if trial.state == "running" and self._restored.resumed is None:
            if self._peers.shared:
                return  # another worker trains it, or ``StudyPeers.sync`` takes it over
            self._left_running.append(trial.number)
            if trial.continues is None:
                self._proposer.enqueued.enqueue(trial.hparams, users=False)
        elif trial.error != INTERRUPTED:
            self._asker.count_trial(trial)
            self._proposer.tried.note(trial.hparams)

    def _running(self, number: int) -> Trial:
        trial = self._trials.by_number(number)
        if trial.state != "running" or number in self._left_running:
            raise RuntimeError(f"trial {number} is not running here")
        return trial
