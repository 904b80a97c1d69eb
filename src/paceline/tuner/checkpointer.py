"""A search that is kept, so that the next one can go on where it stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from paceline.errors import StorageError
from paceline.study.study import Study
from paceline.tuner.arguments import SearchArguments
from paceline.tuner.checkpoint.files import Snapshot
from paceline.tuner.checkpoint.last_variables import LastVariables
from paceline.tuner.checkpoint.policy import SavePolicy
from paceline.tuner.launcher import TrialLauncher
from paceline.tuner.prefetch import TrialPrefetch
from paceline.tuner.progress import ProgressReporter
from paceline.tuner.search_state import SearchState
from paceline.tuner.trial_end import FailureLimit


class SearchCheckpointer:
    """Keeps one search between its rounds, and goes on with one that was kept.

    Args:
        keeper: Writes it down; None where nothing is kept.
        study: Its study.
        arguments: Of the search.
        suspension: Takes snapshots.
        ends: The last variables of the best trials.
        failures: Counts trials that fail.
        starter: Begins trials.
        supply: Asks for them.
        outlook: Told what of a search took the time of another process.
    """

    def __init__(
        self,
        *,
        keeper: SavePolicy | None,
        study: Study,
        arguments: SearchArguments,
        suspension: SearchState,
        ends: LastVariables,
        failures: FailureLimit,
        starter: TrialLauncher,
        supply: TrialPrefetch,
        outlook: ProgressReporter,
    ) -> None:
        self._keeper, self._study, self._arguments = keeper, study, arguments
        self._suspension, self._ends, self._failures = suspension, ends, failures
        self._starter, self._supply, self._outlook = starter, supply, outlook
        self._shared = False  # whether others search the study, as far as was seen
        self._longer: list[int] | None = None  # which ended trials were asked to train longer

    def go_on_with(self, numbers: Sequence[int], asked: list[int]) -> None:
        """Has trials that have ended train longer, before new ones are asked for.

        Args:
            numbers: Theirs.
            asked: How they were asked for: the same again does not add to them.
        """
        self._longer = asked
        self._starter.to_go_on.extend(numbers)
        self._ends.awaited.update(numbers)

    def between_rounds(self) -> None:
        """Keeps the search where that is due."""
        if self._keeper is not None and self._study.peers.shared and not self._shared:
            self._shared = True
            self._keeper.hasten()  # what was kept before helps nobody who takes over
        self.keep_if_due()

    def keep_if_due(self) -> None:
        """As ``between_rounds``, within one of ``fit``."""
        if self._keeper is not None and self._keeper.due:
            self.keep()

    def keep(self) -> None:
        """Saves the search as it is, between two rounds, where the storage knows what has ended."""
        if self._keeper is None or not self._study.writer.check_storage():
            return
        with self._keeper.timed():
            if self._study.peers.shared:
                self._keep_trials(self._keeper)
            else:
                self._keep_search(self._keeper)

    def resume(self, snapshot: Snapshot) -> None:
        """Puts the trials of a checkpoint back to where they were; the search goes on with them."""
        self._failures.succeeded = snapshot.facts["succeeded"]
        self._supply.owed = snapshot.facts.get("owed")
        asked, numbers = snapshot.facts.get("go_on", [None, []])
        if self._longer is None or self._longer == asked:  # the same is asked for again
            self._longer = asked
            self._starter.to_go_on.clear()
        self._ends.awaited.update(numbers)
        self._starter.to_go_on.extendleft(
            number for number in reversed(numbers) if number not in self._starter.to_go_on
        )
        self._suspension.restore(snapshot, self._starter.again, self._starter.example)
        self._outlook.goes_on()

    def refuse(self) -> None:
        """Has what is kept forget values of the user's that are an error: they would come again."""
        if self._keeper is not None:
            self._keeper.refuse(self._study.proposer.enqueued.refused)

    @property
    def seconds(self) -> float:
        """What the search has waited for its checkpoints."""
        return 0.0 if self._keeper is None else self._keeper.seconds

    def _keep_trials(self, keeper: SavePolicy) -> None:
        """Others change the study meanwhile: there is no going back, for a trial alone there is."""
        with contextlib.suppress(StorageError):  # as below
            self._study.writer.flush()  # one that has ended is kept no more
            shared = self._suspension.shared()
            if shared is None:
                keeper.clear()
            else:
                keeper.keep(shared)

    def _keep_search(self, keeper: SavePolicy) -> None:
        with contextlib.suppress(OSError):  # told of where the best models are saved
            self._ends.save()
        try:
            snapshot = self._suspension.taken()
        except StorageError:  # told of by the study; the checkpoint before stays
            return
        snapshot.facts["succeeded"] = self._failures.succeeded
        snapshot.facts["limit"] = [self._arguments.wanted, self._arguments.n_trials]
        snapshot.facts["owed"] = self._supply.owed
        snapshot.facts["go_on"] = [self._longer, list(self._starter.to_go_on)]
        keeper.keep(snapshot)
