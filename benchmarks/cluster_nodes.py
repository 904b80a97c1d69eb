"""What a second node of one core brings to a search on a Ray cluster: MNIST, on this machine.

The same search runs on one node and then on two. Each node, its worker and their threads may use
one core, node 0 the first and node 1 the second; the search itself and the cluster's head may use
both. So with two nodes they take time from the workers, which on a real cluster they would not: the
cores that each takes are told, and the ratio if these were given back to the workers.

Steady state is the time in which all workers train: each has trained an epoch, and none has trained
its last. Trials by seconds on the clock, of each worker from an epoch's end to another's. What else
ran on the machine is told too: beyond a tenth of a core, run it again.

Asserted: histories are the same, and two nodes train 1.7 times what one trains, if the head and the
search were elsewhere. Without --quick the figures go to results/cluster_nodes.json.

    make bench-cluster-nodes    (PACELINE_DATA names the folder of mnist.npz; ARGS=--quick tries it)
"""

from __future__ import annotations

import argparse
import bisect
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine
import pytest
from works import WORKS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import paceline
from clusters import records
from on_ray.conftest import Nodes  # sets what Ray reads when it is imported
from on_ray.hook import Hook
from on_ray.processes import family
from paceline.tuner.search.loop import EpochReports

#: Two nodes train at least so many times what one trains.
PROMISED = 1.7
SLOTS = 4
#: Cores that others may take before the figures say nothing.
QUIET = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int | str) -> float:
    """Processor time that a process has taken; 0.0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def machine_seconds() -> float:
    """Processor time that all of the machine has taken."""
    user, nice, system, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system) / _TICKS


class Spending:
    """Samples what processes take, in a thread.

    Args:
        nodes: The cluster.
        pids: The workers: name -> process.
    """

    def __init__(self, nodes: Nodes, pids: dict[str, int]) -> None:
        self._nodes, self._pids = nodes, pids
        self._samples: list[tuple[float, dict[str, float]]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Spending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(0.2):
            self._samples.append((time.perf_counter(), self._look()))

    def _look(self) -> dict[str, float]:
        workers = set(self._pids.values())

        def of(node: Any) -> float:
            heads = [info.process.pid for infos in node.all_processes.values() for info in infos]
            pids = {pid for each in heads for pid in family(each)}
            return sum(map(processor_seconds, pids - workers))

        return {
            "workers": sum(map(processor_seconds, workers)),
            "search": processor_seconds("self"),
            "head": of(self._nodes.cluster.head_node),
            "nodes": sum(map(of, self._nodes.nodes)),
            "all": machine_seconds(),
        }

    def between(self, begin: float, end: float) -> dict[str, float]:
        """Cores that each has taken between two moments; "others" are not of the search."""
        moments = [moment for moment, _ in self._samples]
        first, last = (self._samples[bisect.bisect(moments, t) - 1] for t in (begin, end))
        seconds = last[0] - first[0]
        cores = {name: (last[1][name] - first[1][name]) / seconds for name in first[1]}
        cores["others"] = cores.pop("all") - sum(cores.values())
        return {name: round(value, 3) for name, value in cores.items()}


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """A block in which processes are begun that may use one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def rates(reports: dict[str, list[float]], begin: float, end: float) -> list[float]:
    """Epochs of trials per second of each worker in steady state, between two of its reports."""
    found = []
    for moments in reports.values():
        inside = [moment for moment in moments if begin <= moment <= end]
        # Reports of one epoch of a pack come at once, and so count once it is over.
        after = [moment for moment in inside if moment > inside[0] + 0.05]
        found.append(len(after) / (inside[-1] - inside[0]))
    return found


def measured(n: int, n_trials: int, epochs: int) -> tuple[dict[str, Any], list[Any]]:
    """Search on so many nodes.

    Returns:
        What was measured, and the records of all trials.
    """
    work = WORKS["mnist"]
    (x, y), validation = work.data()
    nodes, reports = Nodes(0), dict[str, list[float]]()
    receive = EpochReports.receive

    def received(self: EpochReports, report: Any) -> Any:
        reports.setdefault(report.worker, []).append(time.perf_counter())
        return receive(self, report)

    try:
        for core in sorted(os.sched_getaffinity(0))[:n]:
            with on_core(core):
                nodes.add(store=2 * x.nbytes)
        with pytest.MonkeyPatch.context() as patch:
            hook = Hook(patch)
            patch.setattr(EpochReports, "receive", received)
            tuner = paceline.Tuner(
                work.build(), study=f"nodes-{n}", executor=paceline.Ray(address=nodes.address),
                sampler="random", parallel_trials=SLOTS, plan="vectorized",
                objective=work.objective,
                on_note=lambda text: print(f"  {text}", flush=True),
            )  # fmt: skip
            began = time.perf_counter()
            with Spending(nodes, hook.pids) as spending:
                tuner.search(
                    x, y, validation_data=validation, epochs=epochs, n_trials=n_trials,
                    batch_size=work.batch_size,
                )  # fmt: skip
            whole = time.perf_counter() - began
    finally:
        nodes.shutdown()
    assert len(reports) == n, "each node has trained"
    begin = max(moments[0] for moments in reports.values())
    end = min(moments[-1] for moments in reports.values())
    rate, cores = sum(rates(reports, begin, end)), spending.between(begin, end)
    row = {
        "nodes": n,
        "rate": round(rate, 3),
        "rate_of_a_core": round(rate / cores["workers"], 3),
        "startup": round(begin - began, 1),
        "steady": round(end - begin, 1),
        "whole": round(whole, 1),
        "cores": cores,
    }
    print(row, flush=True)
    return row, records(tuner)


def main() -> None:
    """Measure; fail where two nodes train too little."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few trials; keeps nothing")
    quick = parser.parse_args().quick
    n_trials, epochs = (16, 3) if quick else (48, 6)
    facts = machine.facts()
    print(machine.describe(facts), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["PACELINE_CACHE_DIR"] = folder
        (one, first), (two, second) = (measured(n, n_trials, epochs) for n in (1, 2))
        os.chdir("/")
    assert first == second, "trials are the same on one node and on two"
    ratio, cores = two["rate"] / one["rate"], two["cores"]
    given_back = (cores["search"] + cores["head"] + cores["nodes"]) / cores["workers"]
    found = {"ratio": round(ratio, 3), "ratio_elsewhere": round(ratio * (1 + given_back), 3)}
    print(found, flush=True)
    if not quick:
        size = {"trials": n_trials, "epochs": epochs, "slots": SLOTS}
        machine.keep("cluster_nodes", {"machine": facts, **size, "rows": [one, two], **found})
    others = max(row["cores"]["others"] for row in (one, two))
    if others > QUIET:
        print(f"others took {others:.2f} cores: these figures say nothing, measure again")
    elif found["ratio_elsewhere"] < PROMISED:
        raise SystemExit(f"two nodes train {found['ratio_elsewhere']} times what one trains")


if __name__ == "__main__":
    main()
