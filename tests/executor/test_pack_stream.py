"""A stream of packs: formed in the order of trials, trained while the search does other work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import toys
from executor.fakes import (
    FakeDriver,
    FakePlanner,
    FakeProgram,
    group,
    numbers,
    read,
    slots_of,
    stored,
    trial,
)
from marks import slow_where
from paceline.data.arrays import prepare
from paceline.data.chunks import ResidentArrays
from paceline.executor.base import (
    Answer,
    EpochLimit,
    EpochReport,
    Job,
    PackOptions,
    PackTimeout,
    SearchData,
    UserNotifier,
)
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import random_state_kept
from paceline.executor.training import memory, stream
from paceline.executor.training.memory import MemorySharers
from paceline.executor.training.slots import SlotAllocator, TrialDemand
from paceline.executor.training.stream import PackStream
from paceline.pack.pack import Pack
from paceline.search_space import HyperParameters

LONG = 30.0  # s, after which what should have come about is given up

# -- forming packs ---------------------------------------------------------------------------------


class Planner(FakePlanner):
    """Compiles at once: two slots."""

    compiled: list[str]

    def compile(self, made: Any, n_trials: int, expected: int) -> None:
        self.compiled.append(made.name)
        made.program = FakeProgram(2)

    def slots_of(self, groups: list[Any]) -> int:
        return self.packs_at_once * max(
            2 if each.program is None else each.program.n_slots for each in groups
        )

    def max_slots(self, groups: list[Any]) -> int:
        return 2 * self.packs_at_once


class Forming:
    """A stream over these groups, with one thread."""

    def __init__(self, *groups: Any) -> None:
        self.planner: Any = Planner(1, slots=2)
        self.planner.compiled = []
        for each in groups:
            stale = SimpleNamespace(stale=False, full=each.train.full)
            each.roles = [stale]
        grouper: Any = SimpleNamespace(groups=list(groups), n_programs=len(groups), waiting=0)
        device_data: Any = SimpleNamespace(
            of=lambda made, layout: (ResidentArrays(None, 8, 2, made.work.epochs), None)
        )
        data: Any = SearchData(None)  # type: ignore[arg-type]
        slots = SlotAllocator(
            *(self.planner, device_data, data, UserNotifier(), EpochLimit(), MemorySharers())
        )
        self.demand = TrialDemand(self.planner, grouper)
        unused: Any = None
        self.stream = PackStream(
            grouper, self.planner, slots, *[unused] * 2, self.demand, *[unused] * 3
        )

    def uniform(self) -> Forming:
        self.demand.uniform = True
        return self


def test_trials_form_packs_in_their_order_as_soon_as_they_fill_one():
    made = group(0, 1, 2, 3, 4)
    Forming(made).stream.form()
    assert slots_of(made) == [[0, 1], [2, 3]]
    assert numbers(made.queue) == [4], "it waits for another of its program"


def test_what_is_formed_does_not_depend_on_when():
    """One trial after another, or all at once: the clock decides nothing."""
    for batches in ([[0], [1], [2], [3], [4]], [[0, 1, 2], [3, 4]]):
        made = group()
        forming = Forming(made)
        for batch in batches:
            made.queue.extend(map(trial, batch))
            forming.stream.form()
        assert slots_of(made) == [[0, 1], [2, 3]]


def test_without_a_program_trials_wait():
    """For as many as train at once; then one is compiled."""
    made = group(0, n_slots=None)
    forming = Forming(made)
    assert forming.stream.hungry
    assert made.packs == [] and forming.planner.compiled == []
    made.queue.append(trial(1))
    assert not forming.stream.hungry
    assert slots_of(made) == [[0, 1]] and forming.planner.compiled == ["g"]


def test_who_has_waited_longest_trains_with_a_free_slot_where_many_wait():
    """Of several programs four times as many as train at once: 8 of 2 slots and one thread."""
    groups = [group(n, n_slots=None, name=str(n)) for n in (3, 0, 1, 2, 4, 5, 6)]
    forming = Forming(*groups)
    forming.stream.form()
    assert forming.planner.compiled == []
    groups.append(group(7, name="7"))
    forming.stream.grouper.groups.append(groups[-1])  # type: ignore[misc]
    groups[-1].roles = groups[0].roles
    forming.stream.form()
    assert forming.planner.compiled == ["0"]
    assert slots_of(groups[1]) == [[0, None]]
    assert all(not each.packs for each in groups if each is not groups[1])


def test_the_rest_trains_once_no_more_trials_come():
    groups = [group(0, 1, 2, name="a"), group(3, n_slots=None, name="b")]
    forming = Forming(*groups)
    forming.stream.form_rest()
    assert [slots_of(each) for each in groups] == [[[0, 1], [2, None]], [[3, None]]]
    assert forming.planner.compiled == ["b"]


def test_trials_of_another_length_do_not_share_a_pack_that_cannot_take_them():
    made = group(n_slots=2, steps_per_epoch=2)
    made.queue.extend([trial(0), trial(1, first_epoch=1), trial(2)])
    Forming(made).stream.form_rest()
    assert sorted(n for pack in slots_of(made) for n in pack if n is not None) == [0, 1, 2]


@pytest.mark.parametrize("odd", [{"driver": FakeDriver()}, {"fold": object()}, {"epoch": 3}])
def test_trials_that_something_else_acts_on_train_in_rounds(odd):
    """With several programs only once the packs that are there have ended."""
    groups = [group(0, 1, name="a"), group(name="b")]
    forming = Forming(*groups)
    forming.stream.form()
    groups[1].queue.append(trial(2, **odd))
    forming.stream.form()
    assert not forming.stream.room and not forming.stream.hungry, "no more trials are asked for"
    assert forming.stream.state == "over"
    assert not forming.stream.ended()
    groups[0].packs.clear()
    assert forming.stream.ended()


def test_with_one_program_rounds_go_on_at_once_and_packs_that_train_stay():
    made = group(0, 1, 2, 3)
    forming = Forming(made).uniform()
    forming.stream.form()
    made.packs[0].began = time.perf_counter()
    made.queue.append(trial(4, driver=FakeDriver()))
    forming.stream.form()
    assert forming.stream.state is None
    assert forming.stream.ended()
    assert slots_of(made) == [[0, 1]]
    assert sorted(numbers(made.queue)) == [2, 3, 4]


def test_a_program_that_lacks_an_input_waits_for_the_end_of_its_packs():
    groups = [group(0, 1, name="a"), group(2, 3, name="b")]
    forming = Forming(*groups)
    forming.stream.form()
    groups[0].queue.append(trial(4))
    groups[0].train.stale = True
    forming.stream.form()
    assert slots_of(groups[0]) == [[0, 1]], "the pack keeps the program that it began with"
    assert not forming.stream.over, "the others go on"
    forming.stream.form_rest()
    assert forming.stream.over


def test_too_many_that_wait_for_an_input_end_the_stream():
    groups = [group(0, 1, name="a"), group(name="b")]
    forming = Forming(*groups)
    forming.stream.form()
    groups[0].train.stale = True
    groups[0].queue.extend(map(trial, range(2, 9)))
    forming.stream.form()
    assert not forming.stream.over
    groups[0].queue.append(trial(9))
    forming.stream.form()
    assert forming.stream.over


def test_a_slot_that_is_free_goes_to_a_trial_whose_pack_has_not_begun():
    """Of the same program; which packs are formed of those that wait does not depend on it."""
    groups = [group(*range(7), name="a"), group(7, 8, name="b")]
    stream = Forming(*groups).stream
    stream.form()
    first, _, third = groups[0].packs
    third.program = FakeProgram(2)  # as after a plan has changed
    first.began = time.perf_counter()
    first.evict(0)
    stream._refill(groups[0], first)
    assert slots_of(groups[0]) == [[2, 1], [None, 3], [4, 5]]
    first.evict(1)
    stream._refill(groups[0], first)
    assert slots_of(groups[0]) == [[2, 3], [4, 5]], "a pack without trials does not train"
    first.evict(2)
    stream._refill(groups[0], first)
    assert slots_of(groups[0]) == [[None, 3], [4, 5]]
    assert numbers(groups[0].queue) == [6] and slots_of(groups[1]) == [[7, 8]]


def test_there_is_room_for_four_times_the_trials_that_train_at_once():
    made = group(*range(6))
    forming = Forming(made)
    assert not forming.stream.hungry
    assert forming.stream.room
    made.queue.extend(map(trial, range(6, 8)))
    forming.stream.form()
    assert not forming.stream.room, "8 trials have a slot and have not begun"
    made.packs[0].began = time.perf_counter()
    assert forming.stream.room


# -- training --------------------------------------------------------------------------------------

RATES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.15, 0.25]
EPOCHS = 4
DATA = SearchData(prepare(*toys.data(60)), prepare(*toys.data(20, seed=1)))


class Run:
    """Seven trials of one or two structures, two slots a pack; every epoch's weights are kept.

    Args:
        streams: Whether the trials stream; else they train in rounds.
        two: Whether they are of two structures.
        limit: Seconds that an epoch may take.
        slots: Of a pack.
        sharers: Executors on the same device.
    """

    def __init__(
        self,
        *,
        streams: bool = True,
        two: bool = False,
        limit: float | None = None,
        slots: int = 2,
        sharers: memory.MemorySharers | None = None,
    ) -> None:
        self.two = two
        options = PackOptions(slots=slots, plan="vectorized")
        self.local = LocalExecutor(DATA, options, limit=EpochLimit(limit), sharers=sharers)
        self.local.steady = streams
        self.logs: dict[int, list[dict[str, float]]] = {n: [] for n in range(len(RATES))}
        self.weights: dict[int, list[list[np.ndarray]]] = {n: [] for n in range(len(RATES))}
        self.failed: dict[int, BaseException] = {}

    def submit(self, *chosen: int) -> None:
        for number in chosen:

            def rebuild(number: int = number) -> Any:
                act = "elu" if self.two and number % 2 else "relu"
                build = ModelBuilder(lambda hp: toys.dense_with(hp, act))
                with random_state_kept():
                    return build(HyperParameters(values={"lr": RATES[number] / 10}), number)

            self.local.demand.expected = len(RATES)
            self.local.submit(Job(number, number, EPOCHS, 16, rebuild(), rebuild))

    def report(self, epoch: EpochReport) -> Answer:
        self.logs[epoch.number].append(epoch.logs)
        trainable, non_trainable = epoch.weights()
        self.weights[epoch.number].append([*trainable, *non_trainable])
        assert epoch.last == (epoch.epoch == EPOCHS)
        return "continue"

    def fail(self, number: int, error: BaseException) -> None:
        self.failed[number] = error

    def train(
        self,
        meanwhile: Callable[[], bool] = lambda: False,
        report: Callable[[EpochReport], Answer] | None = None,
        times: int = 1000,
    ) -> None:
        while times and self.local.busy:
            times -= 1
            self.local.demand.all_asked = True
            self.local.advance(report or self.report, meanwhile, self.fail)

    def finish(self) -> Run:
        self.submit(*range(len(RATES)))
        self.train()
        self.local.close()
        return self


def same(one: Run, two: Run, *chosen: int) -> None:
    """All histories, and the weights after each epoch, to the bit."""
    for number in chosen or range(len(RATES)):
        assert one.logs[number] == two.logs[number]
        for ours, theirs in zip(one.weights[number], two.weights[number], strict=True):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def rounds() -> Run:
    """All trials in rounds."""
    return Run(streams=False).finish()


@pytest.mark.parametrize("two", slow_where([False, True], bool))
def test_a_stream_trains_what_rounds_train_to_the_bit(two, rounds):
    before = Run(streams=False, two=True).finish() if two else rounds
    run = Run(two=two)
    assert run.local.streaming
    same(run.finish(), before)
    assert {len(logs) for logs in run.logs.values()} == {EPOCHS}
    assert run.local.timings.slot_epochs == (8 * EPOCHS, 7 * EPOCHS)
    stays, packs = run.local.timeline.take(all_ended=True)
    assert sorted((stay.trial, stay.epochs) for stay in stays) == [(n, EPOCHS) for n in range(7)]
    assert len(packs) == 4


def test_packs_train_on_while_the_search_does_something_else(monkeypatch, rounds):
    """And each report has the weights of its own epoch, though its pack has trained on."""
    trained = threading.Semaphore(0)
    run_epoch = Pack.run_epoch

    def counted(self: Pack) -> Any:
        found = run_epoch(self)
        trained.release()
        return found

    monkeypatch.setattr(Pack, "run_epoch", counted)
    monkeypatch.setattr(stream, "_SLICE", LONG)
    run, left = Run(), [EPOCHS]

    def meanwhile() -> bool:
        stream = run.local._stream
        while left[0] and stream is not None and stream._runs:  # until a pack has ended
            assert trained.acquire(timeout=LONG)
            left[0] -= 1
        return False

    run.submit(*range(len(RATES)))
    run.train(meanwhile)
    assert left == [0]
    same(run, rounds)


def test_weights_are_held_for_so_many_bytes_only(monkeypatch, rounds):
    monkeypatch.setattr(stream, "_HELD", 0)
    same(Run().finish(), rounds)


def test_no_pack_waits_at_a_lane_for_which_there_is_no_memory(monkeypatch, rounds):
    """The arrays of the pack before it are freed once its last epoch has been reported."""
    monkeypatch.setattr(SlotAllocator, "fits_twice", lambda self, made: False)
    begin, most = PackStream._begin, []

    def noted(self: PackStream, *arguments: Any) -> None:
        begin(self, *arguments)
        most.append(len(self._runs) / self.planner.packs_at_once)

    monkeypatch.setattr(PackStream, "_begin", noted)
    same(Run().finish(), rounds)
    assert max(most) == 1
    monkeypatch.setattr(SlotAllocator, "fits_twice", lambda self, made: True)
    same(Run().finish(), rounds)
    assert max(most) == 2


def test_elsewhere_than_on_a_cpu_packs_wait_for_a_search_that_has_nothing_else_to_do(
    monkeypatch, rounds
):
    run = Run()
    monkeypatch.setattr(run.local._planner, "on_cpu", False)
    same(run.finish(), rounds)


@pytest.mark.parametrize("hurried", [False, True])
def test_packs_stop_between_two_epochs_when_the_search_wants_to_be_asked(
    monkeypatch, rounds, hurried
):
    monkeypatch.setattr(stream, "_SLICE", LONG if hurried else 0.0)
    run = Run()
    run.local.hurried = hurried
    run.submit(*range(len(RATES)))
    until = time.monotonic() + LONG
    while not any(run.logs.values()):  # the program has to be compiled first
        run.train(times=1)
        assert time.monotonic() < until
    n_trained = [len(logs) for logs in run.logs.values()]
    assert max(n_trained) <= (EPOCHS if hurried else 1), n_trained
    assert run.local.busy
    run.train()
    same(run, rounds)


def test_a_trial_that_is_stopped_leaves_and_its_neighbours_train_on(rounds):
    run = Run()

    def report(epoch: EpochReport) -> Answer:
        run.report(epoch)
        return "stop" if epoch.number == 0 and epoch.epoch == 2 else "continue"

    run.submit(*range(len(RATES)))
    run.train(report=report)
    assert len(run.logs[0]) == 2, "what its slot computed meanwhile is nobody's"
    same(run, rounds, *range(1, len(RATES)))


@pytest.mark.slow
def test_of_several_programs_too_the_slot_of_a_failed_trial_is_given_to_the_next(monkeypatch):
    monkeypatch.setattr(SlotAllocator, "fits_twice", lambda self, made: False)
    monkeypatch.setattr(stream, "_SLICE", 0.0)  # slots are refilled between two slices only
    before = Run(streams=False, two=True).finish()
    run = Run(two=True)
    run.local._planner.packs_at_once = 1

    def report(epoch: EpochReport) -> Answer:
        run.report(epoch)
        return "stop" if epoch.number == 0 else "continue"

    run.submit(*range(len(RATES)))
    run.train(report=report)
    run.local.close()
    same(run, before, *range(1, len(RATES)))
    stays, _ = run.local.timeline.take(all_ended=True)
    of_trial = {stay.trial: (stay.pack, stay.slot) for stay in stays}
    assert of_trial[4] == of_trial[0], "2 trains beside them"
    assert of_trial[6] == of_trial[2]


def test_a_pack_that_fails_fails_its_trials_and_no_others(monkeypatch, rounds):
    run_epoch = Pack.run_epoch

    def failing(self: Pack) -> Any:
        if self.live[0].number == 2 and self.live[0].epoch == 1:
            raise ValueError("no more")
        return run_epoch(self)

    monkeypatch.setattr(Pack, "run_epoch", failing)
    run = Run().finish()
    assert set(run.failed) == {2, 3}
    same(run, rounds, 0, 1, 4, 5, 6)


def test_where_memory_runs_out_rounds_go_on_with_fewer_slots(monkeypatch, rounds):
    """After the packs beside have ended: then it is clear that it is too large by itself."""
    run_epoch, beside = Pack.run_epoch, []

    def failing(self: Pack) -> Any:
        if self.program.n_slots > 1 and any(each.number == 2 for each in self.live):
            beside.append(sum(p.on_device for g in run.local._grouper.groups for p in g.packs))
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return run_epoch(self)

    monkeypatch.setattr(Pack, "run_epoch", failing)
    run = Run(two=True)
    run.submit(*range(len(RATES)))
    run.train()
    assert run.failed == {}
    assert beside[-1] == 0 and len(beside) <= 2
    assert not run.local.streaming
    assert {len(logs) for logs in run.logs.values()} == {EPOCHS}
    run.local.close()


class Device:
    """A device that holds one and a half packs of the runs' groups.

    As an accelerator, it trains one pack at a time. ``known``: whether it says what is free.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *runs: Run, known: bool = True) -> None:
        self.runs, self.n_refused = runs, 0
        run_epoch = Pack.run_epoch

        def run(pack: Pack) -> Any:
            held = self.used() + (0.0 if pack.on_device else self.needed(pack)[0])
            if held + self.needed(pack)[1] > self.limit():
                self.n_refused += 1
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
            return run_epoch(pack)

        monkeypatch.setattr(Pack, "run_epoch", run)
        if known:
            monkeypatch.delenv(memory.LIMIT, raising=False)
            monkeypatch.setattr(memory, "free_bytes", lambda: self.limit() - self.used())
        for each in runs:
            each.local._planner.packs_at_once = 1

    def groups(self) -> list[Any]:
        return [group for run in self.runs for group in run.local._grouper.groups]

    def packs(self) -> list[Pack]:
        return [pack for group in self.groups() for pack in group.packs if pack.on_device]

    def needed(self, pack: Pack) -> tuple[float, float]:
        (found,) = [group for group in self.groups() if pack in group.packs]
        return memory._pack_bytes(found, pack.program)

    def used(self) -> float:
        data = sum(memory._data_bytes(run.local._grouper.groups[0]) for run in self.placed())
        return data + sum(self.needed(pack)[0] for pack in self.packs())

    def placed(self) -> list[Run]:
        return [run for run in self.runs if run.local._device_data._on_device]

    def limit(self) -> float:
        made = [g for g in self.groups() if g.program is not None and g.program.ready()]
        sizes = [memory._pack_bytes(group, group.program) for group in made]
        data = sum(memory._data_bytes(run.local._grouper.groups[0]) for run in self.runs)
        return max(1.5 * a + b for a, b in sizes) + data if sizes else np.inf


