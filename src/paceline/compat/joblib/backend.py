"""The backend: it collects the jobs of a ``Parallel``, and runs them when a result is asked for."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

# The names that joblib publishes for backends of others; nothing here reads or writes its files.
from joblib.parallel import ParallelBackendBase, SequentialBackend  # noqa: TID251

from paceline.compat.interception import CallOutcome, Engine, FunctionCall, check_concurrent
from paceline.compat.interception.fit_patch import is_intercepted
from paceline.compat.joblib.own_callbacks import give_own_callbacks
from paceline.compat.joblib.shared_objects import array_bytes, shared_objects
from paceline.errors import UsageError
from paceline.executor.process import host_bytes
from paceline.tuner.search.progress import to_stderr

#: Jobs under way at once where the user does not limit them: as many as the engine takes.
_MOST = 512
#: Share of the free memory that the arrays of the jobs under way may take.
_SHARE = 0.25
#: What ``parallel_config`` may be given beside the backend: arguments of ``Engine``.
_OPTIONS = ("concurrent", "slots", "plan")


class PacelineBackend(ParallelBackendBase):
    """Runs the jobs of ``joblib.Parallel`` so that the fits of Keras models in them train in packs.

    Its name is "paceline": ``joblib.parallel_config(backend="paceline")``. Jobs run in this
    process, in threads of which one runs at a time. ``options`` are those of ``_OPTIONS``.
    """

    default_n_jobs = -1
    uses_threads = True
    supports_sharedmem = True
    # Results are taken in the thread that asks for them, which runs the jobs meanwhile.
    supports_retrieve_callback = False

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(nesting_level, inner_max_num_threads)
        for name in options.keys() - _OPTIONS:
            raise UsageError(
                f"{name} must be an option of the backend 'paceline', got {options[name]!r}. Use "
                f"{', '.join(_OPTIONS)}."
            )
        check_concurrent(options.get("concurrent"))
        self._options = options
        self._n_jobs = _MOST
        self._run: _JobRun | None = None  # of the call of ``Parallel`` that submits jobs now
        self._runs: list[_JobRun] = []  # several where results are taken from several generators

    @property
    def supports_return_generator(self) -> bool:
        """Whether results may be taken one by one."""
        return True

    @property
    def supports_timeout(self) -> bool:
        """Whether a job may have a timeout; joblib warns of one, since jobs share their packs."""
        return False

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Returns how many jobs may be under way at once; 1 inside a job."""
        if n_jobs == 0:
            raise ValueError("n_jobs must not be 0. Leave it out to train as many fits as fit.")
        if is_intercepted():
            return 1  # the fits of a job train beside those of other jobs
        return _MOST if n_jobs is None or n_jobs < 0 else n_jobs

    def configure(self, n_jobs: int | None = 1, parallel: Any = None, *_: Any, **__: Any) -> int:
        """Prepares for a call of ``Parallel``, and returns ``effective_n_jobs``."""
        self.parallel = parallel
        self._n_jobs = self.effective_n_jobs(n_jobs)
        if parallel is not None and self._n_jobs > 1:
            parallel.batch_size = "auto"  # one: fits in one job would train one after the other
            parallel.return_ordered = True  # any order will do for "generator_unordered"
        return self._n_jobs

    def start_call(self) -> None:
        """Begins a call of ``Parallel``."""
        self._run = _JobRun(self, self._n_jobs, self._options)
        self._runs.append(self._run)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Any:
        """Keeps a job until a result is asked for; returns an object with ``get``."""
        assert self._run is not None
        return self._run.submit(func, callback)

    def apply_async(
        self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None
    ) -> Any:
        """As ``submit``, for joblib before 1.5."""
        return self.submit(func, callback)

    def stop_call(self) -> None:
        """Ends the calls of ``Parallel`` whose jobs have all ended."""
        self._close(lambda run: run.is_done)

    def terminate(self) -> None:
        """Ends the calls of ``Parallel`` whose jobs have all ended."""
        self.stop_call()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Drops all jobs, and unwinds those under way."""
        self._close(lambda _: True)

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Returns what runs a ``Parallel`` inside a job: one after the other, within the job."""
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None

    def _close(self, which: Callable[[_JobRun], bool]) -> None:
        for run in filter(which, list(self._runs)):
            self._runs.remove(run)
            run.close()


