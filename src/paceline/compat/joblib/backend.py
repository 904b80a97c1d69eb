"""The backend: it collects the jobs of a ``Parallel``, and runs them when joblib wants a result."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

# The public names for backends of others; nothing here reads or writes joblib's files.
from joblib.parallel import ParallelBackendBase, SequentialBackend  # noqa: TID251

from paceline.compat.functions.summary import FitSummary
from paceline.compat.interception import CallOutcome, Engine, FunctionCall, check_concurrent
from paceline.compat.interception.fit_patch import is_intercepted
from paceline.compat.joblib.own_callbacks import give_own_callbacks
from paceline.compat.joblib.shared_objects import array_bytes, shared_objects
from paceline.errors import UsageError
from paceline.executor.process import host_bytes
from paceline.tuner.search.progress import to_stderr

#: Jobs that run at once without a limit of the user: as many as the engine takes.
_MOST = 512
#: Share of the free memory that the arrays of running jobs may take.
_SHARE = 0.25
#: Options of ``parallel_config`` besides the backend: whether each call of ``Parallel`` prints a
#: summary, and arguments of ``Engine``.
_OPTIONS = ("progress", "concurrent", "slots", "plan")


class PacelineBackend(ParallelBackendBase):
    """Runs the jobs of ``joblib.Parallel`` so that the fits of Keras models in them train in packs.

    Its name is "paceline": ``joblib.parallel_config(backend="paceline")``. Jobs run in this
    process, in threads that take turns. ``options`` are those of ``_OPTIONS``.
    """

    default_n_jobs = -1
    uses_threads = True
    supports_sharedmem = True
    # The thread that asks for a result runs the jobs.
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
        self._runs: list[_JobRun] = []  # several if the user reads several generators of results

    @property
    def supports_return_generator(self) -> bool:
        """Whether results may be taken one by one."""
        return True

    @property
    def supports_timeout(self) -> bool:
        """Whether a job may have a timeout. joblib warns of one, because jobs share their packs."""
        return False

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Returns how many jobs may run at once; 1 inside a job."""
        if n_jobs == 0:
            raise ValueError("n_jobs must not be 0. Leave it out to train as many fits as fit.")
        if is_intercepted():
            return 1  # the fits of a job train together with those of other jobs
        return _MOST if n_jobs is None or n_jobs < 0 else n_jobs

    def configure(self, n_jobs: int | None = 1, parallel: Any = None, *_: Any, **__: Any) -> int:
        """Prepares for a call of ``Parallel``, and returns ``effective_n_jobs``."""
        self.parallel = parallel
        self._n_jobs = self.effective_n_jobs(n_jobs)
        if parallel is not None and self._n_jobs > 1:
            parallel.batch_size = "auto"  # one, because fits in one job train one after another
            parallel.return_ordered = True  # "generator_unordered" allows any order
        return self._n_jobs

    def start_call(self) -> None:
        """Begins a call of ``Parallel``."""
        self._run = _JobRun(self, self._n_jobs, self._options)
        self._runs.append(self._run)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Any:
        """Keeps a job until joblib asks for a result; returns an object with ``get``."""
        assert self._run is not None
        return self._run.submit(func, callback)

    apply_async = submit  # for joblib before 1.5

    def stop_call(self) -> None:
        """Ends the calls of ``Parallel`` whose jobs have all ended."""
        self._close(lambda run: run.is_done)

    terminate = stop_call

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Drops all jobs, and unwinds the running ones."""
        self._close(lambda _: True)

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Returns the backend of a ``Parallel`` inside a job, which runs its jobs in order."""
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
    callbacks: list[tuple[Any, Any]]  # those of its arguments, and its own copies
    outcome: CallOutcome | None = None  # None until it has ended

    def get(self, timeout: float | None = None) -> Any:
        """Returns what the job returned, or raises what it raised; runs jobs until it has ended."""
        outcome = self.run.wait(self)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value


class _JobRun:
    """The jobs of one call of ``Parallel``, of which at most ``n_jobs`` run at once."""

    def __init__(self, backend: PacelineBackend, n_jobs: int, options: dict[str, Any]) -> None:
        self._backend, self._n_jobs = backend, n_jobs
        own = {name: option for name, option in options.items() if name != "progress"}
        self._engine = Engine(notes=to_stderr, noun="job", **own)
        self._summary = FitSummary() if options.get("progress", True) else None
        self._outcomes: Generator[CallOutcome, None, None] | None = None
        self._numbers = itertools.count()
        self._waiting: deque[_Job] = deque()
        self._running: dict[int, _Job] = {}
        self._before: _Job | None = None  # the job that began last
        self._last = -1  # the greatest number of a finished job
        self._closed = False
        self._exhausted = False  # whether a job has ended without another one in its place

    @property
    def is_done(self) -> bool:
        """Whether no job waits or runs."""
        return not self._waiting and not self._running

    def submit(self, function: Callable[[], Any], callback: Callable[[Any], Any] | None) -> _Job:
        """Adds a job."""
        # In the order of the jobs, from the random state of the user's seed.
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
                    "has failed. Use a separate parallel_config for each Parallel."
                )
            if self._outcomes is None:
                calls = self._calls()
                self._outcomes = self._engine.run(calls, n_calls=len(self._waiting))
            outcome = next(self._outcomes, None)
            if outcome is None:
                self._outcomes = None
                continue
            ended = self._running.pop(outcome.number)
            ended.outcome = outcome
            if self._summary is not None:
                self._summary.add(outcome)
            if outcome.number > self._last:  # as if the jobs had run one after another
                self._last = outcome.number
                for given, own in ended.callbacks:
                    vars(given).update(vars(own))
            self._tell(ended)
        return job.outcome

    def close(self) -> None:
        """Drops the jobs that have not ended."""
        self._closed = True
        self._waiting.clear()
        self._running.clear()
        if self._outcomes is not None:
            self._outcomes.close()
        self._engine.close()
        if self._summary is not None and (line := self._summary.line("job")):
            to_stderr(line)

    def _tell(self, job: _Job) -> None:
        """Reports a finished job to joblib, which submits the next one."""
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
            if not self._waiting or len(self._running) >= limit:
                yield None
                continue
            job = self._waiting.popleft()
            beside = self._before or (self._waiting[0] if self._waiting else None)
            if beside is not None:
                self._engine.look_at(shared_objects(beside.function, job.function))
            self._before = job
            number = next(self._numbers)
            self._running[number] = job
            yield FunctionCall(number, job.function, job.seed)
