"""A first look: one model is built before anything is trained or written, and asked what it is."""

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
from paceline.errors import BuildError, PacelineError
from paceline.executor.model_builder import ModelBuilder
from paceline.program import keras_private, trace
from paceline.search_space import HyperParameters
from paceline.tuner.arguments import SearchArguments


@dataclass(frozen=True)
class FirstBuild:
    """What one model shows of all.

    Attributes:
        hp: Its hyperparameters, and with them the space so far as it is known.
        names: Names of an epoch's logs, in the order of ``compile``; None when they show only in
            training.
        batch: Shapes of a batch, as a step sees them; None when the data does not tell.
    """

    hp: HyperParameters
    names: list[str] | None
    batch: Any


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
        arguments: Of the search.
        seed: For the hyperparameters of further attempts.
        attempts: Builds that may fail.
        first: What the first one is given; None: nothing is known of the space.

    Raises:
        BuildError: No build worked, or the model does not take the data.
        DataError: Labels outside the model's classes.
        PacelineError: What the build or a function of hp was told by Paceline; or Keras lacks a
            name that Paceline needs.
    """
    keras_private.check_names()  # before the build and the data could be blamed
    hp, model, setting = _first_model(builder, arguments, seed, attempts, first)
    data, validation = _data_of(setting, arguments), setting.validation
    if data is None:
        return FirstBuild(hp, None, None)
    batch = data.batch_shapes(min(setting.batch_size, data.n))
    names = _log_names(model, batch, arguments)
    outputs = output_shapes(model, batch[0])
    check_labels(model, _labelled(setting, data), "training data", outputs)
    if validation is not None:
        check_labels(model, validation, "validation data", outputs)
    return FirstBuild(hp, names, batch)


def _data_of(setting: TrialInputs, arguments: SearchArguments) -> ArrayData | None:
    """Arrays like those of a trial: all of them, or the first batch."""
    if setting.data is None:
        return arguments.sample
    return setting.data.sample if isinstance(setting.data, BatchedDataset) else setting.data


def _labelled(setting: TrialInputs, data: ArrayData) -> ArrayData:
    """What tells which labels there are: of a data set that ends, the ends of their range."""
    if isinstance(setting.data, BatchedDataset) and setting.data.labels is not None:
        return setting.data.labels
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
            return hp, model, arguments.setting_for(hp)
        except PacelineError:
            raise
        except Exception as raised:  # anything: it is the user's code
            error = error or raised
            if not hp.hparams:
                break  # it failed before it knew any hyperparameter: others change nothing
    raise BuildError(f"build(hp) failed: {type(error).__name__}: {error}") from error


def _anything(rng: np.random.Generator) -> Callable[[Any], Any]:
    def choose(parameter: Any) -> Any:
        values = parameter.values()
        return values[int(rng.integers(len(values)))]

    return choose


def _log_names(model: Any, batch: Any, arguments: SearchArguments) -> list[str] | None:
    """Names of an epoch's logs; None for steps of the user's that cannot be traced."""
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
    except Exception:  # it will run in fit, or fail as a trial; the logs show then
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
