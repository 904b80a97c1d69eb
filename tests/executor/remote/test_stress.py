"""Two hundred machines that come, go, and answer late: no trial is lost, doubled or changed."""

from __future__ import annotations

import contextlib
import gc
import random
import time
import tracemalloc
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from in_process_pool import InProcessPool
from one_group import OneGroup
from paceline.executor import pack_executor
from paceline.executor.base import Answer, EpochReport, Job, JobSpec
from paceline.executor.remote import driver
from paceline.executor.remote.driver import RemoteExecutor
from paceline.executor.remote.messages import (
    ErrorText,
    HostFacts,
    HostState,
    JobState,
    RoundAnswer,
    RoundOrder,
    SubmittedJob,
)

SLOTS, EPOCHS = 8, 5


def trained(value: float, seed: int) -> float:
    """A trial's only variable after one more epoch."""
    return (value * 1103515245 + seed + 12345) % 2147483648


def history(seed: int, epochs: int) -> list[float]:
    """What a trial reports that nobody disturbs."""
    value, found = float(seed), []
    for _ in range(epochs):
        value = trained(value, seed)
        found.append(value)
    return found


class FakeHost:
    """A machine that trains one number for each job."""

    def __init__(self) -> None:
        self.waiting: deque[SubmittedJob] = deque()
        self.slots: dict[int, tuple[JobSpec, int, float]] = {}

    def hello(self) -> HostFacts:
        return HostFacts({}, None, "fake", SLOTS, time.perf_counter(), "here", 0)

    def round(self, order: RoundOrder) -> RoundAnswer:
        answer = RoundAnswer()
        for number in order.stop:
            assert self.pop(number) is not False
        for number in order.take:
            answer.taken[number] = self.pop(number) or None
        self.waiting.extend(order.submit)
        if order.train:
            self.train(answer)
        if order.want_states:
            answer.states.update({n: self.state(n) for n in self.slots if self.slots[n][1]})
        look = HostState(
            {"compiled": 1, "from_cache": 0}, (1, 1), [("p", "vectorized", [*self.slots])], {},
            {"vectorized"}, SLOTS,
        )  # fmt: skip
        return RoundAnswer(answer.reports, answer.failed, answer.taken, answer.states, host=look)

    def train(self, answer: RoundAnswer) -> None:
        while self.waiting and len(self.slots) < SLOTS:
            submitted = self.waiting.popleft()
            spec, state = submitted.spec, submitted.state
            began = (0, float(spec.seed)) if state is None else (state.epoch, state.parts[0][0][0])
            self.slots[spec.number] = spec, *began
        for number, (spec, epoch, value) in list(self.slots.items()):
            if spec.hparams.get("fails") == epoch:
                del self.slots[number]
                answer.failed[number] = ErrorText("ValueError", f"{number} fails")
                continue
            now = trained(value, spec.seed)
            last = epoch + 1 == spec.epochs
            logs = {"loss": now}
            answer.reports.append(
                EpochReport(
                    number, epoch + 1, logs, 0.0, "p", "vectorized", lambda: ([], []), last=last
                )
            )
            self.slots[number] = spec, epoch + 1, now
            if last:
                del self.slots[number]

    def state(self, number: int) -> JobState:
        _, epoch, value = self.slots[number]
        return JobState(epoch, [[np.array([value])], [], [], []])

    def pop(self, number: int) -> Any:
        """The state of a job that leaves; None: it has trained no epoch; False: it is not here."""
        for submitted in self.waiting:
            if submitted.spec.number == number:
                self.waiting.remove(submitted)
                return submitted.state
        if number not in self.slots:
            return False
        state = self.state(number) if self.slots[number][1] else None
        del self.slots[number]
        return state

    def close(self) -> None:
        self.slots.clear()


@pytest.fixture(autouse=True)
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "TrialGrouper", OneGroup)
    monkeypatch.setattr(pack_executor, "as_built", lambda model: contextlib.nullcontext())
    monkeypatch.setattr(driver, "search_chunk_bytes", lambda data: None)
    monkeypatch.setattr(driver, "_STATES", 0.0)