@pytest.mark.parametrize(
    ("streams", "slots", "known"),
    slow_where(
        [
            (streams, slots, known)
            for streams, slots in ((True, 1), (True, 2), (False, 16))
            for known in (True, False)
        ],
        lambda case: case != (True, 1, True),
    ),
)
def test_trials_wait_while_others_hold_the_memory_and_none_fails(
    monkeypatch, streams, slots, known
):
    """Two structures, each of which fits alone, but not beside the other."""
    before, run = (Run(streams=streams, two=True, slots=slots) for _ in range(2))
    before.local._planner.packs_at_once = 1
    before.finish()
    device = Device(monkeypatch, run, known=known)
    run.finish()
    assert run.failed == {}
    assert {group.most_slots for group in run.local._grouper.groups} == {None}
    same(run, before)
    assert bool(device.n_refused) <= (not known)


@pytest.mark.parametrize("by_time", [False, True])
def test_where_time_may_end_a_search_no_pack_begins_before_one_that_waits_for_memory(
    monkeypatch, by_time
):
    rare, common = group(0, 1, name="rare"), group(2, 3, name="common")
    forming = Forming(rare, common)
    forming.demand.by_time = by_time
    forming.stream.form()
    monkeypatch.setattr(SlotAllocator, "waits", lambda self, made, beside: made is rare)
    monkeypatch.setattr(SlotAllocator, "fits", lambda self, made, failed: True)
    monkeypatch.setattr(SlotAllocator, "fits_twice", lambda self, made: True)
    idle: Any = SimpleNamespace(
        submit=lambda run: Future(), under_way=lambda jobs: None, begin_round=lambda packs: None
    )
    monkeypatch.setattr(forming.stream, "threads", idle)
    monkeypatch.setattr(forming.stream, "limit", idle)
    monkeypatch.setattr(forming.stream, "timeline", idle)
    forming.stream._begin(lambda number, error: None)
    assert [run.group for run in forming.stream._runs] == ([] if by_time else [common])
    assert forming.stream._lacks_memory


