"""What an executor reports: each trial's epochs to the search, and where time and slots went.

A trial's callbacks see an epoch before the search does, since they may change its logs or stop it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.executor.base import Answer, EpochReport, Failed, LateAnswer, Notes, Report
from paceline.executor.grouping import Group, abandon_callbacks
from paceline.executor.lanes import PackEpoch
from paceline.executor.snapshot import PausedStates
from paceline.pack.callbacks.driver import CallbackDriver
from paceline.pack.pack import EpochTimes, Pack, SlotTrial

#: Number of the last rounds that show how fast the search goes now.
_LATELY = 64


class EpochReporter:
    """Reports the epochs of an executor's packs, and does what the search answers.

    Args:
        notes: Told of errors of callbacks that fail no trial.
        paused: Where paused trials wait.
    """

    def __init__(self, notes: Notes, paused: PausedStates) -> None:
        self._notes, self._paused = notes, paused

    def begin_epoch(self, pack: Pack, failed: Failed) -> bool:
        """Calls the callbacks that come before an epoch.

        Args:
            pack: The pack that is about to train.
            failed: Told of each trial one of whose callbacks raises; the trial leaves the pack.

        Returns:
            Whether any trial is left to train.
        """
        for trial in pack.live:
            if trial.driver is not None:
                try:
                    trial.driver.begin_epoch(trial.first_epoch + trial.epoch)
                except Exception as error:  # a callback is the user's code
                    _fail(pack, trial, error, failed)
        return bool(pack.live)

    def report_epoch(
        self, group: Group, pack: Pack, epoch: PackEpoch, report: Report, failed: Failed
    ) -> list[tuple[Group, Pack, SlotTrial, LateAnswer]]:
        """Reports an epoch of a pack, one trial after another in the order of their slots.

        Args:
            group: The pack's group.
            pack: The pack that has trained.
            epoch: What ``pack.run_epoch`` returned.
            report: Handles each report.
            failed: Told of each trial one of whose callbacks raises; the trial leaves the pack and
                is not reported.

        Returns:
            Each trial that was reported, with the answer.
        """
        results, times = epoch
        share = (times.train + times.validate) / max(1, len(results))
        # The callbacks of all trials come before the first report. So what they write to variables
        # goes to the device in one piece, before the first weights are fetched.
        for trial in pack.live:
            if trial.driver is not None:
                try:
                    results[trial.number] = trial.driver.end_epoch(results[trial.number])
                    if trial.driver.stopped:
                        trial.epochs = trial.epoch
                    if trial.epoch >= trial.epochs:
                        trial.driver.end()
                except Exception as error:  # a callback is the user's code
                    _fail(pack, trial, error, failed)
        told = []
        for trial in pack.live:
            answer = report(
                EpochReport(
                    number=trial.number,
                    epoch=trial.epoch,
                    logs=results[trial.number],
                    seconds=share + (trial.driver.seconds() if trial.driver else 0.0),
                    program=group.name,
                    plan=pack.program.plan,
                    weights=pack.weights(trial.number),
                    state=pack.state(trial.number),
                    wall=times.train + times.validate,
                    last=trial.epoch >= trial.epochs,
                )
            )
            told.append((group, pack, trial, answer))
        return told

    def apply_answer(self, group: Group, pack: Pack, trial: SlotTrial, answer: Answer) -> None:
        """Does what was answered about a trial: the trial stays, leaves its slot, or waits."""
        if answer == "pause":
            self._paused.put(pack.take_out(trial.number), group)
        elif answer == "stop" or trial.epoch >= trial.epochs:
            if trial.driver is not None:
                self._end_callbacks(trial.driver)
            pack.evict(trial.number)

    def _end_callbacks(self, driver: CallbackDriver) -> None:
        """Tells a trial's callbacks that its training is over."""
        try:
            driver.end()
        except Exception as error:  # a callback is the user's code; the trial has ended by now
            self._notes.tell(
                f"a callback of a trial that was stopped failed in on_train_end: "
                f"{type(error).__name__}: {error}"
            )
            driver.abandon()


def _fail(pack: Pack, trial: SlotTrial, error: Exception, failed: Failed) -> None:
    """Takes a trial out because one of its callbacks raised; the other trials train on."""
    abandon_callbacks(trial)
    pack.evict(trial.number)
    failed(trial.number, error)


@dataclass
class Seconds:
    """Where the time went; tracing and compiling overlap with training."""

    trace: float = 0.0
    train: float = 0.0
    validate: float = 0.0

    def add(self, wall: float, times: Sequence[EpochTimes]) -> None:
        """Splits the seconds of a round into training and validation.

        Args:
            wall: Seconds on the clock.
            times: Seconds that the round's packs took, which train side by side.
        """
        train, validate = sum(t.train for t in times), sum(t.validate for t in times)
        share = train / (train + validate) if train + validate else 1.0
        self.train += wall * share
        self.validate += wall * (1.0 - share)


class ExecutorTimings:
    """What an executor has spent.

    Attributes:
        seconds: Where the time went.
        n_rounds: Rounds in which a pack was trained.
        rounds: The last of these rounds: seconds on the clock, and number of trials that trained.
    """

    def __init__(self) -> None:
        self.seconds = Seconds()
        self.n_rounds = 0
        self.rounds: deque[tuple[float, int]] = deque(maxlen=_LATELY)
        self._slot_epochs = self._busy_epochs = 0

    def add_round(self, wall: float, packs: Sequence[Pack], trained: Sequence[PackEpoch]) -> None:
        """Adds a round.

        Args:
            wall: Seconds on the clock.
            packs: The round's packs, with the trials that began it.
            trained: The epochs of the packs that did not fail.
        """
        self._slot_epochs += sum(len(pack.slots) for pack in packs)
        self._busy_epochs += sum(len(pack.live) for pack in packs)
        self.seconds.add(wall, [times for _, times in trained])
        if trained:
            self.n_rounds += 1
            self.rounds.append((wall, sum(len(results) for results, _ in trained)))

    @property
    def busy_share(self) -> float | None:
        """Share of the slots that held a trial, over all epochs; None before the first epoch."""
        return self._busy_epochs / self._slot_epochs if self._slot_epochs else None