class Search:
    """Submits jobs, keeps what is reported of them, and answers.

    Args:
        n: Jobs in all.
        pool: The machines.
        rng: Draws the answers.
        pauses: Whether jobs are paused now and then, and resumed later.
    """

    def __init__(self, n: int, pool: InProcessPool, rng: random.Random, pauses: bool) -> None:
        self.n, self.pool, self.rng, self.pauses = n, pool, rng, pauses
        data: Any = None
        self.executor = RemoteExecutor(data, pool)
        self.executor.judged = pauses
        self.histories: dict[int, list[float]] = {}
        self.failed: dict[int, str] = {}
        self.stopped: dict[int, int] = {}
        self.paused: list[int] = []
        self.begun = 0

    def ask(self) -> bool:
        if self.begun == self.n:
            return False
        number, self.begun = self.begun, self.begun + 1
        hparams = {"fails": 2} if number % 97 == 0 else {}
        spec = JobSpec(number, number, number * 7 + 1, EPOCHS, hparams)
        self.executor.submit(Job(number, spec.seed, EPOCHS, 1, None, lambda: None, spec=spec))
        return True

    def report(self, report: EpochReport) -> Answer:
        found = self.histories.setdefault(report.number, [])
        assert report.number not in self.failed and report.number not in self.stopped
        assert report.epoch == len(found) + 1, "once, and in order"
        found.append(report.logs["loss"])
        if report.last or not self.pauses:
            return "continue"
        if self.rng.random() < 0.05:
            self.stopped[report.number] = report.epoch
            return "stop"
        if self.rng.random() < 0.1:
            self.paused.append(report.number)
            return "pause"
        return "continue"

    def fail(self, number: int, error: BaseException) -> None:
        assert number not in self.failed
        self.failed[number] = str(error)

    def run(self) -> None:
        executor = self.executor
        while True:
            while executor.demand.hungry and self.ask():
                pass
            while self.paused and (self.rng.random() < 0.5 or not executor.busy):
                executor.resume(self.paused.pop(self.rng.randrange(len(self.paused))))
            if not executor.busy:
                break
            executor.demand.all_asked = self.begun == self.n
            executor.advance(self.report, self.ask_ahead, self.fail)
        executor.close()

    def ask_ahead(self) -> bool:
        return self.executor.demand.room and self.rng.random() < 0.5 and self.ask()

    def check(self) -> None:
        assert sorted({*self.histories, *self.failed}) == list(range(self.n))
        for number, found in self.histories.items():
            epochs = self.stopped.get(number, EPOCHS)
            epochs = 2 if number in self.failed else epochs
            assert found == history(number * 7 + 1, epochs), number
        fails = {number for number in range(0, self.n, 97) if self.stopped.get(number, 3) > 2}
        assert set(self.failed) == fails


def disturbed(n: int, n_jobs: int, seed: int, *, pauses: bool) -> Search:
    rng = random.Random(seed)

    def fault(host: str, number: int) -> Any:
        dice = rng.random()
        if dice < 0.002:
            pool.join()
        if dice > 0.998 and len(pool.names) > 2:
            pool.leave(host)
        return rng.choice(("before", "after", "late")) if rng.random() < 0.02 else None

    pool = InProcessPool(FakeHost, n, fault, rng.choice)
    search = Search(n_jobs, pool, rng, pauses)
    search.run()
    return search


@pytest.mark.parametrize(
    ("machines", "jobs"),
    [(40, 1_000), pytest.param(200, 10_000, marks=pytest.mark.slow)],
)
def test_hundreds_of_machines_and_thousands_of_trials(machines: int, jobs: int) -> None:
    search = disturbed(machines, jobs, 0, pauses=False)
    search.check()
    assert sum(len(order.submit) for _, order in search.pool.orders) > jobs, "some came again"


@pytest.mark.parametrize("seed", range(20))
def test_pauses_and_ends_among_deaths(seed: int) -> None:
    disturbed(random.Random(seed).randrange(1, 9), 300, seed, pauses=True).check()


@pytest.mark.parametrize("machines", [2, 5])
def test_a_trial_that_kills_every_worker_fails_and_no_other_does(machines: int) -> None:
    """Others train on, so the workers that die are never so many in a row that the search ends."""
    deaths = 0

    def fault(host: str, number: int) -> Any:
        nonlocal deaths
        (order,) = [order for name, order in pool.orders if name == host][number : number + 1]
        kills = any(each.spec.number == 3 for each in order.submit)
        deaths += kills
        assert deaths < 40, "round and round"
        return "before" if kills else None

    pool = InProcessPool(FakeHost, machines, fault, random.Random(0).choice)
    search = Search(60, pool, random.Random(0), pauses=False)
    search.run()
    assert sorted(search.failed) == [0, 3], "0 fails by itself"
    assert "workers died with this trial" in search.failed[3]
    assert all(
        found == history(number * 7 + 1, EPOCHS)
        for number, found in search.histories.items()
        if number
    )
    assert len(search.histories) == 59


@pytest.mark.slow
def test_the_driver_keeps_nothing_of_jobs_that_have_ended() -> None:
    """1,500 jobs: what this package holds after them is what it held after the first 500."""
    held = []
    remote = tracemalloc.Filter(True, str(Path(driver.__file__).parent / "*"))

    class Watched(Search):
        def ask(self) -> bool:
            if self.begun in (500, 1_500) and len(held) < self.begun // 500:
                self.pool.orders.clear()  # which the pool keeps for tests
                gc.collect()
                taken = tracemalloc.take_snapshot().filter_traces([remote])
                held.append(sum(one.size for one in taken.statistics("filename")))
            return super().ask()

    rng = random.Random(0)
    pool = InProcessPool(FakeHost, 8, lambda host, number: None, rng.choice)
    tracemalloc.start()
    try:
        search = Watched(1_501, pool, rng, pauses=False)
        search.run()
    finally:
        tracemalloc.stop()
    search.check()
    before, after = held
    assert after < before + 50_000, "less than 50 bytes for each job that has ended"
