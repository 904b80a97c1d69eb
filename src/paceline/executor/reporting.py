"""What trials are told of an epoch, callbacks first, and what follows from the answers."""

from __future__ import annotations

from paceline.executor.base import Answer, EpochReport, Failed, LateAnswer, Report
from paceline.executor.group import Group
from paceline.executor.paused import PausedStates
from paceline.executor.planner import Planner
from paceline.pack.callbacks.driver import CallbackDriver
from paceline.pack.pack import EpochTimes, Pack, SlotTrial

#: An epoch of a pack: trial number -> logs, and the time it took.
Epoch = tuple[dict[int, dict[str, float]], EpochTimes]


class EpochReporter:
    """Reports epochs of an executor's packs.

    Args:
        planner: Has users told what they may want to know.
        parking: Where paused trials wait.
        parked_in: Paused trial -> its group.
    """

    def __init__(
        self, planner: Planner, parking: PausedStates, parked_in: dict[int, Group]
    ) -> None:
        self._planner, self._parking, self._parked_in = planner, parking, parked_in

    def begin(self, pack: Pack, failed: Failed) -> bool:
        """Calls the callbacks that come before an epoch; False where no trial is left to train."""
        for rider in pack.live:
            if rider.driver is not None:
                try:
                    rider.driver.begin_epoch(rider.first_epoch + rider.epoch)
                except Exception as error:  # a callback of the user's
                    _fail(pack, rider, error, failed)
        return bool(pack.live)

    def tell(
        self, group: Group, pack: Pack, epoch: Epoch, report: Report, failed: Failed
    ) -> list[tuple[Group, Pack, SlotTrial, LateAnswer]]:
        """Reports an epoch of a pack; returns its trials with what was answered."""
        results, times = epoch
        share = (times.train + times.validate) / max(1, len(results))
        # Callbacks of all trials first: what they write goes to the slots in one piece.
        for rider in pack.live:
            if rider.driver is not None:
                try:
                    results[rider.number] = rider.driver.end_epoch(results[rider.number])
                    if rider.driver.stopped:
                        rider.epochs = rider.epoch
                    if rider.epoch >= rider.epochs:
                        rider.driver.end()
                except Exception as error:  # a callback of the user's
                    _fail(pack, rider, error, failed)
        told = []
        for rider in pack.live:
            answer = report(
                EpochReport(
                    number=rider.number,
                    epoch=rider.epoch,
                    logs=results[rider.number],
                    seconds=share + (rider.driver.seconds() if rider.driver else 0.0),
                    program=group.name,
                    plan=pack.program.plan,
                    weights=pack.weights(rider.number),
                    state=pack.state(rider.number),
                    wall=times.train + times.validate,
                    last=rider.epoch >= rider.epochs,
                )
            )
            told.append((group, pack, rider, answer))
        return told

    def heed(self, group: Group, pack: Pack, rider: SlotTrial, answer: Answer) -> None:
        """Does what was answered about a trial."""
        if answer == "pause":
            self._parking.put(pack.take_out(rider.number))
            self._parked_in[rider.number] = group
        elif answer == "stop" or rider.epoch >= rider.epochs:
            if rider.driver is not None:
                self._end(rider.driver)
            pack.evict(rider.number)

    def _end(self, driver: CallbackDriver) -> None:
        """The callbacks of a trial that was stopped learn that its training is over."""
        try:
            driver.end()
        except Exception as error:  # a callback of the user's; the trial has ended by now
            self._planner.note(
                f"a callback of a trial that was stopped failed in on_train_end: "
                f"{type(error).__name__}: {error}"
            )
            driver.abandon()


def _fail(pack: Pack, rider: SlotTrial, error: Exception, failed: Failed) -> None:
    """A callback of a trial raised: it is out, and the others go on."""
    abandon(rider)
    pack.evict(rider.number)
    failed(rider.number, error)


def abandon(rider: SlotTrial) -> None:
    """The callbacks of a trial that is out are called no more."""
    if rider.driver is not None:
        rider.driver.abandon()
