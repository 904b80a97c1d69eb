"""``Scan``: trains a function's models with the permutations of a params dictionary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from paceline.compat.interception import Call, Engine, Outcome, check_interleave
from paceline.compat.talos import reduction
from paceline.compat.talos.columns import column
from paceline.compat.talos.errors import (
    TalosDataError,
    TalosParamsError,
    TalosReturnError,
    TalosTypeError,
)
from paceline.compat.talos.evaluate import evaluate_models
from paceline.compat.talos.kept_models import KeptModels
from paceline.compat.talos.old_arguments import read_options
from paceline.compat.talos.progress import Bar, say
from paceline.compat.talos.rounds import Failure, Rounds, ScanRound, is_loss
from paceline.compat.talos.scan_function import check_function, check_target, read_outcome
from paceline.compat.talos.space import ParamSpace
from paceline.compat.talos.splits import check_inputs, split
from paceline.errors import BuildError

#: A scan gives up after this many failed permutations if none has worked.
_FAILURES = 5


class Scan:
    """Trains ``model(x_train, y_train, x_val, y_val, params)`` for each permutation of ``params``.

    The fits of permutations train in packs; the result of each is the one it would have alone.

    N: training examples. V: validation examples.

    Args:
        x: Features [N, ...]: an array, or with ``multi_input`` a list of arrays.
        y: Targets [N, ...].
        params: Name -> list of values or ``(start, end, steps)``; or a ``ParamSpace``.
        model: ``function(x_train, y_train, x_val, y_val, params) -> (history, keras_model)``.
        experiment_name: Folder for the log and the models.
        x_val: Validation features [V, ...]; None: the share ``val_split`` of x.
        y_val: Validation targets [V, ...]; None: the share ``val_split`` of y.
        val_split: Share of the examples to validate on.
        multi_input: Whether x is a list of arrays, for a model with several inputs.
        random_method: How permutations are drawn if a limit leaves some out.
        seed: Decides the split, the permutations, the weights and the order of examples.
        performance_target: ``[metric, threshold, is_loss]``: the first permutation, in order, that
            reaches the threshold is the last one in the results.
        fraction_limit: Share of the permutations to try.
        round_limit: Number of permutations to try.
        time_limit: ``"%Y-%m-%d %H:%M"``: no permutation begins after that time.
        boolean_limit: ``function(params) -> bool``: permutations for which it is false are left
            out.
        reduction_method: One of ``reduction.METHODS``, or a function of the scan; None: no
            reduction.
        reduction_interval: Number of permutations between two reductions.
        reduction_window: Number of the latest permutations that a reduction uses.
        reduction_threshold: Correlation from which a value is removed.
        reduction_metric: The metric that a reduction uses.
        minimize_loss: Whether low values of ``reduction_metric`` are better.
        disable_progress_bar: Whether the progress bar is left out.
        print_params: Whether each permutation is printed when it begins.
        clear_session: Has no effect: the names of layers begin anew in each permutation anyway.
        save_weights: Whether weights are kept in memory, for ``best_model`` and the like.
        save_models: Whether every model is saved in the folder of the experiment.
        **options: Arguments by their names of 2018 (``dataset_name``, ``grid_downsample``, ...);
            and ``interleave``: whether permutations begin while others are under way. False:
            never. True: always. None: unless they share something that would change their results;
            a note then says what.

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
        x, y, params: As given.

    Raises:
        TalosParamsError, TalosTypeError, TalosDataError: An argument cannot work; nothing was
            trained.
        TalosReturnError: The function returned something other than ``(history, model)``.
        BuildError: No permutation worked.
        UsageError: ``interleave`` is not True, False or None.
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
        more = read_options(options, given, say)
        if not given["experiment_name"]:
            raise TalosTypeError(
                "experiment_name: there is none; name the folder that the scan's log goes to."
            )
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
        self.custom_objects, self.objective = more["custom_objects"], more["objective"]
        self._interleave = check_interleave(more["interleave"])
        self._target = check_target(performance_target)
        self._split(x_val, y_val, more["shuffle"])
        self.param_object = self._space(params, more["search_method"])
        self.experiment_id = time.strftime("%m%d%y%H%M%S")
        self.folder = Path(self.experiment_name)
        self.folder.mkdir(parents=True, exist_ok=True)
        while (self.folder / f"{self.experiment_id}.csv").exists():  # two scans began in one second
            self.experiment_id = str(int(self.experiment_id) + 1).zfill(12)
        self.log_path = self.folder / f"{self.experiment_id}.csv"
        self._rounds = Rounds(
            self.param_object.param_keys, self.log_path, bool(more["last_epoch_value"])
        )
        self._kept_models = KeptModels(
            self.folder / self.experiment_id, weights=save_weights, files=save_models
        )
        self.data = pd.DataFrame()
        self._begun = self._known = self._reduced_at = 0
        self._open: set[int] = set()  # numbers of the permutations under way
        self._last: int | None = None  # the first permutation that has reached the target
        self._run()

    # -- before ------------------------------------------------------------------------------------

    def _split(self, x_val: Any, y_val: Any, shuffle: bool) -> None:
        check_inputs(self.x, self.multi_input)
        if (x_val is None) != (y_val is None):
            raise TalosDataError("x_val, y_val: one was given; pass both, or none.")
        self.custom_val_split = x_val is not None
        if self.custom_val_split:
            parts = (self.x, self.y, x_val, y_val)
        else:
            parts = split(self.x, self.y, self.val_split, shuffle=shuffle, seed=self.seed)
        self.x_train, self.y_train, self.x_val, self.y_val = parts

    def _space(self, params: Any, order: str | None) -> ParamSpace:
        if isinstance(params, ParamSpace):
            return params
        space = ParamSpace(
            params,
            None,
            self.random_method,
            self.fraction_limit,
            self.round_limit,
            self.time_limit,
            self.boolean_limit,
            self.seed,
        )
        space.put_in_order(order)
        return space

    # -- the scan ----------------------------------------------------------------------------------

    def _run(self) -> None:
        n_all = len(self.param_object)
        started = time.time()
        with (
            Bar(n_all, show=not self.disable_progress_bar) as bar,
            Engine(notes=bar.say, noun="permutation", interleave=self._interleave) as engine,
        ):
            self._bar = bar
            given = (self.x_train, self.y_train, self.x_val, self.y_val)
            names = ("x_train", "y_train", "x_val", "y_val")
            engine.look_at({"model": self.model, **dict(zip(names, given, strict=True))})
            try:
                with closing(engine.run(self._calls(), n_calls=n_all)) as outcomes:
                    for outcome in outcomes:
                        self._take(outcome)
                        bar.show(self._known, len(self.param_object), self._best())
                        if self._last is not None and not any(n < self._last for n in self._open):
                            break
            finally:
                self._finish(started)
        if self._rounds.failed and not self._rounds.done:
            self._give_up("every permutation failed")

    def _calls(self) -> Iterator[Call | None]:
        reduces = self.reduction_method is not None
        every = reduction.interval(self) if reduces else 0
        while self._last is None:
            if reduces and self._begun % every == 0 and self._begun > self._reduced_at:
                while self._known < self._begun:
                    yield None
                self._reduced_at = self._begun
                self._refresh()
                if len(self.data):
                    reduction.reduce(self)
            params = self.param_object.round_parameters()
            if not isinstance(params, dict):
                return
            if self.print_params:
                self._bar.say(str(params))
            number, self._begun = self._begun, self._begun + 1
            self._open.add(number)
            seed = None if self.seed is None else (self.seed + number) % 2**32
            yield Call(number, _Function(self, params), seed)

    def _take(self, outcome: Outcome) -> None:
        self._known += 1
        self._open.discard(outcome.number)
        if self._last is not None and outcome.number > self._last:
            return  # Talos would not have begun it
        function = outcome.call.function
        assert isinstance(function, _Function)
        params = function.params
        try:
            if outcome.error is not None:
                raise outcome.error
            history, model = read_outcome(outcome, self.model)
        except Exception as error:
            self._rounds.failed.append(Failure(outcome.number, params, error))
            kind = "" if isinstance(error, BuildError) else f"{type(error).__name__}: "
            self._bar.say(f"permutation {outcome.number} failed, with {params}: {kind}{error}")
            if len(self._rounds.failed) >= _FAILURES and not self._rounds.done:
                self._give_up(f"{_FAILURES} permutations failed, and none worked")
            return
        self._kept_models.add(outcome.number, model)
        self._rounds.add(
            ScanRound(
                outcome.number,
                params,
                history,
                outcome.began,
                outcome.ended,
                outcome.seconds,
            )
        )
        if self._target is not None:
            metric, threshold, loss = self._target
            value = history[column(metric, history, "performance_target")][-1]
            if value <= threshold if loss else value >= threshold:
                self._drop_after(outcome.number)

    def _drop_after(self, last: int) -> None:
        """Drops the results after the permutation that has reached the target."""
        self._last = last
        for found in self._rounds.drop_after(last):
            self._kept_models.drop(found.number)

    def _give_up(self, what: str) -> None:
        failure = self._rounds.failed[-1]
        error = failure.error
        if isinstance(error, TalosReturnError):
            raise error
        raise BuildError(
            f"model: {what}; the last, with {failure.params}: {type(error).__name__}: {error}"
        ) from error

    def _best(self) -> str:
        """The text that the bar shows after the count."""
        metrics = self.metric_columns
        names = [
            name for name in ("val_acc", "val_accuracy", "val_loss", "loss") if name in metrics
        ]
        if not names:
            return ""
        values = [
            found.history[names[0]][-1] for found in self._rounds.done if names[0] in found.history
        ]
        best = min(values) if is_loss(names[0]) else max(values)
        return f"best {names[0]} {best:.4f}"

    # -- results -----------------------------------------------------------------------------------

    def _refresh(self) -> None:
        self.data = self._rounds.table()

    def _finish(self, started: float) -> None:
        rounds = self._rounds
        self._refresh()
        if rounds.done:
            rounds.write()
        self.round_history = [found.history for found in rounds.done]
        self.round_times = rounds.times()
        self.learning_entropy = rounds.entropies()
        self.peak_epochs = rounds.peaks()
        numbers = [found.number for found in rounds.done]
        self.saved_models = [self._kept_models.config(number) for number in numbers]
        self.saved_weights = [self._kept_models.weights(number) for number in numbers]
        self.failures = [
            {"params": f.params, "error": f"{type(f.error).__name__}: {f.error}"}
            for f in rounds.failed
        ]
        self.details = pd.Series(
            {
                "experiment_name": self.experiment_name,
                "experiment_id": self.experiment_id,
                "random_method": self.random_method,
                "reduction_method": self.reduction_method,
                "reduction_interval": self.reduction_interval,
                "reduction_window": self.reduction_window,
                "reduction_threshold": self.reduction_threshold,
                "reduction_metric": self.reduction_metric,
                "minimize_loss": self.minimize_loss,
                "seed": self.seed,
                "complete_time": time.strftime("%m/%d/%y/%H:%M"),
                "seconds": round(time.time() - started, 3),
                "rounds": len(rounds.done),
                "failed": len(rounds.failed),
                "x_shape": getattr(self.x, "shape", "multi-input"),
                "y_shape": getattr(self.y, "shape", "multi-output"),
            },
            dtype=object,
        )

    @property
    def parameter_columns(self) -> dict[str, str]:
        """Parameter -> its column of ``data``."""
        return self._rounds.parameter_columns

    @property
    def metric_columns(self) -> list[str]:
        """Columns of ``data`` that are metrics."""
        return list(dict.fromkeys(name for f in self._rounds.done for name in f.history))

    def best_row(self, metric: str | None, asc: bool) -> int:
        """Returns the number of the row of ``data`` that is best in a metric.

        Args:
            metric: A column of ``data``; None: the ``objective`` of the scan.
            asc: Whether low values are better.

        Raises:
            TalosParamsError: There is no such column, or it holds no number.
        """
        if metric is None:
            if not isinstance(self.objective, Mapping):
                raise TalosParamsError("metric: there is none; name a column of scan.data.")
            asc = self.objective.get("direction") == "min"
            metric = str(self.objective["metric"])
        name = column(metric, self.data.columns)
        numbers: Any = pd.to_numeric(self.data[name], errors="coerce")
        values = numbers.dropna()
        if values.empty:
            raise TalosParamsError(f"metric: {metric!r} has no value in any permutation.")
        return int(values.idxmin() if asc else values.idxmax())

    def activate(
        self, row: int, saved: bool = False, custom_objects: dict[str, Any] | None = None
    ) -> Any:
        """Returns the trained model of a row of ``data``.

        Args:
            row: Number of the row.
            saved: Whether the model is loaded from the file of ``save_models``; else from memory.
            custom_objects: Name -> class or function, for Keras to load the model.

        Raises:
            TalosModelError: The model was not kept.
        """
        number = self._rounds.done[row].number
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
            TalosParamsError: There is no such column, or it holds no number.
            TalosModelError: The model was not kept.
        """
        return self.activate(self.best_row(metric, asc), saved, custom_objects)

    def evaluate_models(
        self,
        x_val: Any,
        y_val: Any,
        task: str,
        n_models: int = 10,
        metric: str = "val_acc",
        folds: int = 5,
        shuffle: bool = True,
        asc: bool = False,
        saved: bool = False,
        custom_objects: dict[str, Any] | None = None,
        average: str | None = None,
        multi_input: bool | None = None,
        seed: int | None = None,
    ) -> None:
        """Scores the best models on parts of other data; adds mean and deviation to ``data``.

        Args:
            x_val: Features [N, ...].
            y_val: Targets [N, ...].
            task: "binary", "multi_class", "multi_label" or "continuous".
            n_models: Number of models to score.
            metric: The models that are best in this column of ``data`` are scored.
            folds: Number of parts of the data that each model is scored on.
            shuffle: Whether examples are shuffled before.
            asc: Whether low values of the metric are better.
            saved: Whether models are loaded from the files of ``save_models``; else from memory.
            custom_objects: Name -> class or function, for Keras to load models.
            average: How F1 is averaged over classes; None: binary or macro.
            multi_input: Whether ``x_val`` is a list of arrays; None: told from its type.
            seed: Decides how examples are shuffled.
        """
        evaluate_models(
            self,
            x_val,
            y_val,
            task,
            n_models,
            metric,
            folds,
            shuffle,
            asc,
            saved,
            custom_objects,
            average,
            multi_input,
            seed,
        )

    def __repr__(self) -> str:
        failed = f", {len(self._rounds.failed)} failed" if self._rounds.failed else ""
        return f"<Scan {self.experiment_name}: {len(self._rounds.done)} permutations{failed}>"


class _Function:
    """The user's function with one permutation."""

    def __init__(self, scan: Scan, params: dict[str, Any]) -> None:
        self._scan, self.params = scan, params

    def __call__(self) -> Any:
        scan = self._scan
        # A copy, because the function may write to its params, and the log needs them unchanged.
        return scan.model(scan.x_train, scan.y_train, scan.x_val, scan.y_val, dict(self.params))