@pytest.mark.parametrize("streams", slow_where([True, False], lambda streams: not streams))
def test_an_executor_waits_for_the_memory_of_another(monkeypatch, rounds, streams):
    """Intercepted fits have one for each data set, and those train in turn."""
    sharers = memory.MemorySharers()
    runs = [Run(streams=streams, sharers=sharers) for _ in range(2)]
    device = Device(monkeypatch, *runs)
    monkeypatch.setattr(stream, "_SLICE", 0.0)
    for run in runs:
        run.submit(*range(len(RATES)))
    together = 0
    while any(run.local.busy for run in runs):
        for run in runs:
            run.train(times=1)
            together += len({id(g) for g in device.groups() if g.on_device}) > 1
    assert [run.failed for run in runs] == [{}, {}] and together == device.n_refused == 0
    for run in runs:
        assert {len(logs) for logs in run.logs.values()} == {EPOCHS}
        for number in run.logs:
            np.testing.assert_allclose(
                [logs["loss"] for logs in run.logs[number]],
                [logs["loss"] for logs in rounds.logs[number]],
                rtol=1e-5,  # compiled for more waves than those of ``rounds``
            )
        run.local.close()


def test_an_epoch_that_does_not_end_is_named(monkeypatch):
    stop = threading.Event()
    monkeypatch.setattr(Pack, "run_epoch", lambda self: _hangs(self, stop))
    run = Run(limit=0.2)
    run.submit(0, 1, 2, 3)
    try:
        with pytest.raises(PackTimeout, match="do not come back") as hung:
            run.train()
    finally:
        stop.set()
    assert {number for pack in hung.value.packs for number in pack} <= {0, 1, 2, 3}
    run.local.close()


