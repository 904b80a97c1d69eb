"""The machines of a Ray cluster as a ``HostPool``: one actor for each device."""

from __future__ import annotations

import contextlib
import itertools
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.errors import ClusterError, PacelineError, UsageError
from paceline.executor.ray.actor import RayWorker
from paceline.executor.ray.session import RaySession
from paceline.executor.ray.settings import RaySettings
from paceline.executor.remote.host import HostOptions, library_versions
from paceline.executor.remote.messages import ErrorText, HostFacts, RoundOrder
from paceline.executor.remote.pool import (
    Event,
    MachineAnswered,
    MachineJoined,
    MachineLeaving,
    MachineLeft,
)

#: Seconds for which the search waits for the first worker that Ray finds a place for.
PATIENCE = 60.0
#: Seconds for which it waits for machines when all workers are gone.
WITHOUT_WORKERS = 600.0
#: Seconds between two looks for machines that have come.
_LOOKS = 5.0
#: Seconds without the cluster's head after which the search ends; Ray would end the process soon.
WITHOUT_HEAD = 20.0
#: Workers that may die in a row before one of them has answered an order.
_DEATHS = 5
#: Seconds without a heartbeat after which a worker that has an order is ended. A worker sends
#: heartbeats while it compiles or builds: another thread of it does.
SILENCE = 60.0
#: Seconds between two questions whether a worker that has an order is alive.
_BEAT = 5.0
#: The group of an actor's methods that run beside an order.
_HEALTH = "health"


@dataclass(frozen=True)
class WorkerPlace:
    """Room for one worker."""

    node: str | None  # Ray's id of the machine; None: Ray chooses
    cpus: int
    gpus: int


@dataclass(eq=False)
class _Worker:
    """An actor."""

    name: str  # what people call it
    actor: Any  # Ray's handle
    place: WorkerPlace  # where it is to run
    ready: bool = False  # whether it has said hello
    node: str | None = None  # the name of its machine, once Ray has found one
    node_id: str | None = None  # Ray's id of that machine
    leaving: bool = False  # whether the search was told that the machine will go soon
    busy: bool = False  # whether it has an order, or loads what it needs, and has not answered
    asked: bool = False  # whether it was asked for a heartbeat, and has not given it
    silent: float = 0.0  # seconds since its last heartbeat, while it has an order


