"""``Scan``: trains a function's models with the permutations of a params dictionary."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import keras
import pandas as pd

from paceline.compat.hints import add_hint, hint_for
from paceline.compat.interception import CallOutcome, Engine, FunctionCall, check_concurrent
from paceline.compat.progress import ProgressBar
from paceline.compat.talos import evaluate, reduction
from paceline.compat.talos.errors import (
    TalosDataError,
    TalosParamsError,
    TalosReturnError,
    TalosTypeError,
)
from paceline.compat.talos.evaluate import ScanResults, check_inputs, check_split, split
from paceline.compat.talos.kept_models import KeptModels
from paceline.compat.talos.logs import best_row, column, write_beside
from paceline.compat.talos.rounds import Rounds, RunFolder, ScanRound, run_paths
from paceline.compat.talos.settings import identity, read_options, scan_details
from paceline.compat.talos.space import ParamSpace
from paceline.errors import BuildError, shortened

#: A scan gives up after this many failed permutations if none has worked.
_FAILURES = 5


class Scan:
    """Trains ``model(x_train, y_train, x_val, y_val, params)`` for each permutation of ``params``.

    Permutations train in packs. Each has the same result as alone.

    N: training examples. V: validation examples.

    Args:
        x: Features [N, ...]: an array, or with ``multi_input`` a list of arrays.
        y: Targets [N, ...].
        params: Name -> list of values or ``(start, end, steps)``; or a ``ParamSpace``.
        model: ``function(x_train, y_train, x_val, y_val, params) -> (history, keras_model)``.
        experiment_name: Folder for the log and the models; None: ``talos_scans``.
        x_val: Validation features [V, ...]; None: the share ``val_split`` of x.
        y_val: Validation targets [V, ...]; None: the share ``val_split`` of y.
        val_split: Share of the examples to validate on; 0: none, if the function passes
            ``validation_split`` to ``fit``.
        multi_input: Whether x is a list of arrays, for a model with several inputs.
        random_method: How permutations are drawn if a limit leaves some out.
        seed: Decides the split, the permutations, the weights and the data order.
        performance_target: ``[metric, threshold, is_loss]``. The results end with the first
            permutation that reaches the threshold.
        fraction_limit: Share of the permutations to try.
        round_limit: Number of permutations to try.
        time_limit: ``"%Y-%m-%d %H:%M"``: no permutation begins after that time.
        boolean_limit: ``function(params) -> bool``; permutations with a false value are left out.
        reduction_method: One of ``reduction.METHODS``, or a function of the scan; None: no
            reduction.
        reduction_interval: Number of permutations between two reductions.
        reduction_window: Number of the latest permutations that a reduction uses.
        reduction_threshold: Correlation from which a value is removed.
        reduction_metric: The metric that a reduction uses.
        minimize_loss: Whether low values of ``reduction_metric`` are better.
        disable_progress_bar: Whether the progress bar is left out.
        print_params: Whether each permutation is printed when it begins.
        clear_session: Has no effect: names of layers start from scratch in each permutation anyway.
        save_weights: Whether weights are kept in memory, for ``best_model`` and the like.
        save_models: Whether every model is saved in the folder of the experiment.
        **options: Arguments by their names of 2018 (``dataset_name``, ``grid_downsample``, ...),
            and these of 2.x: ``experiment_dir`` is the folder of this scan. ``resume=True`` resumes
            the scan in it. ``stop_after`` is the number of permutations after which the scan ends.
            ``retain_models=True`` keeps every model as it is. And ``concurrent``: whether
            permutations begin while others train. False: never. True: always. None: unless they
            share something that would change their results; a note then names it.

    Attributes:
        data: A table with one row for each permutation that trained: times, last values of
            metrics, params.
        details: Settings and times of the scan.
        round_history: For each row of ``data``, metric -> one float per epoch.
        round_times: A table with start, end and duration of each permutation.
        learning_entropy: A table that says how learning was spread over the epochs.
        peak_epochs: A table with the epoch, from 0, of the best value of each metric.
        saved_models, saved_weights: JSON and weights for each row of ``data``; None if not kept.
        failures: The permutations that failed, with params and error.
        run_dir: Folder of this scan: ``results.csv``, ``metadata.json``, files for ``resume``.
        status: "complete"; "paused" after ``stop_after``, ``time_limit`` or Ctrl-C.
        x, y, params: The arguments.

    Raises:
        TalosParamsError, TalosTypeError, TalosDataError: An argument cannot work. Nothing was
            trained.
        TalosReturnError: The function returned something other than ``(history, model)``.
        UsageError: ``concurrent`` is not True, False or None.
        Exception: No permutation worked. It is the error of the first one.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        params: Any,
        model: Callable[..., Any],
        experiment_name: str | None = None,
        x_val: Any = None,
        y_val: Any = None,
        val_split: float = 0.3,
        multi_input: bool = False,
        random_method: str = "uniform_mersenne",
        seed: int | None = None,
        performance_target: Any = None,
        fraction_limit: float | None = None,
        round_limit: int | None = None,
        time_limit: str | None = None,
        boolean_limit: Callable[[dict[str, Any]], Any] | None = None,
        reduction_method: Any = None,
        reduction_interval: int = 50,
        reduction_window: int = 20,
        reduction_threshold: float = 0.2,
        reduction_metric: str = "val_acc",
        minimize_loss: bool = False,
        disable_progress_bar: bool = False,
        print_params: bool = False,
        clear_session: bool = True,
        save_weights: bool = True,
        save_models: bool = False,
        **options: Any,
    ) -> None:
        given = {
            "experiment_name": experiment_name,
            "fraction_limit": fraction_limit,
            "boolean_limit": boolean_limit,
            "time_limit": time_limit,
            "minimize_loss": minimize_loss,
            "clear_session": clear_session,
        }
        more = read_options(options, given)
        check_function(model)
        reduction.check(reduction_method)
        self.x, self.y, self.params, self.model = x, y, params, model
        self.experiment_name = str(given["experiment_name"])
        self.val_split, self.multi_input, self.seed = val_split, multi_input, seed
        self.random_method, self.performance_target = random_method, performance_target
        self.fraction_limit, self.round_limit = given["fraction_limit"], round_limit
        self.time_limit, self.boolean_limit = given["time_limit"], given["boolean_limit"]
        self.reduction_method, self.reduction_metric = reduction_method, reduction_metric
        self.reduction_interval, self.reduction_window = reduction_interval, reduction_window
        self.reduction_threshold, self.minimize_loss = reduction_threshold, given["minimize_loss"]
        self.disable_progress_bar, self.print_params = disable_progress_bar, print_params
        self.clear_session = given["clear_session"]
        self.save_weights, self.save_models = save_weights, save_models
        self.custom_objects = more["custom_objects"]
        self._concurrent = check_concurrent(more["concurrent"])
        direction = "min" if self.minimize_loss else "max"
        self.objective = more["objective"] or {"metric": reduction_metric, "direction": direction}
        self._beside = bool(more["beside"])
        self._target = check_target(performance_target)
        check_inputs(self.x, self.multi_input)
        if (x_val is None) != (y_val is None):
            raise TalosDataError("x_val and y_val belong together. Pass both, or none.")
        self.custom_val_split = x_val is not None
        if not self.custom_val_split:
            check_split(x, y, val_split)
        self.param_object = self._space(params, more["search_method"])
        self.folder = Path(self.experiment_name)
        self.run_dir, self.log_path = run_paths(self.folder, more["experiment_dir"])
        self.experiment_id = self.run_dir.name
        shuffle = None if self.custom_val_split else bool(more["shuffle"])
        decides = identity([x, x_val], [y, y_val], self, shuffle)
        split_seed = random.getrandbits(32) if seed is None else int(seed)
        self._run_folder = RunFolder(self.run_dir, decides, split_seed, resume=more["resume"])
        self._split(x_val, y_val, more["shuffle"])
        self._rounds = Rounds(
            self.param_object, self.run_dir, self.log_path, bool(more["last_epoch_value"])
        )
        self._kept_models = KeptModels(
            self._run_folder.models,
            in_memory=save_weights,
            as_files=save_models or (save_weights and more["experiment_dir"] is not None),
            as_they_are=more["retain_models"],
        )
        self.data = pd.DataFrame()
        self._open: dict[int, dict[str, Any]] = {}  # number -> params, of running permutations
        self._last: int | None = None  # the first permutation that has reached the target
        self.status, self._stop_after = "running", more["stop_after"]
        if more["resume"]:
            self._rounds.read()
        self._begun = len(self._rounds.begun) - len(self._rounds.again)
        self._reduced_at = self._begun
        self._run_folder.write_metadata(self._metadata())
        self._rounds.write()  # a killed scan may have left a part of a line
        self._run()

    # -- before ------------------------------------------------------------------------------------

    def _split(self, x_val: Any, y_val: Any, shuffle: bool) -> None:
        if self.custom_val_split:
            parts = (self.x, self.y, x_val, y_val)
        else:
            seed = self._run_folder.split_seed
            parts = split(self.x, self.y, self.val_split, shuffle=shuffle, seed=seed)
        self.x_train, self.y_train, self.x_val, self.y_val = parts

    def _space(self, params: Any, order: str | None) -> ParamSpace:
        if isinstance(params, ParamSpace):
            return params
        names = "random_method fraction_limit round_limit time_limit boolean_limit seed".split()
        space = ParamSpace(params, **{name: getattr(self, name) for name in names})
        space.put_in_order(order)
        return space

    # -- the scan ----------------------------------------------------------------------------------

    def _run(self) -> None:
        n_all = len(self.param_object) + len(self._rounds.again)
        started = time.time()
        with (
            ProgressBar(
                n_all, show=not self.disable_progress_bar, noun="permutations", speaker="talos"
            ) as bar,
            Engine(notes=bar.say, noun="permutation", concurrent=self._concurrent) as engine,
        ):
            self._bar = bar
            names = ("model", "x_train", "y_train", "x_val", "y_val")
            engine.look_at({name: getattr(self, name) for name in names})
            try:
                with closing(engine.run(self._calls(), n_calls=n_all)) as outcomes:
                    for outcome in outcomes:
                        self._take(outcome)
                        n_ended = self._begun - len(self._open)
                        bar.show(n_ended, len(self.param_object), self._rounds.best())
                        if self._last is not None and not any(n < self._last for n in self._open):
                            break
                if self._rounds.failed and not self._rounds.done:
                    self._give_up("every permutation failed")
                if self.status == "running":
                    self.status = "complete"
            except KeyboardInterrupt:
                self.status = "paused"
                bar.say(
                    "interrupted: data has the finished permutations. To resume the scan, pass "
                    f"experiment_dir={str(self.run_dir)!r} and resume=True"
                )
            except BaseException:
                self.status = "failed"
                raise
            finally:
                self._finish(started)

    def _calls(self) -> Iterator[FunctionCall | None]:
        reduces = self.reduction_method is not None
        every = reduction.interval(self) if reduces else 0
        while self._last is None:
            if self._stop_after is not None:
                n_done = len(self._rounds.done)
                if n_done + len(self._open) >= self._stop_after:
                    if n_done >= self._stop_after:
                        self.status = "paused"
                        return
                    yield None
                    continue
            if reduces and self._begun % every == 0 and self._begun > self._reduced_at:
                while self._open:
                    yield None
                self._reduced_at = self._begun
                self.data = self._rounds.table()
                if len(self.data):
                    reduction.reduce(self)
            following = self._rounds.next()
            if following is None:
                if len(self.param_object):  # the time is up
                    self.status = "paused"
                if not self._begun:
                    self._bar.say(f"no permutation began: {self.param_object.why_none()}")
                return
            number, params = following
            if self.print_params:
                self._bar.say(str(params))
            self._begun += 1
            self._open[number] = params
            data = (self.x_train, self.y_train, self.x_val, self.y_val)
            # A copy: the function may write to its params, and the log needs them unchanged.
            function = partial(self.model, *data, dict(params))
            seed = None if self.seed is None else (self.seed + number) % 2**32
            yield FunctionCall(number, function, seed)

    def _take(self, outcome: CallOutcome) -> None:
        number, params = outcome.number, self._open.pop(outcome.number)
        if self._last is not None and number > self._last:
            return  # Talos would not have begun it
        times = outcome.began, outcome.ended, outcome.seconds
        found = ScanRound(number, self._rounds.begun[number], params, *times)
        try:
            if outcome.error is not None:
                raise outcome.error
            found.history, model = read_outcome(outcome, self.model)
        except Exception as error:
            found.error = error
            self._rounds.failed.append(found)
            text = str(error) if isinstance(error, BuildError) else _described(error)
            text = f"{text.rstrip('.')}. {hint}" if (hint := hint_for(error)) else text
            self._bar.say(f"permutation {number} failed, with {params}: {text}")
            if len(self._rounds.failed) >= _FAILURES and not self._rounds.done:
                self._give_up(f"{_FAILURES} permutations failed, and none worked")
            return
        self._kept_models.add(number, model)
        self._rounds.add(found)
        if self._target is not None:
            metric, threshold, loss = self._target
            value = found.history[column(metric, found.history, "performance_target")][-1]
            if value <= threshold if loss else value >= threshold:
                self._last = number
                for each in self._rounds.drop_after(number):
                    self._kept_models.drop(each.round_index)

    def _give_up(self, what: str) -> None:
        """Raises the error of the first permutation, as Talos does, with a note."""
        failure = min(self._rounds.failed, key=lambda each: each.round_index)
        first = f"{what}. The first one, with {failure.params}, raised this error"
        failure.error.add_note(shortened(first))
        add_hint(failure.error)
        raise failure.error

    # -- results -----------------------------------------------------------------------------------

    def _finish(self, started: float) -> None:
        rounds = self._rounds
        rounds.write()
        self.data = rounds.table()
        if self._beside:
            write_beside(self.data, self.folder, self._bar.say)
        self.round_history = [found.history for found in rounds.done]
        self.round_times = self.data[["start", "end", "duration"]]
        self.learning_entropy = rounds.entropies()
        self.peak_epochs = rounds.peaks()
        numbers = [found.round_index for found in rounds.done]
        self.saved_models = [self._kept_models.config(number) for number in numbers]
        self.saved_weights = [self._kept_models.weights(number) for number in numbers]
        self.failures = [{"params": f.params, "error": _described(f.error)} for f in rounds.failed]
        self.details = pd.Series(
            {
                **scan_details(self),
                "identity_hash": self._run_folder.identity_hash,
                "seconds": round(time.time() - started, 3),
                "rounds": len(rounds.done),
                "failed": len(rounds.failed),
            },
            dtype=object,
        )
        self._run_folder.write_metadata(self._metadata(self.details.to_dict()))

    def _metadata(self, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {
            "experiment_name": self.experiment_name,
            "params": getattr(self.params, "params", self.params),
            "parameter_columns": self.parameter_columns,
            "objective": self.objective,
            "details": {"status": self.status} if details is None else details,
        }

    @property
    def peak_epochs_df(self) -> pd.DataFrame:
        """The name of ``peak_epochs`` before version 1."""
        return self.peak_epochs

    @property
    def parameter_columns(self) -> dict[str, str]:
        """Parameter -> its column of ``data``."""
        return self._rounds.parameter_columns

    @property
    def metric_columns(self) -> list[str]:
        """Columns of ``data`` that are metrics."""
        return self._rounds.metrics

    def best_row(self, metric: str | None, asc: bool) -> int:
        """Returns the row of ``data`` that is best in a metric; None: in the ``objective``."""
        if metric is None:
            asc = self.objective.get("direction") == "min"
            metric = str(self.objective["metric"])
        return best_row(self.data, metric, asc)

    def activate(
        self, row: int, saved: bool = False, custom_objects: dict[str, Any] | None = None
    ) -> Any:
        """Returns the trained model of a row of ``data``; ``saved``: from its file."""
        number = self._rounds.done[row].round_index
        return self._kept_models.load(number, saved, custom_objects or self.custom_objects)

    def best_model(
        self,
        metric: str | None = "val_acc",
        asc: bool = False,
        saved: bool = False,
        custom_objects: dict[str, Any] | None = None,
    ) -> Any:
        """Returns the trained model of the best permutation.

        Args:
            metric: A column of ``data``.
            asc: Whether low values are better.
            saved: Whether the model is loaded from the file of ``save_models``; else from memory.
            custom_objects: Name -> class or function, for Keras to load the model.

        Raises:
            TalosParamsError: ``data`` has no such column, or no number in it.
            TalosModelError: The model was not kept.
        """
        return self.activate(self.best_row(metric, asc), saved, custom_objects)

    # Talos has it as a function, too, so the scan is its first argument.
    evaluate_models = evaluate.evaluate_models

    def __repr__(self) -> str:
        failed = f", {len(self._rounds.failed)} failed" if self._rounds.failed else ""
        return f"<Scan {self.experiment_name}: {len(self._rounds.done)} permutations{failed}>"


# -- functions of Talos that are methods here ------------------------------------------------------

#: The name in ``talos.scan.scan_addon``.
func_evaluate = evaluate.evaluate_models


def best_model(scan: ScanResults, metric: str | None = "val_acc", asc: bool = False) -> int:
    """Returns the row of ``data`` of a ``Scan`` or ``Restore`` that is best in a metric."""
    return scan.best_row(metric, asc)


def activate_model(
    scan: ScanResults,
    model_id: int,
    saved: bool = False,
    custom_objects: dict[str, Any] | None = None,
    model_factory: Any = None,
) -> Any:
    """Returns the trained model of a row of ``data``; arguments as for ``Evaluate.evaluate``."""
    return scan.activate(int(model_id), saved, custom_objects)


def func_best_model(
    scan: ScanResults,
    metric: str | None = "val_acc",
    asc: bool = False,
    saved: bool = False,
    custom_objects: dict[str, Any] | None = None,
) -> Any:
    """Returns the trained model that is best in a metric; arguments as for ``Scan.best_model``."""
    return activate_model(scan, best_model(scan, metric, asc), saved, custom_objects)


# -- the user's function ---------------------------------------------------------------------------


def check_function(model: Any) -> None:
    """Checks the function of a scan before anything is trained."""
    if not callable(model) or isinstance(model, keras.Model):
        raise TalosTypeError(
            f"model must be a function, got {type(model).__name__}. Pass a function "
            "model(x_train, y_train, x_val, y_val, params) that builds, compiles and fits a model, "
            "and returns (history, model)."
        )
    try:
        inspect.signature(model).bind(*range(5))
    except TypeError as error:
        raise TalosTypeError(
            f"model must take x_train, y_train, x_val, y_val, params, but {_name(model)} does not: "
            f"{error}."
        ) from error
    except ValueError:  # Python knows no signature of this function
        pass


def check_target(target: Any) -> tuple[str, float, bool] | None:
    """Checks ``performance_target``: metric, threshold, and whether low values are better."""
    if target is None:
        return None
    fine = (
        isinstance(target, (list, tuple))
        and len(target) == 3
        and isinstance(target[0], str)
        and isinstance(target[1], (int, float))
        and isinstance(target[2], bool)
    )
    if not fine:
        raise TalosParamsError(
            f"performance_target must be [metric, threshold, is_loss], got {target!r}. Pass a list "
            "such as ['val_acc', 0.9, False]."
        )
    return tuple(target)


def read_outcome(
    outcome: CallOutcome, function: Callable[..., Any]
) -> tuple[dict[str, list[float]], Any]:
    """Returns the history, metric -> one float per epoch, and the model of the user's function."""
    value, name = outcome.value, _name(function)
    if isinstance(value, Mapping):  # functions of Talos 2 may return their results as a dictionary
        value = _history_of_dict(value), value.get("_model", value.get("model"))
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise _wrong_return(name, "nothing" if value is None else type(value).__name__)
    history, model = value
    if hasattr(history, "state_dict") and not isinstance(history, keras.Model):
        model = history  # (module with a history, its parameters), of PyTorch
    if isinstance(history, keras.Model) and not isinstance(model, keras.Model):
        raise _wrong_return(name, "(model, history)")
    found = getattr(history, "history", history)
    if not isinstance(found, Mapping):
        raise _wrong_return(name, f"{type(history).__name__} in place of the history")
    if not found:
        raise _wrong_return(name, "an empty history" if outcome.fits else "no history of model.fit")
    return {str(k): _floats(str(k), values, name) for k, values in found.items()}, model


def _wrong_return(name: str, got: str) -> TalosReturnError:
    return TalosReturnError(
        f"model: {name} must return (history, model), got {got}. End the function with 'return "
        "history, model', with the history that model.fit returned."
    )


def _floats(metric: str, values: Any, name: str) -> list[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise TalosReturnError(
            f"model: {metric!r} in the history of {name} must be a list with one number for each "
            f"epoch, got {values!r}."
        ) from error


def _history_of_dict(value: Mapping[str, Any]) -> dict[str, Any]:
    """The history in a dictionary of results; metrics that it lacks have only their last value."""
    history = value.get("_history", value.get("history")) or {}
    history = dict(getattr(history, "history", history))
    names = ("model", "history", "predictions", "backend", "factory", "model_factory", "metrics")
    metrics = value.get("metrics")
    if metrics is None:
        metrics = {k: v for k, v in value.items() if str(k)[:1] != "_" and k not in names}
    return history | {k: [v] for k, v in metrics.items() if k not in history}


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _name(function: Any) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)}()"
