"""What to try next: drafts of trials, none of which repeats an earlier configuration."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.errors import SamplerError, SpaceError
from paceline.search_space import GridWalk, HyperParameters, Parameter, Space
from paceline.study.draft import BuildFailed, Draft, EnqueuedTrials, TriedPaths, key_of
from paceline.study.samplers.families import Families
from paceline.study.samplers.in_memory_study import InMemoryStudy
from paceline.study.samplers.samplers import Sampler, fixed
from paceline.study.samplers.values import Chooser, random_chooser, trial_seed
from paceline.study.searcher import Searcher
from paceline.study.storage.storage import Stopwatch
from paceline.study.trial import INTERRUPTED

T = TypeVar("T")

# Attempts at a new configuration: by the sampler (which may propose its optimum for ever), and then
# at random.
OWN_ATTEMPTS, RANDOM_ATTEMPTS = 10, 20
# States of other workers' trials that samplers go by.
_HEARD = (OptunaState.RUNNING, OptunaState.COMPLETE, OptunaState.PRUNED)


class Proposer:
    """Runs builds under a sampler until one shows a configuration that is new.

    Attributes:
        space: What is known of the search space.
        exhausted: Whether the last ``propose`` found nothing new.
        families: Which trials have the structure of the one before.
        director: Decides instead of a sampler, where there is one.
        note: Called with a line of text that users may want to see.
    """

    def __init__(
        self,
        sampler: Sampler,
        seed: int,
        space: Space,
        *,
        next_number: int,
        past: Sequence[FrozenTrial],
        sign: int,
        resumed: Mapping[str, Any] | None = None,
        foretold: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        """Begin, or go on.

        Args:
            sampler: Chooses values.
            seed: The study's.
            space: What is known of the search space.
            next_number: The first number that is free.
            past: Trials of earlier sessions, as the storage holds them.
            sign: 1 where low values of ``past`` are good, -1 where high ones are.
            resumed: Of ``snapshot``: trials of ``past`` that run are under way again.
            foretold: The hparams of trials that will come again, by number.
        """
        self.space = space
        self.exhausted = False
        self._stopwatch = Stopwatch()
        self.note: Callable[[str], None] = logging.getLogger("paceline").info
        self._sampler, self.director = sampler, sampler.director
        self._seed = seed
        self._next = next_number
        self._past, self._sign = past, sign
        self._lazy_mirror: InMemoryStudy | None = None
        self._mirrored: dict[int, int] = {}  # number of an open trial -> the mirror's number
        self._told: set[int] = set()  # numbers of trials that have ended in the mirror
        self._draft: Draft | None = None
        self._tried = TriedPaths()
        self._odometer = GridWalk(every=sampler.name != "grid")
        self._seen: set[str] = set()
        if sampler.points is not None:
            sampler.points.know((resumed or {}).get("points", ()))
            sampler.points.know(space.parameters)
        self._foretold = dict(foretold or {})
        resumed = resumed or {}
        self._wishes = EnqueuedTrials(resumed)
        self._open = [t.number for t in past if t.state == OptunaState.RUNNING and resumed]
        self.families = Families(sampler, seed, space, past, resumed.get("families"))
        if self._open:
            self._mirror()  # it must hear of them

    @property
    def seconds(self) -> float:
        """Time spent in samplers."""
        return self._stopwatch.seconds

    # Proposing

    def propose(
        self, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[Draft, HyperParameters, T] | None:
        """Return the next configuration; see ``Agenda.propose``."""
        told, waiting = self._foretold.pop(self._next, None), self._wishes.waiting()
        found = self._propose(run)
        if found is None or told is None or found[1].hparams == told:
            return found
        # Values given meanwhile, or a sampler that does not decide again as it did: what was
        # decided stands, and what was given comes later.
        self.reject(found[0])
        self._wishes.put_back(waiting)
        return self._propose_given(run, dict(told), users=False) or self._propose(run)

    def go_on(
        self,
        number: int,
        values: Mapping[str, Any],
        seed: int,
        run: Callable[[HyperParameters, Draft], T],
    ) -> tuple[Draft, HyperParameters, T]:
        """Return a draft that goes on with a trial; see ``Agenda.propose_on``."""
        self._foretold.pop(self._next, None)
        draft = self.ask(0, values)
        draft.seed, draft.continues = seed, number
        return draft, *self._run(draft, run)

    def _propose(
        self, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[Draft, HyperParameters, T] | None:
        self.exhausted = False
        if self.director is not None:
            return self._propose_directed(self.director, run)
        while self._wishes:
            values, users = self._wishes.pop()
            found = self._propose_given(run, values, users)
            if found is not None:
                return found
        if self._sampler.name == "grid":
            return self._walk(run)
        for attempt in range(OWN_ATTEMPTS + RANDOM_ATTEMPTS):
            draft = self.ask(attempt)
            if not self._tried.leads_to_known(draft.choose):
                built = self._build(draft, run)
                if built is not None:
                    return draft, *built
            self.reject(draft)
        return self._walk(run)

    def ask(
        self,
        attempt: int,
        values: Mapping[str, Any] | None = None,
        chooser: Chooser | None = None,
    ) -> Draft:
        """Begin a draft.

        Args:
            attempt: How many proposals for this number were turned down before.
            values: Given values: plain name -> real value.
            chooser: Chooses instead of the sampler.

        Raises:
            SamplerError: The sampler failed.
        """
        if self._draft is not None:  # a search was interrupted between propose and accept
            self._drop(self._draft)
        number, sampler, draw = self._next, None, None
        with self._stopwatch.running():
            if chooser is not None:
                pass
            elif self._sampler.points is not None and attempt == 0:
                chooser = self._sampler.points.chooser(number)
            elif self.families.draws is not None and values is None:
                draw = self.families.next_draw()
                chooser = self.families.draws.chooser(draw)
            elif self._sampler.make is not None and attempt < OWN_ATTEMPTS:
                sampler = self._sampler.make(number, attempt)
                if values is None and (structure := self.families.fixed(attempt)):
                    sampler = fixed(structure, sampler)
            else:
                chooser = random_chooser(self._seed, number, attempt)
            asked = self._mirror().ask(sampler)

        def choose(parameter: Parameter) -> Any:
            known = self.space.parameters.get(parameter.storage_name)
            if known is not None and not known.same_values(parameter):
                return parameter.values()[0]  # any: Space.learn refuses it after the build
            with self._stopwatch.running():
                if chooser is not None:
                    return chooser(parameter)
                stored = self._mirror().suggest(
                    asked, parameter.storage_name, parameter.distribution
                )
                return parameter.from_storage(stored)

        seed = trial_seed(self._seed, number)
        self._draft = Draft(
            number, seed, attempt, dict(values or {}), choose, asked.number, draw=draw
        )
        return self._draft

    def settle(self, draft: Draft, hp: HyperParameters) -> dict[str, Any]:
        """Work out what is to be stored of a draft, before it is accepted or rejected.

        Returns:
            Storage name -> stored value.
        """
        self._check(draft)
        if draft.hp is None:
            self.space.learn(hp)
        else:
            with contextlib.suppress(SpaceError):  # bounds may change from build to build
                self.space.learn(hp)
        hparams, values, parameters = hp.hparams, hp.to_storage(), hp.parameters
        with self._stopwatch.running():
            for name, stored in self._mirror().params(draft.mirror_number).items():
                parameter = parameters.get(name)
                # A mirrored value does not come back to the last digit: store what was chosen, so
                # that a sampler sees the same after a restart.
                if parameter and parameter.from_storage(stored) == hparams[parameter.name]:
                    values[name] = stored
            self._mirror().settle(
                draft.mirror_number,
                values,
                {name: parameter.distribution for name, parameter in parameters.items()},
            )
        return values

    def accept(self, draft: Draft, values: Mapping[str, Any], hparams: Mapping[str, Any]) -> None:
        """Make a draft a trial that runs; see ``Study.accept``.

        Args:
            draft: With the number that it has for good.
            values: Of ``settle``.
            hparams: Plain name -> real value.
        """
        self._check(draft)
        self._draft = None
        self._next = draft.number + 1
        self.families.begin(draft.number, values, draft.draw, given=bool(draft.values))
        self._mirrored[draft.number] = draft.mirror_number
        self.have_seen(hparams)
        self._note_tried(draft)

    def reject(self, draft: Draft) -> None:
        """Turn a draft down: it leaves no trace but in the mirror."""
        self._check(draft)
        self.families.turn_down(draft.draw)
        self._drop(draft)

    def enqueue(self, values: Mapping[str, Any], *, users: bool) -> None:
        """Have values tried next.

        Args:
            values: Plain name -> real value; the sampler chooses the others.
            users: Whether a value or name that build does not know is an error; else it is
                left out.
        """
        self._wishes.add(values, users=users)

    @property
    def refused(self) -> dict[str, Any] | None:
        """The last values of a user that were an error."""
        return self._wishes.refused

    def seen(self, hparams: Mapping[str, Any]) -> bool:
        """Return whether some trial had exactly these values."""
        return key_of(hparams) in self._seen

    @property
    def in_family(self) -> bool:
        """Whether the next trial can have the structure of the last one."""
        return not self._wishes and self.families.goes_on

    def have_seen(self, hparams: Mapping[str, Any]) -> None:
        """Note the values of a trial."""
        self._seen.add(key_of(hparams))

    def snapshot(self) -> dict[str, Any]:
        """What cannot be told from the trials, as JSON values."""
        return {
            "next": self._next,
            **self._wishes.snapshot(),
            "points": [] if self._sampler.points is None else self._sampler.points.names,
            "families": self.families.snapshot(),
        }

    # Learning

    def report(self, number: int, epoch: int, loss: float) -> None:
        """Tell samplers the loss of an open trial after an epoch."""
        if number in self._mirrored:
            with self._stopwatch.running():
                self._mirror().report(self._mirrored[number], epoch, loss)

    def tell(self, number: int, state: OptunaState, loss: float | None) -> None:
        """Tell samplers how a trial ended; the loss for a complete one only.

        Raises:
            SamplerError: The sampler failed.
        """
        if number in self._mirrored:
            self._told.add(number)
            self.families.end(number, state)
            with self._stopwatch.running():
                self._mirror().tell(self._mirrored.pop(number), state, loss)

    # Other workers

    @property
    def next_number(self) -> int:
        """The first number that is free, as far as is known."""
        return self._next

    def number_from(self, number: int) -> None:
        """The storage has trials up to this number, which is free; what was foretold is there."""
        self._next = max(self._next, number)
        self._foretold.clear()

    def hear(self, trial: FrozenTrial, sign: int) -> None:
        """Learn of a trial of another worker, as the storage holds it: it runs, or has ended.

        Args:
            trial: The trial.
            sign: 1 where low values are good, -1 where high ones are.
        """
        number = trial.number
        with self._stopwatch.running():
            if number not in self._mirrored:
                if trial.state in _HEARD and number not in self._told:
                    self._mirrored[number] = self._mirror().add(trial, sign)
            elif trial.state.is_finished():
                for epoch, value in trial.intermediate_values.items():
                    self._mirror().report(self._mirrored[number], epoch, sign * value)
                value = trial.value if trial.state == OptunaState.COMPLETE else None
                loss = None if value is None else sign * value
                self._mirror().tell(self._mirrored[number], trial.state, loss)
        if trial.state.is_finished() and number not in self._told:
            self._told.add(number)
            self._mirrored.pop(number, None)
            self.families.end(number, trial.state)
        hparams = trial.user_attrs.get("hparams", trial.params)
        if trial.user_attrs.get("error") != INTERRUPTED and isinstance(hparams, dict):
            self.have_seen(hparams)

    def succeed(self, before: Proposer) -> None:
        """Go on in place of another, which has proposed nothing."""
        self._wishes = before._wishes
        self.note, self._stopwatch = before.note, before._stopwatch
        self.families.slots = before.families.slots

    def adopt(self, number: int, trial: FrozenTrial, hparams: Mapping[str, Any]) -> None:
        """Begin a trial that another worker had begun.

        Args:
            number: Its number now.
            trial: Its stored form, running.
            hparams: Plain name -> real value.
        """
        with self._stopwatch.running():
            self._mirrored[number] = self._mirror().add(trial, 1)
        self.families.begin(number, trial.params, None, given=True)
        self.have_seen(hparams)

    def lose(self, number: int) -> None:
        """Forget a trial that another worker has taken over."""
        self.tell(number, OptunaState.FAIL, None)

    # Inside

    def _build(
        self, draft: Draft, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[HyperParameters, T] | None:
        """Run build for a draft; None where the configuration has been tried before."""
        try:
            hp, made = self._run(draft, run)
        except BuildFailed as failed:
            if self.seen(failed.hp.hparams):
                return None
            raise
        if self.seen(hp.hparams):
            self._note_tried(draft)
            return None
        return hp, made

    def _run(
        self, draft: Draft, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[HyperParameters, T]:
        """Run build for a draft."""
        hp = HyperParameters(draft.values, chooser=draft.choose)
        try:
            made = run(hp, draft)
            self.space.learn(hp)
        except (SpaceError, SamplerError):  # wrong for every configuration
            self._drop(draft)
            raise
        except Exception as error:
            draft.failed = True
            raise BuildFailed(draft, hp, error) from error
        return hp, made

    def _propose_given(
        self, run: Callable[[HyperParameters, Draft], T], values: dict[str, Any], users: bool
    ) -> tuple[Draft, HyperParameters, T] | None:
        """Propose a configuration with given values; None, and a note, where it is skipped."""
        if not users:
            known = {parameter.name for parameter in self.space.parameters.values()}
            values = {name: value for name, value in values.items() if name in known}
        for attempt in range(OWN_ATTEMPTS + RANDOM_ATTEMPTS):
            draft = self.ask(attempt, values)
            try:
                built = self._build(draft, run)
            except SpaceError as error:
                if users:
                    self._wishes.refused = values
                    raise
                self.note(f"a trial that was interrupted is not tried again: {error}")
                return None
            if built is not None:
                hp = built[0]
                if users and hp.unused:
                    self.reject(draft)
                    self._wishes.refused = values
                    names = ", ".join(repr(name) for name in hp.unused)
                    raise SpaceError(
                        f"enqueue: build knows no hyperparameter {names}; with these values it "
                        f"has {', '.join(hp.hparams) or 'none'}."
                    )
                return draft, *built
            self.reject(draft)
            if not draft.chosen:
                break  # nothing was left to the sampler
        self.note(f"enqueued configuration {values} has been tried before: skipped.")
        return None

    def _propose_directed(
        self, director: Searcher, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[Draft, HyperParameters, T] | None:
        """Propose what the director says, whatever that is."""
        with self._stopwatch.running():
            hp = director.next(self._next)
        if hp is None:
            return None
        draft = self.ask(0, chooser=lambda parameter: parameter.default)
        draft.hp = hp
        try:
            return draft, hp, run(hp, draft)
        except Exception as error:
            draft.failed = True
            raise BuildFailed(draft, hp, error) from error

    def _walk(
        self, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[Draft, HyperParameters, T] | None:
        """Propose the next configuration of all, in order, that has not been tried."""
        while not self._odometer.done:
            chooser = self._odometer.chooser()
            if not self._tried.leads_to_known(chooser):
                draft = self.ask(0, chooser=chooser)
                try:
                    built = self._build(draft, run)
                except BuildFailed:
                    self._odometer.advance()
                    raise
                if built is not None:
                    return draft, *built
                self.reject(draft)
            self._odometer.advance()
        self.exhausted = True
        return None

    def _note_tried(self, draft: Draft) -> None:
        # With given values the choices asked for are not the whole path, and the path of a failed
        # build ends where another build may go on.
        if not draft.values and not draft.failed:
            self._tried.add(draft.chosen.values())

    def _mirror(self) -> InMemoryStudy:
        """The mirror, made when it is first needed: whoever only reads a study has none."""
        if self._lazy_mirror is None:
            self._lazy_mirror = InMemoryStudy(learns=self._sampler.users)
            for frozen in self._past:
                if frozen.number in self._open:
                    self._mirrored[frozen.number] = self._lazy_mirror.add(frozen, self._sign)
                elif frozen.state in (OptunaState.COMPLETE, OptunaState.PRUNED):
                    self._lazy_mirror.add(frozen, self._sign)
            self._past = ()
        return self._lazy_mirror

    def _drop(self, draft: Draft) -> None:
        """Forget a draft; what it was to try comes again."""
        self._draft = None
        with self._stopwatch.running():
            self._mirror().tell(draft.mirror_number, OptunaState.FAIL)

    def _check(self, draft: Draft) -> None:
        if draft is not self._draft:
            raise RuntimeError(f"the draft of trial {draft.number} is not the last one asked for")
