"""What to try next: proposals of trials, none of which repeats an earlier configuration.

A ``Proposer`` runs the user's build for configurations. They come from three sources, in this
order: enqueued values, the study's sampler, and a walk through the space if the sampler finds
nothing new. A ``Searcher`` replaces all three.

A ``Proposal`` is a configuration that is being proposed. ``EnqueuedTrials`` come before those that
a sampler chooses. ``TriedConfigurations`` recognises one that was tried already.
"""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.errors import SamplerError, SpaceError, TrialRejected
from paceline.search_space import GridWalk, HyperParameters, Parameter, Space
from paceline.study.metadata import RestoredStudy
from paceline.study.samplers.in_memory_study import SampledTrials
from paceline.study.samplers.samplers import Sampler, Searcher, fixed
from paceline.study.samplers.structure_order import StructureOrder
from paceline.study.samplers.values import Chooser, middle, random_chooser, trial_seed
from paceline.study.sharing.watch import WaitingTrial
from paceline.study.trials import trial_codec
from paceline.study.trials.trial import INTERRUPTED

T = TypeVar("T")

# Attempts at a new configuration: by the sampler (which may propose its optimum for ever), and then
# at random.
OWN_ATTEMPTS, RANDOM_ATTEMPTS = 10, 20


class BuildFailed(Exception):
    """A build raised ``cause``. ``accept`` the proposal and ``finish`` it as failed."""

    def __init__(self, proposal: Proposal, hp: HyperParameters, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.proposal, self.hp, self.cause = proposal, hp, cause


@dataclass(eq=False)
class Proposal:
    """A configuration that is being proposed; ``Study.accept`` makes it a trial."""

    number: int  # the trial's
    seed: int  # the trial's: 31 bits, from the study's seed and the number
    attempt: int  # how many proposals for this number were turned down before
    values: dict[str, Any]  # given by the user: plain name -> real value
    chooser: Chooser  # returns the real value of a parameter
    place: int  # its number in the study in memory that samplers learn from
    # Storage name -> parameter and real value chosen, in the order met.
    chosen: dict[str, tuple[Parameter, Any]] = field(default_factory=dict)
    draw: int | None = None  # the number of its draw, in random search only
    failed: bool = False  # whether the build raised
    continued_from: int | None = None  # the number of the trial that it continues
    continued_at: int | None = None  # the epoch after which it does so as a copy
    hp: HyperParameters | None = None  # what a ``Searcher`` has suggested
    waited: bool = False  # whether another program has added the trial, so that the storage has it
    # Name of a constraint -> by how much it is violated; 0 or less where it holds.
    constraints: dict[str, float] = field(default_factory=dict)
    rejected: str | None = None  # why the trial is not trained; None if it is
    enqueued: bool = False  # whether the user asked for its values, or for some of them

    def choose(self, parameter: Parameter) -> Any:
        """Return the real value of a parameter; the same one however often it is asked for."""
        if parameter.storage_name not in self.chosen:
            self.chosen[parameter.storage_name] = parameter, self.chooser(parameter)
        return self.chosen[parameter.storage_name][1]


class Proposer:
    """Runs builds under a sampler until one shows a configuration that is new."""

    def __init__(
        self,
        sampler: Sampler,
        seed: int,
        space: Space,
        restored: RestoredStudy,
        signs: Sequence[int],
        note: Callable[[str], None],
    ) -> None:
        """Propose a study's first trials, or its next ones.

        ``signs`` has one sign for each objective: 1 if low values are good, else -1.
        """
        # ``exhausted``: whether the last ``propose`` found nothing new.
        self.space, self.note, self.exhausted = space, note, False
        self._signs = signs
        past, resumed = restored.trials, restored.resumed or {}
        # A storage may hold trials of other programs that wait to be run: they have numbers.
        self._first_free = resumed.get("next", len(past))
        self.take_waiting: Callable[[], WaitingTrial | None] = lambda: None
        self.refuse_waiting: Callable[[WaitingTrial, str], None] = lambda waiting, why: None
        self._proposal: Proposal | None = None
        self._begins_in_the_middle = False
        self.tried = TriedConfigurations()
        # Trials of a resumed search that are repeated: number -> their hparams.
        self._foretold = dict(restored.foretold)
        self._seeds = {number: seed for number, (_, seed) in restored.foretold.items()}
        self._of_others = restored.of_others
        self.enqueued = EnqueuedTrials(resumed, restored.asked_for())
        self._draw_with(sampler, seed, past, resumed)

    def _draw_with(
        self,
        sampler: Sampler,
        seed: int,
        past: Sequence[FrozenTrial] = (),
        resumed: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Have a sampler choose from now on, which learns from the trials of the past."""
        self._sampler, self._seed = sampler, seed
        if sampler.points is not None:
            sampler.points.learn_names(resumed.get("points", ()))
            sampler.points.learn_names(self.space.parameters)
        order = resumed.get("structure_order")
        self.structure_order = StructureOrder(sampler, seed, self.space, past, order)
        again = {t.number for t in past if t.state == OptunaState.RUNNING} if resumed else set()
        self.sampled = SampledTrials(
            learns=sampler.users,
            past=past if sampler.learns else [trial for trial in past if trial.number in again],
            signs=self._signs,
            open_again=again,
            constrained=sampler.reads_constraints,
            told=sampler.told,
            parents=resumed.get("parents"),
        )

    def reseed(self, sampler: Sampler, seed: int) -> None:
        """Draw from another seed; nothing was proposed, and the study had no trials."""
        before = self.structure_order
        self._draw_with(sampler, seed)
        self.structure_order.fill(before.slots)
        self.expect_end(by_time=before.by_time)

    def expect_end(self, *, by_time: bool) -> None:
        """Where time ends the search, TPE begins in the middle, and learns of paused trials too.

        Then few trials have a structure of their own.
        """
        self.structure_order.by_time = by_time
        if self._sampler.name == "tpe" and self._sampler.told is not None:
            self._begins_in_the_middle = self._sampler.told.shows_paused = by_time

    @property
    def adaptive(self) -> bool:
        """Whether the sampler learns from the trials' values."""
        return self._sampler.adaptive

    # Proposing

    def propose(
        self, run: Callable[[HyperParameters, Proposal], T]
    ) -> tuple[Proposal, HyperParameters, T] | None:
        """Return the next configuration; see ``TrialAsker.propose``."""
        if (found := self._propose_waiting(run)) is not None:
            return found
        (told, _), waiting = self._foretold.pop(self._next, (None, 0)), list(self.enqueued.queue)
        found = self._propose(run)
        if found is None or told is None or found[1].hparams == told:
            return found
        # The user has enqueued values meanwhile, or the sampler does not choose as it did. The
        # choice that is in the storage stands, and the enqueued values come later.
        self.reject(found[0])
        self.enqueued.queue = collections.deque(waiting)
        return self._propose_given(run, dict(told), users=False) or self._propose(run)

    def propose_continuation(
        self,
        number: int,
        hparams: Mapping[str, Any],
        seed: int,
        run: Callable[[HyperParameters, Proposal], T],
        at: int | None = None,
    ) -> tuple[Proposal, HyperParameters, T]:
        """Return a proposal that continues a trial: one that has ended, with its hparams and seed.

        A copy continues an unfinished one after the epoch ``at``, with hparams and a seed of its
        own. ``run`` and errors are those of ``propose``.
        """
        self._foretold.pop(self._next, None)
        proposal = self.ask(0, hparams)
        proposal.seed, proposal.continued_from, proposal.continued_at = seed, number, at
        return proposal, *self._run(proposal, run)

    def _propose(
        self, run: Callable[[HyperParameters, Proposal], T]
    ) -> tuple[Proposal, HyperParameters, T] | None:
        self.exhausted = False
        if self._sampler.searcher is not None:
            return self._propose_suggested(self._sampler.searcher, run)
        while self.enqueued:
            values, users = self.enqueued.queue.popleft()
            found = self._propose_given(run, values, users)
            if found is not None:
                return found
        if self._sampler.name == "grid":
            return self._walk(run)
        for attempt in range(OWN_ATTEMPTS + RANDOM_ATTEMPTS):
            proposal = self.ask(attempt)
            # A build may take seconds, so a path of choices that is known is not built again.
            if not self.tried.leads_to_known(proposal.choose):
                built = self._build(proposal, run)
                if built is not None:
                    return proposal, *built
            self.reject(proposal)
        return self._walk(run)  # a small space may be tried to its end

    def ask(
        self,
        attempt: int,
        values: Mapping[str, Any] | None = None,
        chooser: Chooser | None = None,
        waited: int | None = None,
    ) -> Proposal:
        """Begin a proposal; SamplerError where the sampler failed.

        ``attempt`` is how many proposals for this number were turned down before. ``values`` are
        given: plain name -> real value. ``chooser`` chooses instead of the sampler. ``waited`` is
        the number of a trial that another program has added.
        """
        if self._proposal is not None:  # the caller was interrupted between propose and accept
            self._drop(self._proposal)
        number, sampler, draw = self._next if waited is None else waited, None, None
        with self.sampled.stopwatch.running():
            if chooser is not None:
                pass  # nothing is left to the sampler
            elif self._begins_in_the_middle and number == attempt == 0 and values is None:
                chooser = self._sampler.stand_in(middle)
            elif self._sampler.points is not None and attempt == 0:
                chooser = self._sampler.points.chooser(number)
            # Values that were given are not a draw: the draw is tried as it is later.
            elif self.structure_order.draws is not None and values is None:
                draw = self.structure_order.next_draw()
                chooser = self.structure_order.draws.chooser(draw)
            elif self._sampler.make is not None and attempt < OWN_ATTEMPTS:
                sampler = self._sampler.make(number, attempt)
                if values is None and (structure := self.structure_order.fixed(attempt)):
                    sampler = fixed(structure, sampler)
            else:
                chooser = self._sampler.stand_in(random_chooser(self._seed, number, attempt))
            asked = self.sampled.ask(sampler)

        def choose(parameter: Parameter) -> Any:
            known = self.space.parameters.get(parameter.storage_name)
            if known is not None and not known.same_values(parameter):
                return parameter.values()[0]  # any value: Space.learn refuses the build afterwards
            with self.sampled.stopwatch.running():
                if chooser is not None:
                    return chooser(parameter)
                stored = self.sampled.suggest(asked, parameter.storage_name, parameter.distribution)
                return parameter.from_storage(stored)

        seed = self._seeds.get(number)  # of a trial that had another number when it was drawn
        if seed is None:
            seed = trial_seed(self._seed, number, waited=waited is not None)
        proposal = Proposal(
            number, seed, attempt, dict(values or {}), choose, asked.number, draw=draw
        )
        proposal.waited, self._proposal = waited is not None, proposal
        return proposal

    def stored_values(self, proposal: Proposal, hp: HyperParameters) -> dict[str, Any]:
        """Return the stored values by name of a proposal, which is accepted or rejected next."""
        self._check(proposal)
        if proposal.hp is None:
            self.space.learn(hp.parameters)
        else:
            with contextlib.suppress(SpaceError):  # bounds may change from build to build
                self.space.learn(hp.parameters)
        hparams, values, parameters = hp.hparams, hp.to_storage(), hp.parameters
        with self.sampled.stopwatch.running():
            for name, stored in self.sampled.params(proposal.place).items():
                parameter = parameters.get(name)
                # A mirrored value comes back with a rounding error. The value chosen is stored, so
                # that a sampler sees the same one after a restart.
                if parameter is None or parameter.typed:
                    continue  # of typed choices, equal ones are several
                if parameter.from_storage(stored) == hparams[parameter.name]:
                    values[name] = stored
            self.sampled.set_params(
                proposal.place,
                values,
                {name: parameter.distribution for name, parameter in parameters.items()},
            )
        return values

    def accept(self, proposal: Proposal, stored: FrozenTrial, hparams: Mapping[str, Any]) -> None:
        """Make a proposal, with its trial's number, a trial that runs; see ``Study.accept``."""
        self._check(proposal)
        self._proposal, number = None, proposal.number
        self._first_free = max(self._first_free, number + 1)
        if proposal.rejected is None:
            self.structure_order.begin_trial(
                number, stored.params, proposal.draw, given=bool(proposal.values)
            )
        else:
            self.structure_order.note_rejected(number, stored.params, proposal.draw)
        self.sampled.accept(number, proposal.place, stored)
        self.tried.note(hparams)
        self.tried.note_proposal(proposal)

    def reject(self, proposal: Proposal) -> None:
        """Reject a proposal: only the sampler knows of it afterwards."""
        self._check(proposal)
        self.structure_order.reject_draw(proposal.draw)
        self._drop(proposal)

    @property
    def keeps_structure(self) -> bool:
        """Whether the next trial can have the structure of the last one."""
        return not self.enqueued and self.structure_order.goes_on

    def state(self) -> dict[str, Any]:
        """Return what cannot be told from the trials, as JSON values."""
        return {
            "next": self._first_free,
            **self.enqueued.state(),
            "points": [] if self._sampler.points is None else self._sampler.points.names,
            "structure_order": self.structure_order.state(),
            **({"parents": parents} if (parents := self.sampled.state()) else {}),
        }

    def tell(self, number: int, state: OptunaState, losses: Sequence[float] | None) -> None:
        """Tell samplers how a trial ended; the losses for a complete one only."""
        if self.sampled.is_open(number):
            self.structure_order.end_trial(number, state)
            self.sampled.tell(number, state, losses)

    # Trials of other workers and programs

    def renumber(self, number: int, now: int) -> None:
        """Know a trial by another number."""
        self.sampled.renumber(number, now)
        self.structure_order.renumber(number, now)
        self._first_free = max(self._first_free, now + 1)

    def skip_numbers(self, n_stored: int) -> None:
        """Number further trials from the storage's number of trials on; it has those foretold."""
        self._first_free = max(self._first_free, n_stored)
        self._foretold.clear()

    def learn_peer_trial(self, trial: FrozenTrial, signs: Sequence[int]) -> None:
        """Learn of a trial of another worker, as stored; ``signs`` as at the beginning."""
        if self.sampled.learn_peer_trial(trial, signs):
            self.structure_order.end_trial(trial.number, trial.state)
        hparams = trial.user_attrs.get("hparams", trial.params)
        if trial.user_attrs.get("error") != INTERRUPTED and isinstance(hparams, dict):
            self.tried.note(hparams)

    def adopt_peer_trial(self, number: int, trial: FrozenTrial, hparams: Mapping[str, Any]) -> None:
        """Begin a trial that another worker had begun, under the number that it has now."""
        self.sampled.adopt_peer_trial(number, trial)
        self.structure_order.begin_trial(number, trial.params, None, given=True)
        self.tried.note(hparams)

    def lose_trial(self, number: int) -> None:
        """Forget a trial that another worker has taken over."""
        self.tell(number, OptunaState.FAIL, None)

    # Inside

    @property
    def _next(self) -> int:
        """The number of the next trial, unless another program adds trials."""
        while self._first_free in self._of_others:
            self._first_free += 1
        return self._first_free

    def _propose_waiting(
        self, run: Callable[[HyperParameters, Proposal], T]
    ) -> tuple[Proposal, HyperParameters, T] | None:
        """Propose a trial that another program has added, even one tried before, as Optuna does."""
        while (waiting := self.take_waiting()) is not None:
            try:
                values = real_values(waiting.values, self.space.parameters)
                proposal = self.ask(0, values, waited=waiting.number)
                hp, made = self._run(proposal, run)
                if not hp.unused:
                    return proposal, hp, made
                self.reject(proposal)
                names = ", ".join(repr(name) for name in hp.unused)
                why = f"build does not declare the hyperparameter {names}"
            except SpaceError as error:
                why = str(error)
            self.refuse_waiting(waiting, why)
            self.note(f"skipped the enqueued trial {waiting.number}: {why}")
        return None

    def _build(
        self, proposal: Proposal, run: Callable[[HyperParameters, Proposal], T]
    ) -> tuple[HyperParameters, T] | None:
        """Run build for a proposal; None if the configuration has been tried before."""
        try:
            hp, made = self._run(proposal, run)
        except BuildFailed as failed:
            if self.tried.seen(failed.hp.hparams):
                return None
            raise
        if self.tried.seen(hp.hparams):
            self.tried.note_proposal(proposal)
            return None
        return hp, made

    def _run(
        self, proposal: Proposal, run: Callable[[HyperParameters, Proposal], T]
    ) -> tuple[HyperParameters, T]:
        """Run build for a proposal."""
        hp = HyperParameters(proposal.values, chooser=proposal.choose)
        try:
            made = run(hp, proposal)
            self.space.learn(hp.parameters)
        except (SpaceError, SamplerError):  # every configuration would raise it
            self._drop(proposal)
            raise
        except Exception as error:
            proposal.failed = not isinstance(error, TrialRejected)  # which is so again next time
            raise BuildFailed(proposal, hp, error) from error
        return hp, made

    def _propose_given(
        self, run: Callable[[HyperParameters, Proposal], T], values: dict[str, Any], users: bool
    ) -> tuple[Proposal, HyperParameters, T] | None:
        """Propose a configuration with given values; None, and a note, where it is skipped."""
        if not users:
            known = {parameter.name for parameter in self.space.parameters.values()}
            values = {name: value for name, value in values.items() if name in known}
        for attempt in range(OWN_ATTEMPTS + RANDOM_ATTEMPTS):
            proposal = self.ask(attempt, values)
            proposal.enqueued = self.enqueued.are_asked_for(values, users)
            try:
                built = self._build(proposal, run)
            except SpaceError as error:
                if users:
                    self.enqueued.refused = values
                    raise
                self.note(f"skipped a trial that was interrupted: {error}")
                return None
            if built is not None:
                hp = built[0]
                if users and hp.unused:
                    self.reject(proposal)
                    self.enqueued.refused = values
                    names = ", ".join(repr(name) for name in hp.unused)
                    raise SpaceError(
                        f"enqueue: build does not declare the hyperparameter {names}. With these "
                        f"values it declares {', '.join(hp.hparams) or 'none'}."
                    )
                return proposal, *built
            self.reject(proposal)
            if not proposal.chosen:
                break  # nothing was left to the sampler
        self.note(f"skipped the enqueued configuration {values}, which was already tried")
        return None

    def _propose_suggested(
        self, searcher: Searcher, run: Callable[[HyperParameters, Proposal], T]
    ) -> tuple[Proposal, HyperParameters, T] | None:
        """Propose what a searcher suggests, also a configuration that was tried before."""
        with self.sampled.stopwatch.running():
            hp = searcher.suggest(self._next)
        if hp is None:
            return None
        proposal = self.ask(0, chooser=lambda parameter: parameter.default)
        proposal.hp = hp
        try:
            return proposal, hp, run(hp, proposal)
        except Exception as error:
            proposal.failed = True
            raise BuildFailed(proposal, hp, error) from error

    @cached_property
    def _grid(self) -> GridWalk:
        return GridWalk(every=self._sampler.name != "grid")

    def _walk(
        self, run: Callable[[HyperParameters, Proposal], T]
    ) -> tuple[Proposal, HyperParameters, T] | None:
        """Walk through the whole space to the next configuration that has not been tried."""
        while not self._grid.done:
            chooser = self._sampler.stand_in(self._grid.chooser())
            if not self.tried.leads_to_known(chooser):
                proposal = self.ask(0, chooser=chooser)
                try:
                    built = self._build(proposal, run)
                except BuildFailed:
                    self._grid.advance()
                    raise
                if built is not None:
                    return proposal, *built
                self.reject(proposal)
            self._grid.advance()
        self.exhausted = True
        return None

    def _drop(self, proposal: Proposal) -> None:
        """Forget a proposal; its draw is tried again, unless it was rejected."""
        self._proposal = None
        self.sampled.drop(proposal.place)

    def _check(self, proposal: Proposal) -> None:
        if proposal is not self._proposal:
            raise RuntimeError(
                f"the proposal of trial {proposal.number} is not the last one asked for"
            )


class EnqueuedTrials:
    """A queue of values that are tried before those that a sampler chooses.

    ``asked_for`` are the hparams of earlier trials that the user had asked for.
    """

    def __init__(
        self, resumed: Mapping[str, Any], asked_for: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.refused: dict[str, Any] | None = None  # the last values of a user that were an error
        # Each: plain name -> real value, and whether the user asked for these values.
        self.queue: collections.deque[tuple[dict[str, Any], bool]] = collections.deque(
            (dict(values), users) for values, users in resumed.get("queue", ())
        )
        # What the user enqueued in the session that is continued: the script enqueues it once more.
        self._given: list[dict[str, Any]] = [dict(values) for values in resumed.get("given", ())]
        self._given_again = collections.Counter(map(key_of, self._given))
        self._asked_for = set(map(key_of, asked_for))

    def __bool__(self) -> bool:
        return bool(self.queue)

    def enqueue(self, values: Mapping[str, Any], *, users: bool) -> None:
        """Add values, plain name -> real value, behind those that wait already.

        ``users``: the user asked for them, so that a value or name that build does not know is an
        error; otherwise it is left out.
        """
        if users:
            key = key_of(values)
            if self._given_again[key]:
                self._given_again[key] -= 1
                return
            self._given.append(dict(values))
        self.queue.append((dict(values), users))

    def are_asked_for(self, values: Mapping[str, Any], users: bool) -> bool:
        """Whether the user asked for values, now or before their trial began again."""
        return users or key_of(values) in self._asked_for

    def state(self) -> dict[str, Any]:
        """Return the queue as JSON values."""
        return {
            "queue": [[trial_codec.plain(values), users] for values, users in self.queue],
            "given": trial_codec.plain(self._given),
        }


def key_of(hparams: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal values; 1, 1.0 and True are not equal."""
    return json.dumps(dict(hparams), sort_keys=True)


class TriedConfigurations:
    """The configurations that need not be tried again.

    Those of trials are known by their values. Those that builds of this process have met are also
    known as paths of choices. A build that makes the same choices asks for the same parameters, so
    a complete path is recognised without a build. Paths of an earlier process are not used: the
    user may have changed the build since.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        # Values chosen so far -> the parameter asked for next; None if the build ended.
        self._next: dict[tuple[Any, ...], Parameter | None] = {}

    def note(self, hparams: Mapping[str, Any]) -> None:
        """Note the values of a trial: plain name -> real value."""
        self._seen.add(key_of(hparams))

    def seen(self, hparams: Mapping[str, Any]) -> bool:
        """Return whether some trial, that was not interrupted, had exactly these values."""
        return key_of(hparams) in self._seen

    def note_proposal(self, proposal: Proposal) -> None:
        """Note the choices of a proposal whose build was run."""
        # Given values are not choices, so the choices would not be the whole path. After a failed
        # build, another build of the same choices may go further.
        if not proposal.values and not proposal.failed:
            self.add_path(proposal.chosen.values())

    def add_path(self, choices: Iterable[tuple[Parameter, Any]]) -> None:
        """Note the choices that a build asked for, in order."""
        path: tuple[Any, ...] = ()
        for parameter, value in choices:
            self._next[path] = parameter
            path += ((type(value), value),)
        self._next[path] = None

    def leads_to_known(self, choose: Chooser) -> bool:
        """Return whether the choices of ``choose`` are those of a known path."""
        path: tuple[Any, ...] = ()
        while path in self._next:
            parameter = self._next[path]
            if parameter is None:
                return True
            value = choose(parameter)
            path += ((type(value), value),)
        return False


def real_values(stored: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Return plain name -> real value of values as another program has them, by storage names."""
    found = {}
    for name, value in stored.items():
        parameter = parameters.get(name)
        plain = name if parameter is None else parameter.name
        found[plain] = value if parameter is None else parameter.from_storage(value)
    return found
