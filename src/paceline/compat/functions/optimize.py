"""``paceline.optimize``: trains the fits of Optuna's objectives in packs."""

from __future__ import annotations

import copy
import functools
import gc
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import keras
import optuna
from optuna.trial import FrozenTrial, TrialState

from paceline.compat.functions import optuna_private
from paceline.compat.functions.heartbeats import TrialHeartbeats
from paceline.compat.functions.in_flight import TrialsInFlight
from paceline.compat.functions.study_log import StudyLog
from paceline.compat.functions.summary import FitSummary
from paceline.compat.interception import CallOutcome, Engine, FunctionCall, check_concurrent
from paceline.compat.progress import say
from paceline.errors import UsageError

Objective = Callable[[optuna.Trial], float | Sequence[float]]
StudyCallback = Callable[[optuna.Study, FrozenTrial], None]


def optimize(
    study: optuna.Study,
    objective: Objective,
    n_trials: int | None = None,
    timeout: float | None = None,
    n_jobs: int = 1,
    catch: Iterable[type[Exception]] | type[Exception] = (),
    callbacks: Iterable[StudyCallback] | None = None,
    gc_after_trial: bool = False,
    show_progress_bar: bool = False,
    *,
    in_flight: int | None = None,
    concurrent: bool | None = None,
) -> None:
    """Optimizes an objective as ``study.optimize`` does, and trains many of its trials at once.

    The objective stays as it is: it takes a trial, builds, compiles and fits Keras models, and
    returns a number. Trials are ordinary trials of the study, its sampler, pruner and storage. The
    arguments up to ``show_progress_bar`` mean what they mean in ``optuna.Study.optimize``.

    If the objective raises something that is not in ``catch``, no further trial begins. Trials that
    train are finished first, as with ``n_jobs`` in Optuna, and then the error is raised.

    Args:
        study: A study of Optuna.
        objective: Takes an ``optuna.Trial``, and returns its value, or several values.
        n_trials: Number of trials. None: until ``timeout``, ``study.stop()`` or Ctrl-C.
        timeout: Seconds after which no further trial begins.
        n_jobs: Has no effect: ``in_flight`` says how many trials train at once.
        catch: Exceptions that fail their trial and do not end the optimization.
        callbacks: Functions of study and trial, called after each trial.
        gc_after_trial: Whether Python's garbage collector runs after each trial.
        show_progress_bar: Whether Optuna's progress bar is shown.
        in_flight: The most trials that are in flight at once. None: as many as the sampler can
            afford. Samplers that don't learn get all trials at once. Others get few at the start,
            and more as trials end.
        concurrent: Whether trials begin while others train. False: never. True: always. None:
            unless they share something that would change their results.

    Raises:
        UsageError: An argument cannot work. Nothing was trained.
        RuntimeError: The study is being optimized already, by the function that calls this one.
        TypeError: ``study`` is not a study of Optuna.

    Example:
        >>> import optuna
        >>> import paceline
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> study = optuna.create_study()
        >>> paceline.optimize(study, lambda trial: trial.suggest_float("x", -1, 1) ** 2, n_trials=8)
        >>> len(study.trials)
        8
    """
    if not isinstance(study, optuna.Study):
        raise TypeError(
            f"study must be an optuna.Study, got {type(study).__name__}. Pass what "
            "optuna.create_study returns."
        )
    _check(objective, n_trials, in_flight)
    check_concurrent(concurrent)
    caught = tuple(catch) if isinstance(catch, Iterable) else (catch,)
    if optuna_private.is_optimizing(study):
        raise RuntimeError("Nested invocation of `Study.optimize` method isn't allowed.")
    why = _why_optuna_runs(study)
    if why is not None:
        say(why)
        optuna.Study.optimize(
            study,
            objective,
            n_trials,
            timeout,
            n_jobs,
            caught,
            None if callbacks is None else list(callbacks),
            gc_after_trial,
            show_progress_bar,
        )
        return
    log = StudyLog(study, n_trials, timeout, bar=show_progress_bar)
    if n_jobs != 1:
        log.say(
            f"n_jobs={n_jobs} has no effect: trials train at once in one program, and in_flight "
            "of paceline.optimize limits their number"
        )
    number = TrialsInFlight(study, n_trials, in_flight)
    ends = caught, list(callbacks or ()), gc_after_trial
    StudyLoop(study, objective, n_trials, timeout, number, log, *ends).run(concurrent)


