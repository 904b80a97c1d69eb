"""Trials that fail, and whether there is any use in going on."""

from __future__ import annotations

from paceline.errors import BuildError, PacelineError

#: A space or a data set that fails this often in a row is not going to work.
IN_A_ROW = 5


class Failures:
    """Counts the failures of one search.

    Args:
        in_a_row: So many end it.

    Attributes:
        succeeded: Trials that trained well until they were complete or pruned.
        cause: Why nothing is asked for any more: builds failed one after another.
    """

    def __init__(self, in_a_row: float = IN_A_ROW) -> None:
        self._in_a_row = in_a_row
        # In a row: builds (and traces) that failed, by the order of asking; and trials that failed
        # in training, by the order of ending.
        self._builds = self._trainings = 0
        self._last: BaseException | None = None
        self.succeeded = 0
        self.cause: BaseException | None = None

    def began(self) -> None:
        """A trial was built and traced."""
        self._builds = 0

    def ended_well(self) -> None:
        """A trial is complete, or was pruned."""
        self._trainings = 0
        self.succeeded += 1

    def of_build(self, error: BaseException) -> None:
        """A trial could not begin."""
        self._builds += 1
        self._last = error
        if self._builds >= self._in_a_row:
            self.cause = error

    def of_training(self, error: BaseException) -> None:
        """A trial failed while it trained."""
        self._trainings += 1
        self._last = error

    def of_all(self, healthy: bool) -> bool:
        """Whether training fails one trial after another.

        Args:
            healthy: Whether some trial trains well: then others may fail as they like.
        """
        if self._trainings < self._in_a_row or healthy:
            return False
        self.cause = self._last
        return True

    def error(self, over: bool) -> tuple[BuildError, BaseException] | None:
        """What the search must end with, and its cause; None where all is well.

        Args:
            over: Whether every configuration has been tried.
        """
        cause, text = self.cause, f"{self._in_a_row} trials failed in a row; the last one"
        if cause is None and over and not self.succeeded:
            cause, text = self._last, "every trial of this search failed; the last one"
        return None if cause is None else (BuildError(f"{text}: {describe(cause)}"), cause)


def describe(error: BaseException) -> str:
    """An error as one sentence; ours say all themselves."""
    if isinstance(error, (PacelineError, FloatingPointError)):
        return str(error)
    return f"{type(error).__name__}: {error}"
