"""How much of a core the search itself takes on a cluster, by machines that train nothing.

Machines of this process answer at once with reports of made-up epochs. So all time is that of
``RemoteExecutor``: handing out jobs, taking answers in. What the study does with a report, building
and tracing trials (once for each, not for each report), and Ray's own part come on top.

Asserted: at epochs of 10 ms a report takes at most 0.3 ms of processor time. Without --quick the
figures go to results/cluster.json, and page_tables.py writes them into the guide of clusters.

    python benchmarks/cluster.py [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from in_process_pool import InProcessPool
from one_group import OneGroup
from paceline.executor import pack_executor as protocol
from paceline.executor.base import EpochReport, Job, JobSpec
from paceline.executor.remote import driver
from paceline.executor.remote.messages import (
    HostFacts,
    HostState,
    RoundAnswer,
    RoundOrder,
    SentWeights,
    SubmittedJob,
)

SLOTS, EPOCHS = 8, 50
#: Processor time of a report at most, in milliseconds.
ALLOWED = 0.3
#: Seconds of an epoch, and numbers of machines.
SECONDS = (0.01, 0.1, 1.0)
MACHINES = (8, 32, 128, 512)


class Machine:
    """Trains nothing, and says that it has.

    Args:
        epoch: Seconds that an epoch is said to take.
    """

    spent = 0.0  # by all machines, in seconds of the processor

    def __init__(self, epoch: float) -> None:
        self._epoch = epoch
        self._waiting: deque[SubmittedJob] = deque()
        self._slots: dict[int, list[int]] = {}

    def hello(self) -> HostFacts:
        """What it is."""
        return HostFacts({}, None, "made up", SLOTS, time.perf_counter(), "here", 0)

    def round(self, order: RoundOrder) -> RoundAnswer:
        """As many epochs as fit into the seconds of an order."""
        began = time.process_time()
        answer = RoundAnswer()
        self._waiting.extend(order.submit)
        for _ in range(max(1, round(order.seconds / self._epoch))):
            ended = self._train(answer)
            if ended and not self._waiting:
                break
        packs: list[Any] = [("p", "vectorized", list(self._slots))]
        counts = {"compiled": 1, "from_cache": 0}
        look = HostState(counts, (1, 1), packs, [], {"vectorized"}, SLOTS)
        done = RoundAnswer(answer.reports, host=look)
        Machine.spent += time.process_time() - began
        return done

    def _train(self, answer: RoundAnswer) -> bool:
        while self._waiting and len(self._slots) < SLOTS:
            spec = self._waiting.popleft().spec
            self._slots[spec.number] = [0, spec.epochs]
        ended = False
        for number, (epoch, epochs) in list(self._slots.items()):
            last, logs = epoch + 1 == epochs, {"loss": 1.0, "val_loss": 1.0}
            answer.reports.append(
                EpochReport(
                    number,
                    epoch + 1,
                    logs,
                    0.0,
                    "p",
                    "vectorized",
                    SentWeights(number, epoch + 1, None),
                    last=last,
                )
            )
            self._slots[number] = [epoch + 1, epochs]
            if last:
                del self._slots[number]
                ended = True
        return ended

    def close(self) -> None:
        """Nothing to end."""


def without_models() -> None:
    """Has the executor trace nothing: its jobs have no models."""
    driver.TrialGrouper = OneGroup  # type: ignore[misc, assignment]
    protocol.as_built = lambda model: contextlib.nullcontext()  # type: ignore[assignment]
    driver.search_chunk_bytes = lambda data: None  # type: ignore[assignment]


def milliseconds(machines: int, epoch: float, n_jobs: int, *, judged: bool) -> float:
    """Processor time of the search for a report, in milliseconds."""
    Machine.spent = 0.0
    data: Any = None
    executor = driver.RemoteExecutor(data, InProcessPool(lambda: Machine(epoch), machines))
    executor.judged = judged
    begun, reports, spent = 0, 0, 0.0

    def report(_: EpochReport) -> str:
        nonlocal reports
        reports += 1
        return "continue"

    def failed(number: int, error: BaseException) -> None:
        raise AssertionError(f"job {number}: {error}")

    while True:
        while executor.demand.hungry and begun < n_jobs:
            spec = JobSpec(begun, begun, begun, EPOCHS, {})
            executor.submit(Job(begun, begun, EPOCHS, 1, None, lambda: None, spec=spec))
            begun += 1
        if not executor.busy:
            break
        executor.demand.all_asked = begun == n_jobs
        began = time.process_time()
        executor.advance(report, lambda: False, failed)  # type: ignore[arg-type]
        spent += time.process_time() - began
    executor.close()
    assert reports == n_jobs * EPOCHS, "each epoch was reported once"
    return 1000 * (spent - Machine.spent) / reports


def measured(counts: tuple[int, ...], waves: int) -> list[dict[str, Any]]:
    """Measure all numbers of machines at all epochs.

    Args:
        counts: Numbers of machines.
        waves: Jobs for each slot.

    Returns:
        For each: whether a pruner judges every epoch, machines, slots of each, seconds of an epoch,
        and the milliseconds of the processor that a report takes.
    """
    rows = []
    for judged in (False, True):
        for machines in counts:
            for epoch in SECONDS:
                each = milliseconds(machines, epoch, machines * SLOTS * waves, judged=judged)
                row = {"judged": judged, "machines": machines, "slots": SLOTS, "epoch": epoch}
                rows.append({**row, "ms": round(each, 4)})
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, and fail where a report takes too long."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few machines and jobs; keeps nothing")
    quick = parser.parse_args().quick
    without_models()
    found = machine.facts()
    print(machine.describe(found), flush=True)
    rows = measured(MACHINES[:2], 1) if quick else measured(MACHINES, 2)
    if not quick:
        machine.keep("cluster", {"machine": found, "epochs": EPOCHS, "rows": rows})
    worst = max(row["ms"] for row in rows if row["epoch"] == SECONDS[0])
    if worst > ALLOWED:
        raise SystemExit(f"a report takes {worst:.2f} ms of the processor, more than {ALLOWED}")


if __name__ == "__main__":
    main()