@dataclass(eq=False)
class _Job:
    """A job that was submitted."""

    run: _JobRun
    function: Callable[[], Any]
    callback: Callable[[Any], Any] | None  # submits the next job, if there is one
    seed: int
    callbacks: list[tuple[Any, Any]]  # those that it was given, and its own copies
    outcome: CallOutcome | None = None  # None while it waits or is under way

    def get(self, timeout: float | None = None) -> Any:
        """Returns what the job returned, or raises what it raised; runs jobs until it has ended."""
        outcome = self.run.wait(self)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value


class _JobRun:
    """The jobs of one call of ``Parallel``; ``n_jobs`` of them are under way at most."""

    def __init__(self, backend: PacelineBackend, n_jobs: int, options: dict[str, Any]) -> None:
        self._backend, self._n_jobs = backend, n_jobs
        self._engine = Engine(notes=to_stderr, noun="job", **options)
        self._outcomes: Generator[CallOutcome, None, None] | None = None
        self._numbers = itertools.count()
        self._waiting: deque[_Job] = deque()
        self._under_way: dict[int, _Job] = {}
        self._before: _Job | None = None  # the job that began last
        self._last = -1  # the greatest number of a job that has ended
        self._closed = False
        self._exhausted = False  # whether a job has ended and none has come in its place

    @property
    def is_done(self) -> bool:
        """Whether no job waits, and none is under way."""
        return not self._waiting and not self._under_way

    def submit(self, function: Callable[[], Any], callback: Callable[[Any], Any] | None) -> _Job:
        """Adds a job."""
        # In the order of the jobs, from the state that the user's seed has set.
        seed = random.getrandbits(32) ^ int(np.random.randint(2**32, dtype=np.uint32))
        job = _Job(self, function, callback, seed, give_own_callbacks(function))
        self._waiting.append(job)
        return job

    def wait(self, job: _Job) -> CallOutcome:
        """Runs jobs until ``job`` has ended."""
        while job.outcome is None:
            if self._closed:
                raise RuntimeError(
                    "The job was dropped, because another Parallel of the same parallel_config "
                    "has failed. Use a parallel_config for each Parallel."
                )
            if self._outcomes is None:
                calls = self._calls()
                self._outcomes = self._engine.run(calls, n_calls=len(self._waiting))
            outcome = next(self._outcomes, None)
            if outcome is None:
                self._outcomes = None
                continue
            ended = self._under_way.pop(outcome.number)
            ended.outcome = outcome
            if outcome.number > self._last:  # as if the jobs had run one after the other
                self._last = outcome.number
                for given, own in ended.callbacks:
                    vars(given).update(vars(own))
            self._tell(ended)
        return job.outcome

    def close(self) -> None:
        """Drops the jobs that have not ended."""
        self._closed = True
        self._waiting.clear()
        self._under_way.clear()
        if self._outcomes is not None:
            self._outcomes.close()
        self._engine.close()

    def _tell(self, job: _Job) -> None:
        """Tells joblib that a job has ended, so that it submits the next one."""
        if job.callback is None:
            return
        others, self._backend._run = self._backend._run, self
        n_waiting = len(self._waiting)
        try:
            job.callback(job)
        finally:
            self._backend._run = others
        self._exhausted = len(self._waiting) == n_waiting

    def _calls(self) -> Iterator[FunctionCall | None]:
        limit = self._n_jobs
        if limit > 2 and self._waiting:
            size = array_bytes(self._waiting[0].function)
            limit = max(2, min(limit, int(_SHARE * host_bytes() / max(1, size))))
        while not (self._exhausted and not self._waiting):
            if not self._waiting or len(self._under_way) >= limit:
                yield None
                continue
            job = self._waiting.popleft()
            beside = self._before or (self._waiting[0] if self._waiting else None)
            if beside is not None:
                self._engine.look_at(shared_objects(beside.function, job.function))
            self._before = job
            number = next(self._numbers)
            self._under_way[number] = job
            yield FunctionCall(number, job.function, job.seed)
