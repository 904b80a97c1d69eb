"""Asking for a study's trials, and telling what becomes of them.

``TrialAsker`` decides how many trials may be open, and takes what users enqueue. ``TrialUpdates``
sends each change of a trial to the table that users see, the sampler's study in memory, and the
storage; see ``study.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeVar

from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from paceline.errors import SpaceError
from paceline.search_space import HyperParameters
from paceline.study.metadata import RestoredStudy, StudyMetadata
from paceline.study.proposer import Proposal, Proposer
from paceline.study.samplers.samplers import SearchStrategy, resolve_sampler
from paceline.study.sharing.peers import StudyPeers
from paceline.study.sharing.watch import StudyWatch
from paceline.study.storage.events import EpochReported, TrialAnnotated, TrialFinished
from paceline.study.storage.write_behind import WriteBehind
from paceline.study.trials import trial_codec
from paceline.study.trials.table import TrialTable, counts, expected_by_time
from paceline.study.trials.trial import INTERRUPTED, UNDER_WAY, Trial, TrialState

T = TypeVar("T")


class TrialAsker:
    """Asks for a study's trials, as many at once as its sampler can learn from."""

    def __init__(
        self,
        sampler: str | BaseSampler,
        strategy: SearchStrategy,
        proposer: Proposer,
        trials: TrialTable,
        peers: StudyPeers,
        n_trials: int | None,
    ) -> None:
        self._sampler, self._strategy = sampler, strategy
        self._proposer, self._trials, self._peers = proposer, trials, peers
        # ``n_trials``: trials wanted in all; None when only time bounds the search. ``n_counted``:
        # how many of them exist, without repeated trials, continuations, and trials rejected before
        # training. ``by_time``: time may end the search before it has ``n_trials``.
        self.n_trials, self.n_counted, self.by_time = n_trials, 0, False
        # Whether this worker draws from a seed of its own, since the study is shared.
        self.draws_alone = peers.shared
        # Whether all trials may be open at once, whatever the sampler: the members of a population
        # begin before any of them has ended.
        self.draws_at_once = False

    @property
    def max_open(self) -> int | None:
        """How many trials may be open at once; None without a limit.

        An adaptive sampler that is asked ahead learns less: in waves of 64, TPE is random search.
        """
        if self.draws_at_once or not self._proposer.adaptive:
            return self._strategy.max_open
        n_workers = self._peers.n_workers
        return max(2 if n_workers > 1 else 4, (self.n_expected or 0) // 8 // n_workers)

    def limit_trials(self, n_trials: int | None, *, by_time: bool) -> None:
        """Set how many trials are wanted (None: any), and whether time may end the search first."""
        self.n_trials, self.by_time = n_trials, by_time
        self._proposer.expect_end(by_time=by_time)

    @property
    def n_expected(self) -> int | None:
        """How many trials to reckon with; None when that is not known."""
        if not self.by_time:
            return self.n_trials
        expected = expected_by_time(self.n_counted)
        return expected if self.n_trials is None else min(self.n_trials, expected)

    def n_trials_with(self, n_more: int | None) -> int | None:
        """Return the study's total of trials if only ``n_more`` may begin."""
        if n_more is None:
            return self.n_trials
        most = self.n_counted + n_more
        return most if self.n_trials is None else min(self.n_trials, most)

    def count_trial(self, trial: Trial) -> None:
        """Count a trial that is new here."""
        self.n_counted += counts(trial)

    def recount_trials(self) -> None:
        """Count all trials again, since other workers have changed some."""
        self.n_counted = sum(map(counts, self._trials))

    def propose(
        self, run: Callable[[HyperParameters, Proposal], T]
    ) -> tuple[Proposal, HyperParameters, T] | None:
        """Return the next configuration, one not tried before, and what ``run`` made of it.

        First come the trials that an earlier process left unfinished and those enqueued, then the
        sampler's. The study must ``accept`` the proposal before the next call, or it is dropped.
        ``run`` calls the user's build with hp, again for each attempt. None: nothing is left to
        try, and the proposer's ``exhausted`` is true.

        Raises BuildFailed where ``run`` raised, for a configuration that has not failed before.
        Raises SpaceError for impossible or conflicting bounds, or what was enqueued and build does
        not know.
        """
        n = self.n_expected
        n_sure = None if n is None else n - self.n_counted
        self._proposer.structure_order.expect(self.max_open or 1, n_sure)
        return self._proposer.propose(run)

    def enqueue(self, hparams: Mapping[str, Any]) -> None:
        """Try a configuration next, plain name -> real value; the sampler chooses the others.

        Raises SpaceError for no names, or values that no hyperparameter can have. A name or value
        that build does not know is an error of the next ``propose``.
        """
        values = {name: trial_codec.plain(value) for name, value in dict(hparams).items()}
        for name, value in values.items():
            if not isinstance(name, str) or not isinstance(value, bool | int | float | str | None):
                raise SpaceError(
                    f"enqueue: the value of {name!r} must be an int, float, str, bool or None, "
                    f"got {value!r}."
                )
        if not values:
            raise SpaceError(
                "enqueue: hparams is empty. Pass at least one hyperparameter with its value."
            )
        self._proposer.enqueued.enqueue(values, users=True)

    def share(self, seed: int, sampler: str | None = None) -> None:
        """Draw from another seed: others were found to search the study before its first trial.

        ``sampler`` is the name of another sampler to draw with; None keeps the one that was given.
        """
        self.draws_alone = True
        self._sampler = sampler or self._sampler
        self._proposer.reseed(resolve_sampler(self._sampler, seed), seed)


class TrialUpdates:
    """Reports, ends, pauses and annotates the trials of a study."""

    def __init__(
        self,
        trials: TrialTable,
        asker: TrialAsker,
        proposer: Proposer,
        writer: WriteBehind,
        peers: StudyPeers,
        restored: RestoredStudy,
        metadata: StudyMetadata,
        watch: StudyWatch,
    ) -> None:
        self._trials, self._asker, self._proposer = trials, asker, proposer
        self._writer, self._peers, self._watch = writer, peers, watch
        self._restored, self._metadata = restored, metadata
        # Unfinished trials that a dead process left: they restart as new ones.
        self.left_running: list[int] = []
        for stored in restored.trials:
            trial = trial_codec.from_frozen(stored, maximize=trials.sign < 0)
            if trial is not None:
                self._take_over(trial, stored)
        if restored.resumed is not None:
            for number, was in restored.resumed["open"].items():
                trial_codec.update_from_json(trials.by_number(int(number)), was)

    def learn_program(self, number: int, program: str) -> None:
        """Note the program of a trial, which tells which hyperparameters are structural."""
        self._trials.by_number(number).program_id = program
        self._proposer.structure_order.learn_program(number, program)

    def report(
        self,
        number: int,
        epoch: int,
        logs: Mapping[str, float],
        value: float | None,
        members: Sequence[float] = (),
    ) -> None:
        """Note an epoch, from 1, of a running trial; one reported again replaces what was.

        ``value`` is the objective, None when there is none this time; ``members`` are the values
        whose mean it is.
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
        values: Sequence[float] = (),
        attrs: Mapping[str, Any] | None = None,
    ) -> TrialState:
        """End a trial, and return its state: complete without a number is failed.

        A trial that is repeated after a checkpoint keeps its first end. ``value`` is the objective
        at its best epoch; None takes the best one reported. ``values`` are those of several
        objectives at that epoch, for a complete trial. ``attrs`` are fields of ``Trial`` and
        anything else worth storing, JSON values. Raises SamplerError where the sampler failed to
        learn from the trial.
        """
        if self._trials.by_number(number).state == "paused":
            self.unpause(number)
        trial = self._running(number)
        if state not in ("complete", "pruned", "rejected", "failed"):
            raise ValueError(f"state must be complete, pruned, rejected or failed, got {state!r}")
        if value is not None:
            trial.value = float(value)
        other = trial_codec.set_fields(trial, attrs or {})
        if state == "complete" and (trial.value is None or math.isnan(trial.value)):
            state, trial.value = "failed", None
            trial.error = trial.error or "the objective was not a number in any epoch"
        several = self._trials.several
        trial.state, trial.values = state, list(values) if state == "complete" and several else []
        n = len(self._trials.signs)
        kept = self._restored.end_of(number, state, trial_codec.end_of(trial, {}, n)[0])
        if kept is not None:
            self._trials.add(kept)
            trial, state = kept, kept.state
        try:
            self._proposer.tell(number, trial_codec.OPTUNA_STATES[state], self._losses(trial))
        finally:  # a trial whose sampler failed has still ended
            noted = self._proposer.sampled.evaluated(number)
            amounts = [amount for each in noted.values() for amount in each]
            trial.violates = trial.violates or any(amount > 0 for amount in amounts)
            end = trial_codec.end_of(trial, other, n)
            told = TrialFinished(number, state, *end, noted=noted)
            self._watch.end(told)
            self._writer.record(told)
        return state

    def end_as_told(self, stored: FrozenTrial) -> Trial:
        """End a trial of this search as another program has ended it in the storage.

        Its history stays here: the storage, which has its end, does not take it any more.
        """
        number = stored.number
        trial, told = self._trials.by_number(number), trial_codec.from_frozen(stored)
        if told is None:
            told = Trial(number, "failed", hparams=trial.hparams)
        trial.state, trial.value, trial.values = told.state, told.value, told.values
        trial.violates = told.violates
        trial.best_epoch = None if told.value is None else told.best_epoch
        trial.hparams = told.hparams  # two programs may have taken one that waited: it is theirs
        reason = stored.user_attrs.get("error")
        by_others = f"another program told it {trial.state}"
        trial.error = reason if isinstance(reason, str) else by_others
        self._proposer.tell(number, stored.state, self._losses(trial))
        return trial

    def pause(self, number: int) -> None:
        """Pause a running trial; in the storage it still runs, with the attribute "paused"."""
        self.annotate(number, paused=True)
        self._trials.by_number(number).state = "paused"
        self._proposer.sampled.pause(number, paused=True)

    def unpause(self, number: int) -> None:
        """Continue a paused trial."""
        self._trials.by_number(number).state = "running"
        self._proposer.sampled.pause(number, paused=False)
        self.annotate(number, paused=False)

    def annotate(self, number: int, **attrs: Any) -> None:
        """Store attributes of a running trial, those of ``finish``; an ended trial accepts none."""
        trial_codec.set_fields(self._running(number), attrs)
        self._writer.record(TrialAnnotated(number, trial_codec.plain(attrs)))

    def copy_epochs(self, number: int, history: Mapping[str, Sequence[float]], epochs: int) -> None:
        """Report the epochs before, of a trial that has just begun and continues another."""
        objective = self._metadata.meta["objective"]
        for epoch in range(1, epochs + 1):
            logs = {name: column[epoch - 1] for name, column in history.items()}
            value = logs.get(objective, math.nan)
            self.report(number, epoch, logs, None if math.isnan(value) else value)

    def restart(self, number: int) -> None:
        """Forget the epochs of an unfinished trial, which is trained from its first epoch again."""
        trial = self._trials.by_number(number)
        trial_codec.update_from_json(trial, trial_codec.to_json(trial, afresh=True))

    # Trials that the study had before this search

    def fail_left_running(self) -> None:
        """Mark trials that a dead process left running as failed, with the error "interrupted"."""
        for number in self.left_running:
            trial = self._trials.by_number(number)
            trial.state, trial.error = "failed", INTERRUPTED
            trial.value = trial.best_epoch = None
            self._writer.record(TrialFinished(number, "failed", None, {"error": INTERRUPTED}))
        self.left_running = []

    def show_ends(self) -> None:
        """Restore the ends of trials that were to be repeated and have not."""
        for trial in self._restored.not_come_again():
            self._trials.add(trial)

    def costs_before(self, number: int) -> dict[str, Any]:
        """Return what was measured of a trial that is repeated and had ended; empty otherwise."""
        return self._restored.costs_before(number)

    def under_way(self, afresh: Container[int]) -> dict[str, Any]:
        """Return the trials that have not ended, by number, as JSON values."""
        return {
            str(trial.number): trial_codec.to_json(trial, afresh=trial.number in afresh)
            for trial in self._trials
            if trial.state in UNDER_WAY
        }

    # Inside

    def _losses(self, trial: Trial) -> list[float] | None:
        """Return what samplers learn from a trial that has ended; None for one without values."""
        if trial.state != "complete" or trial.value is None:
            return None
        return self._trials.losses(trial.values or [trial.value])

    def _take_over(self, trial: Trial, stored: FrozenTrial) -> None:
        """Add a trial that the study had before."""
        self._trials.add(trial)
        if trial.state == "running" and not trial_codec.is_ours(stored.user_attrs):
            return  # another program trains it, or ``StudyWatch`` takes it
        if trial.state == "running" and self._restored.resumed is None:
            if self._peers.shared:
                return  # another worker trains it, or ``StudyPeers.sync`` takes it over
            self.left_running.append(trial.number)
            if trial.continued_from is None:
                self._proposer.enqueued.enqueue(trial.hparams, users=False)
        elif trial.error != INTERRUPTED:
            self._asker.count_trial(trial)
            self._proposer.tried.note(trial.hparams)

    def _running(self, number: int) -> Trial:
        trial = self._trials.by_number(number)
        if trial.state != "running" or number in self.left_running:
            raise RuntimeError(f"trial {number} is not running here")
        return trial