@dataclass(eq=False, repr=False)
class StudyLoop:
    """Asks the study for trials, runs their objectives in the engine, and reports each trial."""

    study: optuna.Study
    objective: Objective
    n_trials: int | None
    timeout: float | None
    in_flight: TrialsInFlight
    log: StudyLog
    catch: tuple[type[Exception], ...]
    callbacks: list[StudyCallback]
    collects: bool  # garbage, after each trial
    _running: dict[int, optuna.Trial] = field(default_factory=dict)  # by number
    _n_asked: int = 0
    _n_ended: int = 0
    _error: Exception | None = None  # why no further trial begins
    _began: float = field(default_factory=time.monotonic)

    def run(self, concurrent: bool | None) -> None:
        """Runs trials until one of the reasons to end."""
        optuna_private.forget_stop(self.study)
        summary, heartbeats = FitSummary(), TrialHeartbeats(self.study, self._running)
        with ExitStack() as stack:
            stack.callback(self.log.close)
            stack.enter_context(optuna_private.optimizing(self.study))
            stack.callback(optuna_private.end_session, self.study)
            stack.callback(heartbeats.close)
            engine = Engine(notes=self.log.say, noun="trial", concurrent=concurrent)
            stack.enter_context(engine)
            engine.look_at(_of_user(self.objective))
            try:
                n_calls = self.in_flight.most(0)
                if self.n_trials is not None:
                    n_calls = min(n_calls, self.n_trials)
                with closing(engine.run(self._calls(heartbeats), n_calls=n_calls)) as outcomes:
                    for outcome in outcomes:
                        pruned = isinstance(outcome.error, optuna.TrialPruned)
                        summary.add(outcome, "pruned" if pruned else "failed")
                        self._take(outcome)
                        if self.collects:
                            gc.collect()
            except BaseException as error:
                self._fail_running(error)
                raise
        if (line := summary.line("trial")) and not self.log.is_quiet:
            self.log.say(line)
        if self._error is not None:
            raise self._error

    # -- ask ---------------------------------------------------------------------------------------

    def _calls(self, heartbeats: TrialHeartbeats) -> Iterator[FunctionCall | None]:
        self._began = time.monotonic()
        while not self._is_over():
            if not self.in_flight.has_room(len(self._running), self._n_ended):
                yield None
                continue
            heartbeats.before_ask()
            trial = self.study.ask()
            self._n_asked += 1
            self._running[trial.number] = trial
            heartbeats.begin(trial)
            yield FunctionCall(trial.number, functools.partial(self._evaluate, trial))

    def _is_over(self) -> bool:
        if self._error is not None or optuna_private.has_stopped(self.study):
            return True
        if self.n_trials is not None and self._n_asked >= self.n_trials:
            return True
        return self.timeout is not None and time.monotonic() - self._began >= self.timeout

    def _evaluate(self, trial: optuna.Trial) -> Any:
        """Calls the objective, in the trial's own thread."""
        with optuna_private.optimizing(self.study):
            try:
                return self.objective(trial)
            finally:
                optuna_private.end_session(self.study)

    # -- tell --------------------------------------------------------------------------------------

    def _take(self, outcome: CallOutcome) -> None:
        trial = self._running.pop(outcome.number)
        self._n_ended += 1
        error, state = outcome.error, None
        if error is not None:
            pruned = isinstance(error, optuna.TrialPruned)
            state = TrialState.PRUNED if pruned else TrialState.FAIL
        try:
            told, warning = _tell(self.study, trial, outcome.value, state)
            self.log.ended(told, outcome.value, error, warning)
            if state == TrialState.FAIL and error is not None and not isinstance(error, self.catch):
                self._end(error)
                return
            for callback in self.callbacks:
                callback(self.study, copy.deepcopy(told))
        except Exception as raised:  # of a sampler, or of a callback
            self._end(raised)

    def _end(self, error: Exception) -> None:
        """No further trial begins, but running ones train to their ends."""
        if self._error is not None:
            return
        self._error = error
        if self._running:
            self.log.say(
                f"{type(error).__name__}: {error}. No further trial begins; {len(self._running)} "
                "that train are finished first. Ctrl-C fails them"
            )

    def _fail_running(self, error: BaseException) -> None:
        """Fails the trials whose functions were unwound."""
        running = list(self._running.values())
        self._running.clear()
        for trial in running:
            told, _ = _tell(self.study, trial, None, TrialState.FAIL, skip_if_finished=True)
            self.log.ended(told, None, error, None)


def _tell(
    study: optuna.Study,
    trial: optuna.Trial,
    value: Any,
    state: TrialState | None,
    *,
    skip_if_finished: bool = False,
) -> tuple[FrozenTrial, str | None]:
    """Reports a trial to the study; returns it, and a warning about its value, if any."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = study.tell(trial, value, state, skip_if_finished=skip_if_finished)
    warning = None
    if state is None and told.state == TrialState.FAIL and caught:
        warning = str(caught.pop().message)  # a line of the log, as in Study.optimize
    for each in caught:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return told, warning


def _check(objective: Any, n_trials: Any, in_flight: Any) -> None:
    if not callable(objective):
        raise UsageError(
            f"objective must be a function of a trial, got {type(objective).__name__}. Pass the "
            "function that you pass to study.optimize."
        )
    numbers = {"n_trials": n_trials, "in_flight": in_flight}
    for name, number in numbers.items():
        if number is None:
            continue
        if isinstance(number, bool) or not hasattr(number, "__index__"):
            raise UsageError(f"{name} must be an integer or None, got {number!r}. Pass an integer.")
    if in_flight is not None and in_flight < 1:
        raise UsageError(f"in_flight must be at least 1, got {in_flight!r}. Pass 1 or more.")


def _why_optuna_runs(study: optuna.Study) -> str | None:
    """Why ``Study.optimize`` must run the study, a text for the user; None: it need not."""
    if keras.backend.backend() != "jax":
        from paceline.tuner.search.own_process import why_in_session  # half of what a loop imports
        from paceline.tuner.search.progress import unpacked_backend

        if (why := why_in_session({})) is not None:
            return unpacked_backend(why)
    if optuna_private.is_in_one_thread(study):
        return (
            "the storage is SQLite in memory, which only one thread sees, so trials run one at a "
            "time. Leave storage out of create_study, or name a file, to train them in packs"
        )
    return None


def _of_user(objective: Any) -> dict[str, Any]:
    """The user's function, and its arguments besides the trial, by name."""
    given: dict[str, Any] = {}
    while isinstance(objective, functools.partial):
        given |= {f"argument {i}": each for i, each in enumerate(objective.args)}
        given |= objective.keywords
        objective = objective.func
    return {getattr(objective, "__name__", "objective"): objective, **given}
