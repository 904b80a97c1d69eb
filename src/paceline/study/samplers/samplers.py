"""Who decides what a study tries: its sampler, or another tool's search.

``resolve_sampler`` finds the sampler meant.

``tpe``, ``gp``, ``nsga2`` and ``nsga3`` are Optuna's, created for every trial from the study's seed
and the trial's number. So a choice does not depend on the clock or on a restart. Four samplers are
ours. ``random`` (``RandomDraws``): a value that Optuna's draws depends on the parameters drawn
before. ``qmc`` (``Sobol``): Optuna's has no conditions and needs a finished trial first. ``cmaes``
(``CmaEs``): Optuna's keeps pickles in the storage. ``grid`` (``GridWalk``): Optuna's needs the
space before the first build.

The rest of a search asks a ``SearchStrategy`` and never which kind it is. A ``Searcher`` is given
to ``Tuner`` in the sampler's place: it suggests configurations and keeps the results, and Paceline
builds, packs and trains them. Its study accepts whatever it suggests, also a configuration that was
tried before.
"""

from __future__ import annotations

import importlib.util
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import optuna
from optuna.samplers import BaseSampler, RandomSampler

from paceline.errors import MissingExtraError, SamplerError
from paceline.search_space import HyperParameters, Space
from paceline.study.samplers.fixed_values import FixedValues
from paceline.study.samplers.nsga import NSGA, nsga_maker, read_nsga
from paceline.study.samplers.sobol import Sobol
from paceline.study.samplers.told_trials import ToldTrials
from paceline.study.samplers.tpe import Tpe
from paceline.study.samplers.values import SAMPLER, Chooser, seeded_bits
from paceline.study.trials.trial import Trial

NAMES = ("random", "qmc", "tpe", "cmaes", "gp", "grid", *NSGA)


@dataclass(frozen=True)
class Sampler:
    """What a study needs to know of its sampler."""

    name: str  # one of ``NAMES``, or the class of an Optuna sampler
    adaptive: bool  # it learns from the trials' values: then few trials may be open at once
    # Trial number and attempt -> the Optuna sampler that chooses; None if Optuna does not.
    make: Callable[[int, int], BaseSampler] | None
    users: bool = False  # an object of the user's, which wants to be told of ended trials
    points: Sobol | None = None  # chooses instead of a sampler of ``make``
    searcher: Searcher | None = None  # decides instead of any sampler
    # The trials that it chooses from; None if it sees all of the study, or none.
    told: ToldTrials | None = None
    fixed: FixedValues | None = None  # the values that nobody else may choose otherwise

    def stand_in(self, chooser: Chooser) -> Chooser:
        """Return a chooser that may choose in its place: it keeps what the sampler fixes."""
        return chooser if self.fixed is None else self.fixed.kept_by(chooser)

    @property
    def learns(self) -> bool:
        """Whether what earlier sessions tried decides what it chooses."""
        return self.adaptive or self.users

    @property
    def reads_constraints(self) -> bool:
        """Whether it is shown by how much trials violate their constraints.

        Optuna's Gaussian process and NSGA read complete trials, which violate none, and refuse
        trials that have more constraints than others.
        """
        return self.name not in ("gp", *NSGA)


class TrialWeights(Protocol):
    """Holds the weights of unfinished trials, and gives those of trials that have ended."""

    def offer(self, number: int, epoch: int, value: float, fetch: Callable[[], Any]) -> None:
        """Take a trial's weights at its best epoch so far, from 1, if they are worth holding.

        ``value`` is the objective then; ``fetch`` copies the weights from the device.
        """
        ...

    def complete(self, number: int) -> None:
        """Note that a trial is complete."""
        ...

    def forget(self, number: int) -> None:
        """Drop the weights of a trial that is not complete."""
        ...

    def renumber(self, number: int, now: int) -> None:
        """Know a trial by another number."""
        ...

    def weights(self, number: int) -> Any:
        """Return the weights of a trial that has ended; None if they are not held."""
        ...

    def save(self, rebuild: Any, note: Any = None) -> None:
        """Write all that is missing on disk."""
        ...


