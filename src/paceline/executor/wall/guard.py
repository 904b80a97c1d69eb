"""What a search notes for the process that continues after a death, and what that one does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paceline.errors import TrialCrashError
from paceline.executor.wall.black_box import BlackBox
from paceline.executor.wall.deaths import DeathRecord, Precautions

if TYPE_CHECKING:
    from paceline.search_space import HyperParameters


class TrialGuard:
    """Tells a black box which trials run; without one it does nothing."""

    def __init__(self, box: BlackBox | None = None, precautions: Precautions | None = None) -> None:
        self._box, self.precautions = box, precautions or Precautions()
        self._built: tuple[int | None, Mapping[str, Any]] = (None, {})
        self.running: Mapping[int, object] = {}  # the trials in memory; the search sets this
        if box is not None:
            box.alone(alone=self.precautions.alone)

    @contextmanager
    def building(self, number: int, hp: HyperParameters) -> Iterator[None]:
        """A block that calls the user's ``build`` for a trial.

        Raises TrialCrashError as soon as the values are those of a trial that ended processes.
        """
        box = self._box
        if box is None:
            yield
            return

        def met() -> None:
            box.builds(number, hparams := hp.hparams, self._beside(number))
            self._check(hparams)

        hp.on_value = met
        try:
            met()
            yield
        finally:
            hp.on_value = None
            self._note_built()

    @contextmanager
    def tracing(self, number: int, hparams: Mapping[str, Any]) -> Iterator[None]:
        """A block that traces a trial, or within it builds a model like it, of other hparams."""
        if self._box is None:
            yield
            return
        before, self._built = self._built, (number, hparams)
        self._note_built()
        try:
            yield
        finally:
            self._built = before
            self._note_built()

    def trains(self, numbers: Iterable[int]) -> None:
        """These trials are compiled and trained from now on; none: nothing is."""
        if self._box is not None:
            self._box.trains(numbers := [*numbers], self._beside(*numbers))

    def ended(self, number: int, n_well: int) -> None:
        """A trial has ended; ``n_well`` trials of the study are complete or were pruned."""
        if self._box is not None:
            self._box.forget(number)
            self._box.count(n_well)

    def begin(self, n_trials: int | None) -> None:
        """The search begins to write; ``n_trials`` is the number of trials it goes to."""
        if self._box is not None:
            self._box.begin(n_trials)

    def _note_built(self) -> None:
        number, hparams = self._built
        if self._box is not None:
            self._box.builds(number, hparams, 0 if number is None else self._beside(number))

    def _beside(self, *numbers: int) -> int:
        """How many other trials are in memory."""
        return len(self.running.keys() - {*numbers})

    def _check(self, hparams: Mapping[str, Any]) -> None:
        for killer, why in self.precautions.killers:
            if killer == hparams or (not killer and not hparams):
                raise TrialCrashError(why)


def guard_of_process() -> TrialGuard:
    """The guard of a search in this process, after the deaths of those before it."""
    box = BlackBox.current
    if box is None:
        return TrialGuard()
    record = DeathRecord.of_json(box.deaths)
    return TrialGuard(box, record.precautions)