class RayPool:
    """Actors of a search.

    Each is sent ``packed`` first, a reference in Ray's store. ``digest`` is of the code of
    ``build`` here. ``note`` is told of workers that cannot be used.
    """

    def __init__(
        self,
        session: RaySession,
        settings: RaySettings,
        packed: Any,
        options: HostOptions,
        digest: str | None,
        note: Callable[[str], None],
    ) -> None:
        self._session, self._ray, self._settings = session, session.ray, settings
        self._packed, self._options, self._digest = packed, options, digest
        self._note = note
        self._workers: dict[str, _Worker] = {}
        # Running calls: Ray's reference -> the worker, and the method that was called.
        self._calls: dict[Any, tuple[_Worker, str]] = {}
        self._news: list[Event] = []
        self._refused: list[WorkerPlace] = []  # of machines whose trials would differ
        self._names = itertools.count()
        self._began, self._looked = time.monotonic(), 0.0
        self._checked, self._headless = self._began, 0.0
        self._deaths = 0
        self._told = False  # that no worker is left
        self._any_ready = False  # whether any worker has answered yet that it can train
        self._look()

    # -- HostPool ----------------------------------------------------------------------------------

    def send(self, host: str, order: RoundOrder) -> None:
        """See ``HostPool``."""
        worker = self._workers.get(host)
        if worker is not None:
            worker.busy, worker.silent = True, 0.0
            self._call(worker, "round", order)

    def wait(self, seconds: float) -> list[Event]:
        """See ``HostPool``."""
        self._look()
        events, self._news = self._news, []
        calls = list(self._calls)
        if calls:
            ready, _ = self._ray.wait(calls, num_returns=1, timeout=0.0 if events else seconds)
            if ready and len(calls) > 1:
                ready, _ = self._ray.wait(calls, num_returns=len(calls), timeout=0.0)
            for call in ready:
                events += self._answer(call)
        elif not events and seconds:
            time.sleep(seconds)
        events += self._end_silent()
        self._check_patience()
        return events

    def remove(self, host: str) -> None:
        """See ``HostPool``."""
        worker = self._workers.pop(host, None)
        if worker is not None:
            self._forget(worker)
            self._looked = 0.0  # another one takes its place

    def close(self) -> None:
        """See ``HostPool``."""
        for host in list(self._workers):
            self._forget(self._workers.pop(host))
        self._packed = None
        self._session.close()

    # -- workers -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """Starts workers if there is a place for one."""
        now = time.monotonic()
        if now - self._looked < _LOOKS:
            return
        self._looked = now
        if not self._session.head_answers():
            if not self._headless:
                self._headless = now
                self._note(
                    "the head of the Ray cluster does not respond; waiting for at most "
                    f"{WITHOUT_HEAD:.0f} s"
                )
            if now - self._headless >= WITHOUT_HEAD:
                raise ClusterError(
                    "executor: the head of the Ray cluster has not responded for "
                    f"{now - self._headless:.0f} s. All results are saved. Continue with "
                    "`paceline resume` on another cluster, or on this machine (--executor auto)."
                )
            return
        self._headless = 0.0
        leaving = self._session.leaving()
        for worker in self._workers.values():
            if worker.ready and worker.node_id in leaving and not worker.leaving:
                worker.leaving = True
                self._news.append(MachineLeaving(worker.name))
        taken = [*(worker.place for worker in self._workers.values()), *self._refused]
        for place in places(self._ray, self._settings):
            if place in taken:
                taken.remove(place)
            elif place.node not in leaving:
                self._start(place)

    def _start(self, place: WorkerPlace) -> None:
        strategy = None
        if place.node is not None:
            from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
                NodeAffinitySchedulingStrategy,
            )

            strategy = NodeAffinitySchedulingStrategy(place.node, soft=False)
        runtime = self._settings.runtime_env
        actor = (
            self._ray.remote(concurrency_groups={_HEALTH: 1})(RayWorker)
            .options(
                num_cpus=place.cpus,
                num_gpus=place.gpus,
                resources=dict(self._settings.resources) or None,
                scheduling_strategy=strategy or "SPREAD",
                max_restarts=0,
                max_task_retries=0,
                runtime_env=None if runtime is None else dict(runtime),
            )
            .remote(place.gpus > 0)
        )
        worker = _Worker(f"{next(self._names)}", actor, place)
        self._workers[worker.name] = worker
        self._call(worker, "ping")

    def _call(self, worker: _Worker, method: str, *arguments: Any) -> None:
        reference = getattr(worker.actor, method).remote(*arguments)
        self._calls[reference] = worker, method

    def _answer(self, call: Any) -> list[Event]:
        """What the end of a call means."""
        if call not in self._calls:
            return []  # of a worker whose other call has just said that it is gone
        worker, method = self._calls.pop(call)
        worker.silent = 0.0
        if self._workers.get(worker.name) is not worker:
            return []
        try:
            found = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            self._raise(worker, error)
        except self._ray.exceptions.RayError as error:
            if "creation task" in str(error) and not self._any_ready:
                raise UsageError(
                    f"executor: a worker cannot start ({_text(error)}). Its Paceline may be "
                    "another version. Install the same versions everywhere, or let Ray install "
                    "them: paceline.Ray(runtime_env={'pip': [...]})."
                ) from error
            return self._died(worker, _text(error))
        if method == "ping":
            worker.node, worker.node_id = found
            cores = max(1, int(worker.place.cpus))
            worker.busy = True  # loading libraries and data; it can stand still there, too
            self._call(worker, "hello", self._packed, self._options.on(cores))
            return []
        if method == "hello":
            return self._welcome(worker, found)
        if method == "is_alive":
            worker.asked = False
            return []
        self._deaths, worker.busy = 0, False
        return [MachineAnswered(worker.name, found)]

    def _welcome(self, worker: _Worker, facts: HostFacts) -> list[Event]:
        worker.busy = False
        why = self._mismatch(facts)
        if why is None:
            worker.ready = self._any_ready = True
            return [MachineJoined(worker.name, facts)]
        text = f"executor: the worker on {facts.node} has {why}, so that histories would differ"
        if not self._any_ready:
            raise UsageError(
                f"{text}. Install the same versions everywhere, or let Ray install them: "
                "paceline.Ray(runtime_env={'pip': [...]})."
            )
        if worker.place not in self._refused:
            self._note(f"{text}, so it is not used")
        self._refused.append(worker.place)
        self._workers.pop(worker.name)
        self._forget(worker)
        return []

    def _mismatch(self, facts: HostFacts) -> str | None:
        ours = {"python": platform.python_version(), **library_versions()}
        for name, version in ours.items():
            theirs = facts.versions.get(name, "none")
            digits = 2 if name == "python" else None
            if theirs.split(".")[:digits] != version.split(".")[:digits]:
                return f"{name} {theirs}, but this process has {version}"
        if facts.digest != self._digest:
            return "another code of build(hp)"
        return None

    def _end_silent(self) -> list[Event]:
        """Ends workers that owe an answer and send no heartbeats: stopped, or out of reach.

        Ray watches machines and connections. A process that stands still has both, and its call
        would never end.
        """
        now = time.monotonic()
        if now - self._checked < _BEAT / 5:
            return []
        # This process may have stood still itself, or built models: workers were not heard then.
        passed, self._checked = min(now - self._checked, _BEAT), now
        events: list[Event] = []
        for worker in list(self._workers.values()):
            if not worker.busy:
                continue
            worker.silent += passed
            if worker.asked and worker.silent >= SILENCE:
                why = f"no heartbeat for {worker.silent:.0f} s"
                events += self._died(worker, why)
            elif not worker.asked and worker.silent >= _BEAT:
                worker.asked = True
                beside = worker.actor.is_alive.options(concurrency_group=_HEALTH)
                self._calls[beside.remote()] = worker, "is_alive"
        return events

    def _died(self, worker: _Worker, why: str) -> list[Event]:
        """A worker cannot be reached: for good, even if it answers later."""
        self._workers.pop(worker.name)
        self._forget(worker)
        self._deaths += 1
        if self._deaths > _DEATHS:
            raise ClusterError(
                f"executor: {self._deaths} workers in a row died before they had trained an epoch; "
                f"the last one: {why}"
            )
        self._looked = 0.0  # another one takes its place
        return [MachineLeft(worker.name, why)] if worker.ready else []

    def _raise(self, worker: _Worker, error: Any) -> None:
        """Raises what a worker's method has raised, as an error of this process."""
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, PacelineError):
            raise ErrorText.of(cause).error() from error
        node = worker.node or "a machine"
        if isinstance(cause, ModuleNotFoundError):
            raise UsageError(
                f"executor: the worker on {node} has no module {cause.name!r}. Install it on that "
                "machine, or send its folder: paceline.Ray(runtime_env={'working_dir': '.'})."
            ) from error
        raise ClusterError(
            f"executor: the worker on {node} failed: {type(cause).__name__}: {cause}"
        ) from error

    def _forget(self, worker: _Worker) -> None:
        self._calls = {c: call for c, call in self._calls.items() if call[0] is not worker}
        with contextlib.suppress(Exception):  # it may be gone, and so may the cluster
            self._ray.kill(worker.actor, no_restart=True)

    def _check_patience(self) -> None:
        if any(worker.node is not None for worker in self._workers.values()):
            self._began = time.monotonic()  # Ray has found a place, and libraries load there
            self._told = False
            return
        passed = time.monotonic() - self._began
        if self._any_ready and passed >= _BEAT and not self._told:
            self._told = True
            self._note(
                f"no worker is left; waiting for machines for at most {WITHOUT_WORKERS:.0f} s"
            )
        patience = WITHOUT_WORKERS if self._any_ready else PATIENCE
        if passed < patience:
            return
        wanted = self._settings
        asked = {
            "CPU": next((w.place.cpus for w in self._workers.values()), wanted.cpus),
            "GPU": wanted.gpus,
            **wanted.resources,
        }
        asked = {name: amount for name, amount in asked.items() if amount}
        there = {
            name: amount
            for name, amount in self._ray.cluster_resources().items()
            if not name.startswith("node:")
        }
        free = self._ray.available_resources()
        raise ClusterError(
            f"executor: for {patience:.0f} s no machine of the Ray cluster had room for a worker, "
            f"which needs {asked or 'a core'}. The cluster has {there}, of which "
            f"{ {name: free.get(name, 0.0) for name in there} } are free. Ask for less with "
            "paceline.Ray(cpus=, gpus=, resources=), or wait until other jobs have finished."
        )


