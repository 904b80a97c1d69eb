"""What a study tries next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from optuna.samplers import BaseSampler

from paceline.errors import SpaceError
from paceline.search_space import HyperParameters, Space
from paceline.study import trial_codec
from paceline.study.draft import Draft
from paceline.study.metadata import RestoredStudy
from paceline.study.proposer import Proposer
from paceline.study.samplers.samplers import resolve_sampler
from paceline.study.samplers.values import check_seed
from paceline.study.searcher import Searcher
from paceline.study.trials import TrialTable
from paceline.study.workers.shared_study import Membership, own_seed

T = TypeVar("T")


class TrialAsker:
    """Drafts of a study's trials, as many at once as its sampler can stand.

    Args:
        sampler: random, qmc, tpe, gp, grid or an object of ``optuna.samplers``.
        seed: Of all that is drawn at random; 0 or above.
        space: What is known of the search space.
        past: What the study had before this search.
        book: Its trials.
        membership: Its part among the workers that search it.
        n_trials: Trials wanted in all; None when only time bounds the search.

    Attributes:
        n_trials: The same; the search settles it.
        n_counted: Trials there are for it: those that are not tried again.
        proposer: Runs builds under the sampler; another one once others are known to search too.
        draws_alone: Of a study of others', this worker draws from a seed of its own.

    Raises:
        SamplerError: An unknown sampler.
        MissingExtraError: A sampler whose package is not installed.
        UsageError: A seed that is no whole number from 0.
    """

    def __init__(
        self,
        sampler: str | BaseSampler,
        seed: int,
        space: Space,
        past: RestoredStudy,
        book: TrialTable,
        membership: Membership,
        n_trials: int | None,
    ) -> None:
        self._sampler, self._seed = sampler, check_seed(seed)
        self._book, self._membership = book, membership
        self.n_trials, self.n_counted = n_trials, 0
        self._adaptive = resolve_sampler(sampler, seed).adaptive
        self.draws_alone = False
        self.proposer = self._made(space, past)

    @property
    def max_open(self) -> int | None:
        """How many trials may be open at once; None where the sampler does not mind.

        An adaptive sampler that is asked ahead knows less: in waves of 64, TPE is random search.
        """
        if self.director is not None:
            return self.director.max_open
        if not self._adaptive:
            return None
        n_workers = self._membership.n_workers
        return max(2 if n_workers > 1 else 4, (self.n_trials or 0) // 8 // n_workers)

    @property
    def director(self) -> Searcher | None:
        """Who decides instead of a sampler; None in most studies."""
        return self.proposer.director

    @property
    def in_order(self) -> bool:
        """Whether trials come as a grid walks, so that the first say little of the next."""
        return self.director is not None or self._sampler == "grid"

    @property
    def exhausted(self) -> bool:
        """Whether the last ``propose`` found nothing that had not been tried."""
        return self.proposer.exhausted

    @property
    def refused(self) -> dict[str, Any] | None:
        """The last values given by the user that were an error."""
        return self.proposer.refused

    def seen(self, hparams: Mapping[str, Any]) -> bool:
        """Return whether some trial had exactly these values, failed ones included.

        Those that were interrupted do not count: they are tried again.
        """
        return self.proposer.seen(hparams)

    def on_note(self, note: Callable[[str], None]) -> None:
        """Have ``note`` called with each line of text that users may want to see."""
        self.proposer.note = note

    # Drafts

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
            Draft, hp and the result of ``run``; None when nothing is left to try: then
            ``exhausted`` is true.

        Raises:
            BuildFailed: ``run`` raised, for a configuration that has not failed before.
            SpaceError: A hyperparameter declared with impossible or conflicting bounds, or an
                enqueued value or name that build does not know.
            SamplerError: The sampler failed.
        """
        families = self.proposer.families
        families.open = self.max_open or 1
        if self.n_trials is not None:
            families.sure = self.n_trials - self.n_counted
        return self.proposer.propose(run)

    def propose_on(
        self, number: int, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[Draft, HyperParameters, T]:
        """Return a draft that goes on with a trial that has ended: its hparams and its seed.

        Args:
            number: The trial's.
            run: As for ``propose``.

        Raises:
            BuildFailed, SpaceError, SamplerError: As from ``propose``.
        """
        trial = self._book.trial(number)
        return self.proposer.go_on(number, trial.hparams, trial.seed, run)

    def ask(self, *, attempt: int = 0) -> Draft:
        """Return a draft of the next trial, whose values are chosen while build runs.

        Args:
            attempt: How many proposals for this trial were turned down before.

        Raises:
            SamplerError: The sampler failed.
        """
        return self.proposer.ask(attempt)

    def reject(self, draft: Draft) -> None:
        """Drop a draft, the last one proposed or asked for: only samplers know of it."""
        self.proposer.reject(draft)

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
        self.proposer.enqueue(values, users=True)

    # Families

    def fill(self, slots: int) -> None:
        """Have trials that share a program asked for one after another, where the sampler lets us.

        Args:
            slots: Trials that train at once; 1 is the plain order.
        """
        self.proposer.families.slots = slots

    @property
    def wave(self) -> int:
        """How many trials of one structure the sampler is asked for at once; 1 with most."""
        return self.proposer.families.wave

    @property
    def in_family(self) -> bool:
        """Whether the next trial can share the last one's program, as far as is known."""
        return self.proposer.in_family

    # Other workers

    def share(self) -> None:
        """Others are found to search the study, before anything was proposed."""
        before = self.proposer
        self.proposer = self._made(before.space, None)
        self.proposer.succeed(before)

    def _made(self, space: Space, past: RestoredStudy | None) -> Proposer:
        """What proposes trials."""
        seed, token = self._seed, self._membership.token
        self.draws_alone = self._membership.shared
        if token is not None and self.draws_alone:
            seed = own_seed(seed, token)
        trials = [] if past is None else past.trials
        resumed = None if past is None else past.resumed
        return Proposer(
            resolve_sampler(self._sampler, seed),
            seed,
            space,
            # A storage may hold trials of other programs that wait to be run: they have numbers.
            next_number=len(trials),
            past=trials,
            sign=self._book.sign,
            resumed=resumed,
            foretold=None if past is None or resumed is None else past.foretold,
        )
