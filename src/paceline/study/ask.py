"""What a study asks its proposer for: how many trials may be open, and what users may enqueue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from optuna.samplers import BaseSampler

from paceline.errors import SpaceError
from paceline.search_space import HyperParameters
from paceline.study import trial_codec
from paceline.study.draft import Draft
from paceline.study.proposer import Proposer
from paceline.study.samplers.samplers import resolve_sampler
from paceline.study.searcher import SearchStrategy
from paceline.study.trial import INTERRUPTED, Trial
from paceline.study.trials import TrialTable
from paceline.study.workers.shared_study import StudyPeers

T = TypeVar("T")


class TrialAsker:
    """Asks for a study's trials, as many at once as its sampler can learn from.

    Args:
        sampler: random, qmc, tpe, gp, grid or an object of ``optuna.samplers``.
        strategy: Who decides what is tried.
        proposer: Runs builds under the sampler.
        trials: The study's trials.
        peers: The other workers of the study.
        n_trials: Trials wanted in all; None when only time bounds the search.

    Attributes:
        n_trials: The same; see ``limit_trials``.
        n_counted: Trials that count for ``n_trials``: not those that are tried again, and not those
            that continue others.
        draws_alone: Whether this worker draws from a seed of its own, since the study is shared.
    """

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
        self._adaptive = proposer.adaptive
        self.n_trials, self.n_counted = n_trials, 0
        self.draws_alone = peers.shared

    @property
    def max_open(self) -> int | None:
        """How many trials may be open at once; None without a limit.

        An adaptive sampler that is asked ahead learns less: in waves of 64, TPE is random search.
        """
        if not self._adaptive:
            return self._strategy.max_open
        n_workers = self._peers.n_workers
        return max(2 if n_workers > 1 else 4, (self.n_trials or 0) // 8 // n_workers)

    def limit_trials(self, n_trials: int | None) -> None:
        """Set how many trials are wanted in all; None when only time bounds the search."""
        self.n_trials = n_trials

    def count_trial(self, trial: Trial) -> None:
        """Count a trial that is new here."""
        self.n_counted += _counts(trial)

    def recount_trials(self) -> None:
        """Count all trials again, since other workers have changed some."""
        self.n_counted = sum(map(_counts, self._trials))

    def propose(
        self, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[Draft, HyperParameters, T] | None:
        """Return the next configuration, one not tried before, and what ``run`` made of it.

        First come the trials that an earlier process left unfinished and those enqueued, then the
        sampler's. Have the study ``accept`` the draft before the next call, or it is dropped.

        Args:
            run: Calls the user's build with hp and returns what it made; called again for each
                attempt.

        Returns:
            Draft, hp and the result of ``run``; None when nothing is left to try: then the
            proposer's ``exhausted`` is true.

        Raises:
            BuildFailed: ``run`` raised, for a configuration that has not failed before.
            SpaceError: A hyperparameter declared with impossible or conflicting bounds, or an
                enqueued value or name that build does not know.
            SamplerError: The sampler failed.
        """
        n_sure = None if self.n_trials is None else self.n_trials - self.n_counted
        self._proposer.families.expect(self.max_open or 1, n_sure)
        return self._proposer.propose(run)

    def propose_continuation(
        self, number: int, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[Draft, HyperParameters, T]:
        """Return a draft that continues a trial that has ended, with its hparams and its seed.

        Args:
            number: The trial's.
            run: As for ``propose``.

        Raises:
            BuildFailed, SpaceError, SamplerError: As from ``propose``.
        """
        trial = self._trials.by_number(number)
        return self._proposer.propose_continuation(number, trial.hparams, trial.seed, run)

    def enqueue(self, hparams: Mapping[str, Any]) -> None:
        """Have a configuration tried next; the sampler chooses what it does not name.

        Args:
            hparams: Plain name -> real value. A name or value that build does not know is an
                error of the next ``propose``.

        Raises:
            SpaceError: No names, or values that no hyperparameter can have.
        """
        values = {name: trial_codec.plain(value) for name, value in dict(hparams).items()}
        for name, value in values.items():
            if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
                raise SpaceError(
                    f"enqueue: {name!r} is {value!r}; give names of hyperparameters with int, "
                    "float, str or bool values."
                )
        if not values:
            raise SpaceError("enqueue: no hyperparameter is named; give at least one value.")
        self._proposer.enqueued.enqueue(values, users=True)

    def share(self, seed: int) -> None:
        """Draw from another seed: others were found to search the study before its first trial.

        Args:
            seed: This worker's own; see ``shared_study.sampling_seed``.
        """
        self.draws_alone = True
        self._proposer.reseed(resolve_sampler(self._sampler, seed), seed)


def _counts(trial: Trial) -> bool:
    return trial.error != INTERRUPTED and trial.continues is None