def places(ray: Any, settings: RaySettings) -> list[WorkerPlace]:
    """The places that there are now; ``ray`` is the module, connected."""
    nodes = [node for node in ray.nodes() if node.get("Alive")]
    totals = [node.get("Resources", {}) for node in nodes]
    gpus = settings.gpus
    if gpus is None:
        gpus = 1 if any(total.get("GPU", 0) >= 1 for total in totals) else 0
    if isinstance(settings.workers, int):
        cpus = settings.cpus or _share(totals, settings.workers, gpus)
        return [WorkerPlace(None, cpus, gpus)] * settings.workers
    found: list[WorkerPlace] = []
    for node, total in zip(nodes, totals, strict=True):
        cores = int(total.get("CPU", 0))
        n = int(total.get("GPU", 0)) if gpus else 1
        if settings.cpus is not None:
            n = min(n, cores // settings.cpus) if gpus else cores // settings.cpus
        for name, amount in settings.resources.items():
            n = min(n, int(total.get(name, 0) // amount)) if amount else n
        if not cores or not n:
            continue
        cpus = settings.cpus or max(1, cores // n)
        found += [WorkerPlace(node["NodeID"], cpus, gpus)] * n
    return found


def _share(totals: list[dict[str, float]], workers: int, gpus: int) -> int:
    """The cores of each of this many workers."""
    if gpus:
        shares = [t.get("CPU", 0) // t["GPU"] for t in totals if t.get("GPU", 0) >= 1]
        return max(1, int(min(shares, default=1)))
    cores = sorted((int(total.get("CPU", 0)) for total in totals), reverse=True)
    share = max(1, sum(cores) // workers)
    while share > 1 and sum(n // share for n in cores) < workers:
        share -= 1
    return share


def _text(error: Exception) -> str:
    """An error of Ray in one line; such errors hold the logs of whole processes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # What was raised when an actor was made comes last, after its traceback.
    return lines[-1] if "creation task" in lines[0] else f"{type(error).__name__}: {lines[0]}"
