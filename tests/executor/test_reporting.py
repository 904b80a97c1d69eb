"""What an executor reports: epochs of trials, in which order, and where time and slots went."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from executor.fakes import FakeDriver, FakeProgram, empty_pack, group, numbers, trial
from paceline.executor.base import Answer, EpochReport, UserNotifier
from paceline.executor.state.paused import PausedStates
from paceline.executor.training.memory import DeviceData
from paceline.executor.training.reporting import EpochReporter, ExecutorTimings
from paceline.pack.pack import EpochTimes

#: Bytes of paused trials kept in memory: none goes to disk.
PLENTY = 10**9


class Rows(FakeProgram):
    """A program whose variables are one array each, slots along the first axis."""

    def row(self, part: list[np.ndarray], slot: int) -> list[np.ndarray]:
        return [leaf[slot] for leaf in part]


class Reporting:
    """A pack that has trained an epoch, and what its reporter says.

    Args:
        drivers: Callbacks of each trial, None without; there are as many trials.
        epoch: Epochs that the trials have trained, of 9.
    """

    def __init__(self, *drivers: FakeDriver | None, epoch: int = 1) -> None:
        self.group = group(name="abc")
        program: Any = Rows(len(drivers) + 1)
        self.pack = empty_pack(program)
        for number, driver in enumerate(drivers):
            made: Any = driver
            self.pack.admit(trial(number, epoch=epoch, driver=made))
        # As after an epoch: the variables are in the slots.
        self.pack._waiting.clear()
        values = np.arange(len(drivers) + 1, dtype=np.float32)[:, None]
        self.pack._state = [[values], [values + 0.5], [values + 0.25]]  # type: ignore[list-item]
        self.notes: list[str] = []
        self.failed: dict[int, BaseException] = {}
        self.reports: list[EpochReport] = []
        self.paused = PausedStates(PLENTY)
        notes = UserNotifier(self.notes.append)
        self.reporter = EpochReporter(notes, self.paused, DeviceData(notes))

    def report(self, logs: dict[int, dict[str, float]] | None = None) -> list[Any]:
        """Reports an epoch with these logs, which took 3 s and 1 s of validation."""
        found = logs or {each.number: {"loss": 1.0} for each in self.pack.live}
        epoch = found, EpochTimes(3.0, 1.0)
        return self.reporter.report_epoch(self.group, self.pack, epoch, self._heard, self.fail)

    def answer(self, number: int, answer: Answer) -> None:
        (found,) = [each for each in self.pack.live if each.number == number]
        self.reporter.apply_answer(self.group, self.pack, found, answer)

    def fail(self, number: int, error: BaseException) -> None:
        self.failed[number] = error

    def _heard(self, report: EpochReport) -> Answer:
        self.reports.append(report)
        return "continue"


def test_what_a_report_carries() -> None:
    made = Reporting(None, None, epoch=4)
    made.report({0: {"loss": 0.5}, 1: {"loss": 0.25, "val_loss": 2.0}})
    one, two = made.reports
    assert (one.number, one.epoch, one.logs) == (0, 4, {"loss": 0.5})
    assert (two.number, two.epoch, two.logs) == (1, 4, {"loss": 0.25, "val_loss": 2.0})
    for report in made.reports:
        assert (report.program, report.plan) == ("abc", "vectorized")
        assert (report.seconds, report.wall) == (2.0, 4.0), "its share, and all of the pack's"
        assert not report.last and not report.members
    trainable, non_trainable = two.weights()
    assert (trainable[0].item(), non_trainable[0].item()) == (1.0, 1.5)
    assert two.state is not None and two.state().optimizer[0].item() == 1.25


def test_reports_come_in_the_order_of_slots_and_answers_with_their_trials() -> None:
    made = Reporting(None, None, None)
    made.pack.slots.reverse()
    made.pack.slots.append(made.pack.slots.pop(0))  # slots: 2, 1, 0 and an empty one
    told = made.report()
    assert [report.number for report in made.reports] == [2, 1, 0]
    assert numbers(each for _, _, each, _ in told) == [2, 1, 0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_reported_as_they_are(value: float) -> None:
    """The search decides what becomes of the trial; its neighbours are as they were."""
    made = Reporting(None, None)
    made.report({0: {"loss": value}, 1: {"loss": 0.5}})
    np.testing.assert_equal(made.reports[0].logs["loss"], value)
    assert made.reports[1].logs == {"loss": 0.5}
    assert not made.failed and numbers(made.pack.live) == [0, 1]


def test_the_last_epoch_says_so_and_frees_the_slot_whatever_is_answered() -> None:
    made = Reporting(None, epoch=9)
    made.report()
    assert made.reports[0].last
    made.answer(0, "continue")
    assert not made.pack.live


def test_callbacks_see_an_epoch_before_the_search_does() -> None:
    driver = FakeDriver(logs={"lr": 0.1})
    made = Reporting(driver, None)
    made.report({0: {"loss": 0.5}, 1: {"loss": 0.5}})
    assert made.reports[0].logs == {"loss": 0.5, "lr": 0.1}
    report, other = made.reports
    assert (report.seconds, report.wall) == (2.5, 4.5), "with the half second of its callbacks"
    assert (other.seconds, other.wall) == (2.0, 4.0)
    assert driver.calls == ["end_epoch"], "training is not over"


def test_a_callback_that_stops_makes_the_epoch_the_last() -> None:
    driver = FakeDriver(stopped=True)
    made = Reporting(driver, epoch=3)
    made.report()
    assert made.reports[0].last
    assert driver.calls == ["end_epoch", "end"]


@pytest.mark.parametrize("call", ["end_epoch", "end"])
def test_a_callback_that_raises_fails_its_trial_only(call: str) -> None:
    driver = FakeDriver(fails=call, stopped=call == "end")
    made = Reporting(driver, None)
    made.report()
    assert {n: str(error) for n, error in made.failed.items()} == {0: f"no {call}"}
    assert [report.number for report in made.reports] == [1]
    assert numbers(made.pack.live) == [1]
    assert driver.calls[-1] == "abandon"


def test_callbacks_begin_an_epoch_counted_from_the_first_of_the_user() -> None:
    driver = FakeDriver()
    made = Reporting(driver, None, epoch=2)
    made.pack.live[0].first_epoch = 10  # initial_epoch
    assert made.reporter.begin_epoch(made.pack, made.fail)
    assert driver.calls == [("begin_epoch", 12)]


def test_a_pack_whose_trials_all_fail_at_the_beginning_does_not_train() -> None:
    made = Reporting(FakeDriver(fails="begin_epoch"))
    assert not made.reporter.begin_epoch(made.pack, made.fail)
    assert list(made.failed) == [0]


def test_a_trial_that_is_stopped_leaves_and_its_callbacks_end() -> None:
    driver = FakeDriver()
    made = Reporting(driver, None)
    made.answer(0, "stop")
    assert driver.calls == ["end"]
    assert numbers(made.pack.live) == [1]


def test_an_error_at_the_end_of_a_stopped_trial_is_a_note() -> None:
    driver = FakeDriver(fails="end")
    made = Reporting(driver)
    made.answer(0, "stop")
    assert made.notes == [
        "a callback of a trial that was stopped failed in on_train_end: ValueError: no end"
    ]
    assert not made.failed and not made.pack.live
    assert driver.calls == ["end", "abandon"]


def test_a_paused_trial_waits_with_its_variables_and_its_group() -> None:
    made = Reporting(None, None)
    made.answer(1, "pause")
    assert numbers(made.pack.live) == [0]
    back, its_group = made.paused.take(1)
    assert its_group is made.group and back.epoch == 1
    assert back.state is not None and np.asarray(back.state.trainable[0]).item() == 1.0


def test_who_goes_on_stays_in_its_slot() -> None:
    made = Reporting(None, None)
    made.answer(0, "continue")
    assert numbers(made.pack.live) == [0, 1] and len(made.paused) == 0


# -- where time and slots went ---------------------------------------------------------------------


def pack(n_slots: int, n_live: int) -> Any:
    return SimpleNamespace(slots=[None] * n_slots, live=[None] * n_live)


def test_a_round_is_shared_between_training_and_validation() -> None:
    timings = ExecutorTimings()
    times = [EpochTimes(3.0, 1.0), EpochTimes(3.0, 1.0)]
    epochs = [({0: {}, 1: {}}, times[0]), ({2: {}}, times[1])]
    timings.add_round(6.0, [pack(2, 2), pack(2, 1)], epochs)
    seconds = timings.seconds
    assert (seconds.train, seconds.validate) == pytest.approx((4.5, 1.5))
    assert (timings.n_rounds, list(timings.rounds)) == (1, [(6.0, 3)])


def test_slots_are_busy_by_epochs_and_none_were_before_the_first() -> None:
    timings = ExecutorTimings()
    assert timings.busy_share is None
    timings.add_round(1.0, [pack(4, 4)], [({0: {}}, EpochTimes(1.0, 0.0))])
    timings.add_round(1.0, [pack(4, 1)], [({0: {}}, EpochTimes(1.0, 0.0))])
    assert timings.busy_share == 5 / 8


def test_a_round_in_which_all_packs_fail_took_time_and_trained_nothing() -> None:
    timings = ExecutorTimings()
    timings.add_round(2.0, [pack(4, 4)], [])
    assert timings.seconds.train == 2.0
    assert (timings.n_rounds, list(timings.rounds)) == (0, [])


def test_notes_are_told_once_only_where_that_is_asked_for() -> None:
    told: list[str] = []
    notes = UserNotifier(told.append)
    for _ in range(2):
        notes.tell("a")
        notes.tell_once("b")
    assert told == ["a", "b", "a"]