def _hangs(pack: Pack, stop: threading.Event) -> Any:
    pack.began = time.perf_counter()
    stop.wait(LONG)
    raise ValueError("given up")


def test_what_a_report_raises_ends_the_search_and_the_threads(rounds):
    run = Run()

    def report(epoch: EpochReport) -> Answer:
        raise LookupError("no such log")

    run.submit(*range(len(RATES)))
    with pytest.raises(LookupError, match="no such log"):
        run.train(report=report)
    run.local.close()
    assert not any(thread.is_alive() for thread in run.local._threads._threads)


@pytest.mark.parametrize("two", slow_where([False, True], bool))
def test_a_stream_goes_on_from_a_snapshot_to_the_bit(monkeypatch, two):
    """Some packs train, some have been formed and have not begun, and a trial waits."""
    monkeypatch.setattr(stream, "_SLICE", 0.0)
    whole = Run(two=two)
    whole.local.demand.continuous = True  # three trials of a structure are enough
    whole.submit(*range(len(RATES)))

    def ask_no_more() -> bool:
        whole.local.demand.all_asked = False
        return False

    whole.local.demand.all_asked = False
    until = time.monotonic() + LONG
    while not any(whole.logs.values()):  # a program has to be compiled first
        whole.local.advance(whole.report, ask_no_more, whole.fail)
        assert time.monotonic() < until
    arrays: dict[str, np.ndarray] = {}
    facts = stored(whole.local.snapshot(arrays, {}))
    assert facts["stream"] == "on"
    arrays = {name: np.array(array) for name, array in arrays.items()}
    before = {number: len(logs) for number, logs in whole.logs.items()}
    whole.train()
    assert set(before.values()) >= {0, 1}

    again = Run(two=two)
    with again.local.resubmitting(read(facts), lambda number: None):
        again.submit(*reversed(range(len(RATES))))
    assert again.local.restore(read(facts), dict(arrays), lambda number: None) == []
    found: dict[str, np.ndarray] = {}
    assert stored(again.local.snapshot(found, {})) == facts
    again.train()
    for number, logs in whole.logs.items():
        assert again.logs[number] == logs[before[number] :]
        for ours, theirs in zip(
            again.weights[number], whole.weights[number][before[number] :], strict=True
        ):
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a, b)


