"""When a search gives up: too many of its trials fail, or are rejected before they are trained."""

from __future__ import annotations

from paceline.errors import BuildError, ConstraintError, PacelineError, TrialRejected
from paceline.tuner.constraints import rejections_text

#: A search ends with an error after so many failures in a row: its space or data cannot work.
IN_A_ROW = 5


class FailureLimit:
    """Counts the failures of one search.

    Args:
        in_a_row: The number of failures in a row that ends the search.
        rejected_in_a_row: The number of rejections in a row that ends it.

    Attributes:
        succeeded: The number of trials that were complete or pruned.
        cause: The error for which no more trials are asked for; None as long as they are.
    """

    def __init__(self, in_a_row: float, rejected_in_a_row: float) -> None:
        self._in_a_row, self._rejected_in_a_row = in_a_row, rejected_in_a_row
        # In a row: builds and traces as trials were asked for, trainings as trials ended.
        self._builds = self._trainings = 0
        self._last: BaseException | None = None
        # Rejections since a trial was last traced. Their number may be that of a whole grid, and an
        # error keeps the model of its trial in memory: so texts, and the last error alone.
        self._rejected: list[str] = []
        self._last_rejected: TrialRejected | None = None
        self.succeeded = 0
        self.cause: BaseException | None = None

    def resume(self, succeeded: int) -> None:
        """Goes on with a search that has had so many complete or pruned trials."""
        self.succeeded = succeeded

    def began(self) -> None:
        """A trial was built and traced."""
        self._builds = 0
        self._rejected.clear()
        self._last_rejected = None

    def rejected(self, why: TrialRejected) -> None:
        """A trial was rejected before it was traced."""
        self._rejected.append(str(why))
        self._last_rejected = why
        if len(self._rejected) >= self._rejected_in_a_row:
            self.cause = why

    @property
    def last_was_rejected(self) -> bool:
        """Whether the last trial that was asked for was rejected."""
        return self._last_rejected is not None

    def ended_well(self) -> None:
        """A trial is complete, or was pruned."""
        self._trainings = 0
        self.succeeded += 1

    def of_build(self, error: BaseException) -> None:
        """A trial could not be built or traced."""
        self._builds, self._last = self._builds + 1, error
        if self._builds >= self._in_a_row:
            self.cause = error

    def of_training(self, error: BaseException) -> None:
        """A trial failed while it trained."""
        self._trainings, self._last = self._trainings + 1, error

    def of_all(self, healthy: bool) -> bool:
        """Whether one trial after another fails in training.

        Args:
            healthy: Whether some trial trains well: then any number of others may fail.
        """
        if self._trainings < self._in_a_row or healthy:
            return False
        self.cause = self._last
        return True

    def error(self, over: bool, useful: bool = False) -> tuple[PacelineError, BaseException] | None:
        """The error that the search must end with, and its cause; None as long as it can go on.

        Args:
            over: Whether every configuration of the space has been tried.
            useful: Whether some trial of the study is complete or was pruned.
        """
        cause, text = self.cause, f"{self._in_a_row} trials failed in a row; the last one"
        why = self._last_rejected
        if why is not None and (cause is why or (over and not useful)):
            text = rejections_text(self._rejected, over=cause is None)
            return ConstraintError(text), why
        if cause is None and over and not self.succeeded:
            cause, text = self._last, "every trial of this search failed; the last one"
        return None if cause is None else (BuildError(f"{text}: {describe(cause)}"), cause)


def describe(error: BaseException) -> str:
    """An error as one sentence; errors of Paceline need no class name before their text."""
    clear = isinstance(error, (PacelineError, FloatingPointError))
    return str(error) if clear else f"{type(error).__name__}: {error}"
