"""``trial_timeout``: no trial of a search takes longer than it may.

A trial's time is that of its build, that of tracing it, and that of its training on the clock, its
neighbours in the pack included; not that for which it waits for a slot or for a compiler. Where
Python code takes too long it is interrupted, and between epochs the trial is taken out. A compiled
step cannot be stopped: then the search must go on in another process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from paceline.condemned import Condemned
from paceline.errors import PacelineError, StuckError, TrialTimeoutError
from paceline.executor.base import Hung
from paceline.overtime import within
from paceline.study import Study

T = TypeVar("T")

#: Told why this process cannot go on, and whether another one can; it may end the process.
WhenStuck = Callable[[str, bool], None]


class Watch:
    """The limit of one search.

    Args:
        seconds: That a trial may take; None: as long as it likes.
        condemned: Trials that did not come back, in this process and those before.
        study: Their study.
        when_stuck: Called in a thread of its own when code of the main thread does not come back
            and cannot be interrupted.
    """

    def __init__(
        self, seconds: float | None, condemned: Condemned, study: Study, when_stuck: WhenStuck
    ) -> None:
        self.seconds, self.condemned = seconds, condemned
        self._study, self._when_stuck = study, when_stuck

    def verdict(self, number: int) -> TrialTimeoutError | None:
        """Why a trial is not to be trained at all; None where it is."""
        return self.condemned.verdict(number, self._study.trial(number).hparams)

    def build(self, call: Callable[[], T]) -> T:
        """Calls the user's build.

        Raises:
            TrialTimeoutError: It did not return in time.
        """
        return self._code(call, "build(hp) had not returned")

    def trace(self, call: Callable[[], T]) -> T:
        """Traces a trial; raises like ``build``."""
        return self._code(call, "tracing its steps had not ended")

    def fit(self, number: int, call: Callable[[], T]) -> T:
        """Trains a trial in Keras' ``fit``; raises like ``build``."""

        def stuck(text: str) -> None:
            self.condemned.condemn(number, self._study.trial(number).hparams, text)
            with contextlib.suppress(PacelineError):
                self._study.flush()
            self._when_stuck(f"trial {number}: {text}", True)

        return within(self.seconds, call, self._text("its training had not ended"), stuck)

    def late(self, wall: float, epochs: int) -> TrialTimeoutError | None:
        """What ends a trial between two epochs; None where it has time.

        Args:
            wall: Seconds that it has trained.
            epochs: Epochs that it has trained.
        """
        if self.seconds is None or wall <= self.seconds:
            return None
        return TrialTimeoutError(
            f"trial_timeout: {wall:.3g} s for {epochs} epochs are more than {self.seconds:g} s"
        )

    def hung(self, hung: Hung, team_of: Callable[[int], int]) -> Sequence[tuple[int, str]]:
        """Notes packs that do not come back.

        Args:
            hung: Their jobs.
            team_of: The trial of a job.

        Returns:
            Trials that are the reason for certain, and what to say of them.
        """
        certain = []
        for pack in hung.packs:
            trials = {team_of(job): epoch for job, epoch in pack.items()}
            if len(trials) > 1 and self.condemned.suspect(pack):
                continue
            for number, epoch in trials.items():
                text = self._text(f"epoch {epoch + 1} had not ended")
                self.condemned.condemn(number, self._study.trial(number).hparams, text)
                certain.append((number, text))
        return certain

    def error(self, hung: Hung, team_of: Callable[[int], int]) -> StuckError:
        """What the search ends with after ``hung``."""
        trials = sorted({team_of(job) for pack in hung.packs for job in pack})
        names = ", ".join(map(str, trials))
        each = "it has failed" if len(trials) == 1 else "one of them, or several, must be why"
        return StuckError(
            f"trial_timeout: an epoch of trial{'s' if len(trials) > 1 else ''} {names} has not "
            f"ended after {self.seconds:g} s ({each})",
            "A step that runs cannot be stopped from "
            "inside its process: end this one (restart the kernel) and search again; the search "
            "goes on from its last checkpoint without what does not come back.",
        )

    def _code(self, call: Callable[[], T], what: str) -> T:
        return within(
            self.seconds, call, self._text(what), lambda text: self._when_stuck(text, False)
        )

    def _text(self, what: str) -> str:
        return f"trial_timeout: {what} after {self.seconds or 0:g} s"
