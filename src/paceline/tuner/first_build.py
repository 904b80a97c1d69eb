"""Models that are built before any trial, and never trained: the first one, and two to trace.

The first build shows what a search must know before it trains or writes anything: the names of the
logs, the shapes of a batch, and whether the model takes the data.

``trace_ends_of_space`` has two more models traced, so that fewer of the trials need tracing. The
constants of a program follow laws between the values that were traced
(``program/constant_laws.py``), and trials drawn at random would widen that range again and again.
Models at both ends of the space show the whole range at once. That is worth it where every
hyperparameter is a continuous number, so that all trials share one structure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset
from paceline.data.inputs import TrialInputs
from paceline.data.labels import check_labels, output_shapes
from paceline.errors import BuildError, ObjectiveError, PacelineError
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.program import keras_private, trace
from paceline.search_space import HyperParameters, Parameter
from paceline.study.objective import Objective, resolve_objective
from paceline.study.samplers.values import value_at
from paceline.tuner.arguments import SearchArguments

#: The shares of a range to trace at. Its bounds are left out: they are often special (a dropout of
#: 0 is another program). Trials with values beyond these shares are traced themselves.
_ENDS = (0.002, 0.998)
#: The number of trials below which two more builds take longer than the traces that they save.
_ENOUGH = 8


@dataclass(frozen=True)
class FirstBuild:
    """What the first model shows of all models of a search.

    Attributes:
        hp: The hyperparameters of the model, and with them the space as far as it is known.
        names: Names of an epoch's logs, in the order of ``compile``; None when only training shows
            them.
        batch: Shapes and dtypes of a batch (x, y, sample weights), first axis examples; None when
            only ``fit`` can read the data.
    """

    hp: HyperParameters
    names: list[str] | None
    batch: Any

    def objective(self, given: Any, direction: str | None, *, callbacks: bool) -> Objective:
        """The objective of a search.

        Args:
            given: The argument ``objective`` of ``Tuner``.
            direction: The argument ``direction`` of ``Tuner``.
            callbacks: Whether trials have callbacks, which may add the objective to the logs.

        Raises:
            ObjectiveError: The objective is not among the logs, or its direction is not known.
        """
        try:
            return resolve_objective(given, direction, self.names)
        except ObjectiveError:
            if given is None or not callbacks:
                raise
            try:
                return resolve_objective(given, direction, None)
            except ObjectiveError:
                raise ObjectiveError(
                    f"objective {given!r} is no metric of the model; if a callback adds it to the "
                    'logs, say which way is better: "max:NAME" or "min:NAME".'
                ) from None


def probe(
    builder: ModelBuilder,
    arguments: SearchArguments,
    seed: int,
    attempts: int,
    first: HyperParameters | None = None,
) -> FirstBuild:
    """Builds the model of the default hyperparameters, or of others where that one fails.

    Args:
        builder: Builds models.
        arguments: The arguments of the search.
        seed: The seed of the hyperparameters of further attempts.
        attempts: The number of builds that may fail.
        first: The hp of the first build; None: nothing is known of the space.

    Raises:
        BuildError: No build worked, or the model does not take the data.
        DataError: Labels lie outside of the model's classes.
        PacelineError: An error of Paceline in the build or a function of hp, as it was raised.
    """
    keras_private.check_names()  # before the build and the data could be blamed
    hp, model, inputs = _first_model(builder, arguments, seed, attempts, first)
    data, validation = _data_of(inputs, arguments), inputs.validation
    if data is None:
        return FirstBuild(hp, None, None)
    batch = data.batch_shapes(min(inputs.batch_size, data.n))
    names = _log_names(model, batch, arguments)
    outputs = output_shapes(model, batch[0])
    check_labels(model, _labelled(inputs, data), "training data", outputs)
    if validation is not None:
        check_labels(model, validation, "validation data", outputs)
    return FirstBuild(hp, names, batch)


def _data_of(inputs: TrialInputs, arguments: SearchArguments) -> ArrayData | None:
    """Arrays like the training data of a trial: all of it, or the first batch."""
    if inputs.data is None:
        return arguments.sample
    return inputs.data.sample if isinstance(inputs.data, BatchedDataset) else inputs.data


def _labelled(inputs: TrialInputs, data: ArrayData) -> ArrayData:
    """Arrays with all labels; of a data set with an end, the lowest and the highest label."""
    if isinstance(inputs.data, BatchedDataset) and inputs.data.labels is not None:
        return inputs.data.labels
    return data


def _first_model(
    builder: ModelBuilder,
    arguments: SearchArguments,
    seed: int,
    attempts: int,
    first: HyperParameters | None,
) -> tuple[HyperParameters, Any, TrialInputs]:
    rng = np.random.default_rng(seed)
    error: Exception | None = None
    for attempt in range(attempts):
        hp = HyperParameters(chooser=None if attempt == 0 else _anything(rng))
        if attempt == 0 and first is not None:
            hp = first
        try:
            model = builder(hp, seed)
            if arguments.callbacks is not None:
                arguments.callbacks.ask(hp)
            arguments.epochs_for(hp)
            return hp, model, arguments.inputs_for(hp)
        except PacelineError:
            raise
        except Exception as raised:  # the user's code may raise anything
            error = error or raised
            if not hp.hparams:
                break  # it failed before its first hyperparameter: other values change nothing
    raise BuildError(f"build(hp) failed: {type(error).__name__}: {error}") from error


def _anything(rng: np.random.Generator) -> Callable[[Any], Any]:
    def choose(parameter: Any) -> Any:
        values = parameter.values()
        return values[int(rng.integers(len(values)))]

    return choose


def _log_names(model: Any, batch: Any, arguments: SearchArguments) -> list[str] | None:
    """Names of an epoch's logs; None for the user's own steps that cannot be traced."""
    validated = arguments.validated
    try:
        keras_private.symbolic_build(model, batch)
        results = model.get_metrics_result()
    except Exception as error:
        raise BuildError(
            f"the model that build(hp) returned does not take the data: {type(error).__name__}: "
            f"{error}"
        ) from error
    names = [str(name) for name in trace.flat_logs(results)]
    if names == sorted(names):  # as Keras before 3.12 has them
        names = _as_compiled(model, names)
    train, test = names, names
    if keras.backend.backend() != "jax":  # only JAX's steps can be traced
        own = any(
            getattr(type(model), name) is not getattr(keras.Model, name)
            for name in ("train_step", "test_step")
        )
        if own:
            return None
        return [*names, *(f"val_{name}" for name in names)] if validated else names
    try:
        if type(model).train_step is not keras.Model.train_step:
            train = list(trace.trace_train(model, trace.build_state(model, batch), batch).log_names)
        if validated and type(model).test_step is not keras.Model.test_step:
            test = list(trace.trace_test(model, trace.build_state(model, batch), batch).log_names)
    except Exception:  # such trials run in fit, whose logs show the names, or fail
        return None
    return [*train, *(f"val_{name}" for name in test)] if validated else train


def _as_compiled(model: Any, names: list[str]) -> list[str]:
    """Names of logs in the order in which the model was compiled with them, the loss first."""
    outputs = [str(name) for name in getattr(model, "output_names", None) or []]
    metrics = [m.name for metric in model.metrics for m in getattr(metric, "metrics", [metric])]

    def place(name: str) -> tuple[int, int, int]:
        if name == "loss":
            return -1, 0, 0
        of = [i for i, output in enumerate(outputs) if name.startswith(f"{output}_")]
        which = [i for i, m in enumerate(metrics) if name == m or name.endswith(f"_{m}")]
        return min(of, default=0), min(which, default=len(metrics)), len(name)

    return sorted(names, key=place)


def trace_ends_of_space(
    packs: LocalExecutor,
    builder: ModelBuilder,
    arguments: SearchArguments,
    known: HyperParameters,
    seed: int,
) -> None:
    """Traces a model at each end of a space of continuous numbers.

    Args:
        packs: The executor that traces them.
        builder: Builds models.
        arguments: The arguments of the search.
        known: The hyperparameters of a build: the space as far as it is known.
        seed: The seed of the weights, which do not matter.
    """
    parameters = known.parameters.values()
    packs.demand.uniform = bool(parameters) and all(not p.is_finite for p in parameters)
    if not packs.demand.uniform or (arguments.n_trials or _ENOUGH) < _ENOUGH:
        return
    for share in _ENDS:

        def choose(parameter: Parameter, share: float = share) -> Any:
            if parameter.is_finite:
                return parameter.default
            return parameter.from_storage(value_at(parameter.distribution, share))

        hp = HyperParameters(chooser=choose)
        try:
            packs.pretrace(builder(hp, seed), arguments.inputs_for(hp))
        except Exception:  # no error of the search: a trial that fails will say why
            return
