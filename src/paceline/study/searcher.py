"""A director: another tool's search that Paceline trains for.

It decides what is tried and keeps what came of it; Paceline builds, packs and trains. Given to
``Tuner`` in the sampler's place. A study of such a search asks nobody else, and refuses nothing
that the director proposes: configurations may come twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.search_space import HyperParameters
from paceline.study.trial import Trial


class Searcher(ABC):
    """What a search needs of whoever decides instead of a sampler."""

    @abstractmethod
    def begin(self, batch: Any) -> None:
        """A search begins.

        Args:
            batch: Shapes of a batch, as a step sees them; None where the data does not tell.
        """

    @abstractmethod
    def space(self) -> HyperParameters:
        """An hp with what is known of the space, for a first look at a model."""

    @abstractmethod
    def next(self, number: int) -> HyperParameters | None:
        """The next configuration to build and train.

        Args:
            number: The number that the study's trial will have.

        Returns:
            What ``build`` is given, and nobody else changes; None while the director waits for
            results, or for good when it is ``over``.
        """

    @abstractmethod
    def again(self, number: int) -> HyperParameters:
        """What ``next`` gave for a trial under way, as a copy: its model is built once more."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether nothing is left to try."""

    @property
    @abstractmethod
    def remaining(self) -> int | None:
        """Configurations still to come, as far as that is known."""

    @property
    @abstractmethod
    def max_open(self) -> int | None:
        """How many trials may be under way at once; None where it does not mind."""

    @abstractmethod
    def reported(self, number: int, members: Sequence[Mapping[str, float]]) -> None:
        """A trial has ended an epoch; the logs of each of its members."""

    @abstractmethod
    def member(self, number: int, value: float | None, fetch: Callable[[], Any]) -> None:
        """A member of a trial that has several has ended an epoch.

        Args:
            number: The trial's.
            value: The member's objective; None in an epoch without validation.
            fetch: Copies its weights from the device.
        """

    @abstractmethod
    def failed(self, number: int, error: BaseException) -> None:
        """A trial has failed, and is about to end; what is raised here ends the search."""

    @abstractmethod
    def ended(self, trial: Trial) -> None:
        """A trial has ended; what is raised here ends the search."""

    @abstractmethod
    def models(self) -> Any:
        """Keeps the trials' weights: an object with the methods of ``BestModels``."""
