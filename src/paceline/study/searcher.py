"""Who decides what a study tries: its sampler, or another tool's search.

The rest of a search asks a ``SearchStrategy`` and never which kind it is. ``samplers.samplers`` has
the strategy of every sampler. A ``Searcher`` is given to ``Tuner`` in the sampler's place: it
suggests configurations and keeps the results, and Paceline builds, packs and trains them. Its study
accepts whatever it suggests, also a configuration that was tried before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from paceline.search_space import HyperParameters, Space
from paceline.study.trial import Trial


class TrialWeights(Protocol):
    """Holds the weights of trials under way, and gives those of trials that have ended."""

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
        """Return the weights of a trial that has ended; None where they are not held."""
        ...

    def save(self, rebuild: Any, note: Any = None) -> None:
        """Write to disk what is not there yet."""
        ...


class SearchStrategy:
    """Decides which configurations a study tries, and learns what became of them.

    What stands here is right for samplers: the study itself asks them and tells them the results,
    by ``TrialAsker`` and ``TrialUpdates``.
    """

    # Whether the study's storage holds all that decides, so that other processes may search the
    # study too, and a later one may continue it.
    resumable = True
    # Whether configurations come in an order of its own until there are no more, as those of a
    # grid: the search then needs no ``n_trials`` and no timeout, and the first trials say little
    # of the next ones.
    ends_by_itself = False
    limits_failures = False  # whether it has a rule of its own on how many trials may fail
    scores_infinity = False  # whether an infinite objective is a score like others, and no failure

    @property
    def max_open(self) -> int | None:
        """How many trials may be under way at once; None without a limit.

        ``TrialAsker`` has one for samplers that learn from values.
        """
        return None

    def n_to_come(self, n_left: int | None) -> int | None:
        """Return how many trials will still be asked for; None where that is not known.

        ``n_left`` is how many are missing to the number that the user wants; None without one. A
        sampler can always propose another trial.
        """
        return n_left

    def first_look(self) -> HyperParameters | None:
        """Return an hp with what is known of the space for a first look at a model; None: empty."""
        return None

    def on_search_begin(self, space: Space, hp: HyperParameters, batch: Any) -> None:
        """Note that a search begins, and learn the space of the first build.

        ``hp`` is as after the first look at a model; ``batch`` has the shapes of a batch, as a step
        sees them, and is None where the data does not tell.
        """
        space.learn(hp)

    def hp_again(self, number: int, hparams: Mapping[str, Any]) -> HyperParameters:
        """Return the hp of a trial under way, as a copy: its model is built once more.

        ``hparams`` are plain name -> real value.
        """
        return HyperParameters(values=dict(hparams))

    def on_renumbered(self, number: int, now: int) -> None:
        """Note that a trial has another number: another program has added one before it."""

    def on_trial_result(self, number: int, members: Sequence[Mapping[str, float]]) -> None:
        """Note that a trial has ended an epoch; ``members`` are the logs of each of its members."""

    def on_member_result(self, number: int, value: float | None, fetch: Callable[[], Any]) -> None:
        """Note that one member of a trial has ended an epoch.

        ``value`` is its objective, None in an epoch without validation; ``fetch`` copies its
        weights from the device. (Samplers learn from the mean over members.)
        """

    def on_trial_error(self, number: int, error: BaseException) -> bool:
        """Note that a trial has failed and is about to end; what is raised here ends the search.

        Returns whether the user has been told of the failure.
        """
        return False

    def on_trial_complete(self, trial: Trial) -> None:
        """Note that a trial has ended, however it ended; what is raised here ends the search."""

    def trial_weights(self) -> TrialWeights | None:
        """Return what keeps the trials' weights; None where the search keeps its best models."""
        return None


class Searcher(SearchStrategy, ABC):
    """Another tool's search. Its state is known to this process alone."""

    resumable = False
    ends_by_itself = True
    limits_failures = True
    scores_infinity = True

    @abstractmethod
    def suggest(self, number: int) -> HyperParameters | None:
        """Return the next configuration to build and train; the study's trial will have ``number``.

        It is the hp that ``build`` is called with, changed by nobody else; None while the searcher
        waits for results, and after its last configuration.
        """