def test_a_search_that_went_on_in_rounds_does_so_again():
    """A checkpoint of an earlier version says nothing of streams."""
    whole = Run(streams=False)
    whole.submit(0, 1, 2)
    whole.train(times=1)
    arrays: dict[str, np.ndarray] = {}
    facts = stored(whole.local.snapshot(arrays, {}))
    assert "stream" not in facts
    again = Run()
    with again.local.resubmitting(read(facts), lambda number: None):
        again.submit(0, 1, 2)
    again.local.restore(read(facts), arrays, lambda number: None)
    assert not again.local.streaming
    again.train()
    whole.train()
    for number in range(3):
        assert again.logs[number] == whole.logs[number][-len(again.logs[number]) :]


def test_a_search_that_died_before_its_first_trial_streams_again():
    """Else it trained in rounds: with a time limit in other packs, so with other last digits."""
    facts = stored(Run().local.snapshot({}, {}))
    again = Run()
    again.local.restore(read(facts), {}, lambda number: None)
    assert again.local.streaming


def test_with_one_program_the_slot_of_a_trial_that_left_is_given_to_another(monkeypatch, rounds):
    run = Run()
    run.local.demand.uniform = True

    def report(epoch: EpochReport) -> Answer:
        run.report(epoch)
        return "stop" if epoch.number == 0 else "continue"

    monkeypatch.setattr(stream, "_SLICE", 0.0)
    refilled: list[list[int]] = []
    refill = PackStream._refill

    def noted(self: PackStream, made: Any, pack: Pack) -> None:
        refill(self, made, pack)
        refilled.append([trial.number for trial in pack.live])

    monkeypatch.setattr(PackStream, "_refill", noted)
    run.submit(*range(len(RATES)))
    run.train(report=report)
    assert any(1 in pack and len(pack) == 2 for pack in refilled), refilled
    assert len(run.logs[0]) == 1
    assert {len(run.logs[n]) for n in range(1, 7)} == {EPOCHS}
    same_numbers(run, rounds, *range(1, 7))


def same_numbers(one: Run, two: Run, *chosen: int) -> None:
    """In another slot XLA may round a sum differently."""
    for number in chosen:
        for ours, theirs in zip(one.logs[number], two.logs[number], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-6)