class SearchStrategy:
    """Decides which configurations a study tries, and learns what became of them.

    What stands here is right for samplers: the study itself asks them and tells them the results,
    by ``TrialAsker`` and ``TrialUpdates``.
    """

    # Whether the study's storage holds all that decides, so that other processes may search the
    # study too, and a later one may continue it.
    resumable = True
    # Whether configurations come in a fixed order until there are no more, as in a grid. The search
    # then needs no ``n_trials`` and no timeout, and the first trials say little about the next
    # ones.
    ends_by_itself = False
    limits_failures = False  # whether it has a rule of its own on how many trials may fail
    scores_infinity = False  # whether an infinite objective is a score like others, and no failure

    @property
    def max_open(self) -> int | None:
        """How many trials may be unfinished at once; None without a limit.

        ``TrialAsker`` has one for samplers that learn from values.
        """
        return None

    def n_to_come(self, n_left: int | None) -> int | None:
        """Return how many trials will still be asked for, of ``n_left`` missing; None: unknown.

        A sampler can always propose another trial.
        """
        return n_left

    def first_look(self) -> HyperParameters | None:
        """Return an hp with what is known of the space for a first look at a model; None: empty."""
        return None

    def on_search_begin(self, space: Space, hp: HyperParameters, batch: Any) -> None:
        """Note that a search begins, and learn the space of the first build.

        ``batch`` has the shapes of a batch, as a step sees them; None if they are unknown.
        """
        space.learn(hp.parameters)

    def hp_again(self, number: int, hparams: Mapping[str, Any]) -> HyperParameters:
        """Return the hp of an unfinished trial, as a copy: its model is built once more."""
        return HyperParameters(values=dict(hparams))

    def on_renumbered(self, number: int, now: int) -> None:
        """Note that a trial has another number: another program has added one before it."""

    def on_trial_result(self, number: int, members: Sequence[Mapping[str, float]]) -> None:
        """Note that a trial has ended an epoch; ``members`` are the logs of each of its members."""

    def on_member_result(self, number: int, value: float | None, fetch: Callable[[], Any]) -> None:
        """Note that one member of a trial has ended an epoch; samplers learn from the mean.

        ``value`` is None in an epoch without validation; ``fetch`` copies weights from the device.
        """

    def on_trial_error(self, number: int, error: BaseException) -> bool:
        """Note that a trial fails; return whether the user knows. An error ends the search."""
        return False

    def on_trial_complete(self, trial: Trial) -> None:
        """Note that a trial has ended, however it ended; what is raised here ends the search."""

    def trial_weights(self) -> TrialWeights | None:
        """Return what keeps the trials' weights; None if the search keeps its best models."""
        return None


class Searcher(SearchStrategy, ABC):
    """Another tool's search. Its state is known to this process alone."""

    resumable = False
    ends_by_itself = True
    limits_failures = True
    scores_infinity = True

    @abstractmethod
    def suggest(self, number: int) -> HyperParameters | None:
        """Return the next configuration, of the trial ``number``: the hp that ``build`` is given.

        None while the searcher waits for results, and after its last configuration.
        """


def strategy_of(sampler: Any) -> SearchStrategy:
    """Return who decides: the sampler given where it is a ``Searcher``, or what asks samplers."""
    if isinstance(sampler, Searcher):
        return sampler
    strategy = SearchStrategy()
    strategy.ends_by_itself = sampler == "grid"
    return strategy


def resolve_sampler(sampler: Any, seed: int) -> Sampler:
    """Return the sampler meant: one of ``NAMES``, ``nsga2:POPULATION``, Optuna's or a ``Searcher``.

    ``seed`` is the study's; an Optuna sampler has its user's. Raises SamplerError for one that
    cannot be used here, and MissingExtraError for one whose package is not installed.
    """
    if isinstance(sampler, BaseSampler):
        return _given(sampler)
    if isinstance(sampler, Searcher):
        return Sampler(type(sampler).__name__, adaptive=False, make=None, searcher=sampler)
    genetic = read_nsga(sampler) if str(sampler).startswith("nsga") else None
    if genetic is None and sampler not in NAMES:
        raise SamplerError(
            f"sampler must be one of {', '.join(NAMES)}, auto or an object of optuna.samplers, "
            f"got {sampler!r}."
        )
    if sampler == "gp" and importlib.util.find_spec("torch") is None:
        raise MissingExtraError(
            'sampler "gp" needs torch, which is not installed: pip install "paceline[gp]"'
        )
    if genetic is not None:
        make_nsga = nsga_maker(*genetic)
        return Sampler(
            genetic[0],
            adaptive=True,
            make=lambda number, attempt: make_nsga(seeded_bits(seed, SAMPLER, number, attempt)),
        )
    points = Sobol(seed) if sampler == "qmc" else None
    if sampler not in ("tpe", "cmaes", "gp"):
        return Sampler(sampler, adaptive=False, make=None, points=points)
    told = None if sampler == "gp" else ToldTrials(seed)
    new = _gp if told is None else _learner(sampler, seed, told)
    return Sampler(
        sampler,
        adaptive=True,
        make=lambda number, attempt: new(seeded_bits(seed, SAMPLER, number, attempt)),
        told=told,
    )


def check_several(sampler: Any) -> None:
    """Refuse a sampler that cannot choose for several objectives."""
    name = sampler if isinstance(sampler, str) else type(sampler).__name__
    of_one = isinstance(sampler, optuna.samplers.CmaEsSampler | Searcher)
    if of_one or name in ("cmaes", "gp"):
        raise SamplerError(
            f"sampler: {name} supports only one objective. Use tpe, nsga2, nsga3, random, qmc or "
            "grid."
        )


#: Optuna's samplers that go by the trials alone; of a generation of NSGA, trials are marked.
_BY_TRIALS = (
    optuna.samplers.GPSampler,
    optuna.samplers.NSGAIISampler,
    optuna.samplers.NSGAIIISampler,
    optuna.samplers.TPESampler,
    RandomSampler,
)
#: Samplers of ours that continue where Optuna's start over.
_GOES_ON = {optuna.samplers.CmaEsSampler: "cmaes", optuna.samplers.QMCSampler: "qmc"}


def note_on_state(sampler: Any) -> str | None:
    """Return a note on a study that continues without its sampler's state, or None."""
    if not isinstance(sampler, BaseSampler) or isinstance(sampler, _BY_TRIALS):
        return None
    name = next((ours for kind, ours in _GOES_ON.items() if isinstance(sampler, kind)), None)
    return (
        f"sampler: {type(sampler).__name__} restarts from the study's trials, because its state "
        "(a distribution, a position in a sequence) is not stored"
        + (f'. Use sampler="{name}" to continue exactly' if name else "")
    )


def fixed(values: Mapping[str, Any], sampler: BaseSampler) -> BaseSampler:
    """Return a sampler that chooses as another one, but for the stored values that are given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.PartialFixedSampler(dict(values), sampler)


def _learner(sampler: str, seed: int, told: ToldTrials) -> Callable[[int], BaseSampler]:
    if sampler == "tpe":
        return Tpe(told).seeded
    if importlib.util.find_spec("cmaes") is None:
        raise MissingExtraError(
            'sampler "cmaes" needs the package cmaes, which is not installed: '
            'pip install "paceline[cmaes]"'
        )
    from paceline.study.samplers.cma_es import CmaEs

    return CmaEs(seed, told).seeded


def _gp(seed: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.GPSampler(seed=seed)


def _given(sampler: BaseSampler) -> Sampler:
    name = type(sampler).__name__
    refused = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
    if isinstance(sampler, refused):
        raise SamplerError(
            f'sampler: {name} stops Optuna\'s own loop when it is done. Use sampler="grid".'
        )
    even = (RandomSampler, optuna.samplers.QMCSampler)
    adaptive = not isinstance(sampler, even)
    fixed = FixedValues(sampler)
    return Sampler(name, adaptive, make=lambda number, attempt: sampler, users=True, fixed=fixed)
