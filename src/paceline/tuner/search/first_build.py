"""Models that are built before any trial, and never trained: the first one, and two to trace.

Before a search trains, the first build shows the names of logs, the shapes of a batch, and whether
the model accepts the data.

``trace_ends_of_space`` has two more models traced, so that fewer of the trials need tracing. The
constants of a program follow formulas between traced values
(``program/formulas/constant_formulas.py``). Random trials would widen that range again and again.
Models at both ends of the space show the whole range at once. That is worth it if every
hyperparameter is a continuous number, so that all trials share one structure.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from paceline.data.arrays import ArrayData, step_form
from paceline.data.batched import BatchedDataset
from paceline.data.inputs import TrialInputs
from paceline.data.labels import check_labels, output_shapes
from paceline.errors import (
    BuildError,
    ConstraintError,
    DataError,
    ObjectiveError,
    PacelineError,
    TrialRejected,
    with_keras_3,
)
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.pack_executor import PackExecutor
from paceline.executor.process import search_process
from paceline.executor.wide_integers import check_casts
from paceline.program import keras_private, trace
from paceline.program.foreign.operations import ForeignOperationError
from paceline.search_space import HyperParameters, Parameter
from paceline.study.objectives import Objective, metrics_beside_loss, resolve_objective
from paceline.study.samplers.values import value_at
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.arguments.constraints import REJECTED_IN_A_ROW, Constraints, rejections_text

if TYPE_CHECKING:
    from paceline.study.objectives import Objectives

#: The shares of a range to trace at. Its bounds are left out: they are often special (a dropout of
#: 0 is another program). Trials with values beyond these shares are traced themselves.
_ENDS = (0.002, 0.998)
#: The number of trials below which two more builds take longer than the traces that they save.
_ENOUGH = 8


@dataclass(frozen=True)
class FirstBuild:
    """What the first model shows of all models of a search."""

    hp: HyperParameters  # of the model, and with them the space as far as it is known
    # Of an epoch's logs, in the order of ``compile``; None: only training shows them.
    names: list[str] | None
    # Shapes and dtypes of a batch (x, y, sample weights), first axis examples; None when only
    # ``fit`` can read the data.
    batch: Any
    # Name of a metric that is an array -> how many numbers it has.
    arrays: Mapping[str, int] = field(default_factory=dict)
    untraced: str | None = None  # why the user's steps cannot be traced, nor names be known
    compiled: frozenset[str] = frozenset()  # names of logs that ``compile`` was given metrics for
    steps: int = 0  # of an epoch; 0: unknown
    # The largest momentum of its moving averages (``BatchNormalization``); 0.0 without any.
    momentum: float = 0.0

    def note_on(self, objective: Objective, given: Any) -> str | None:
        """A sentence for the user where the objective is an array, or no metric but the loss."""
        others = metrics_beside_loss(self.names or ())
        if given is None and objective.name == "val_loss" and (others or self.names is None):
            made = f" ({', '.join(others[:3])})" if others else ""
            return (
                f"objective: val_loss, because the model creates its other metrics{made} in its "
                'own call() or train_step(). To use one of them, pass objective="min:NAME" or '
                '"max:NAME"'
            )
        name = objective.name.removeprefix("val_")
        if name not in self.arrays:
            return None
        return (
            f'objective "{objective.name}": the metric is an array of {self.arrays[name]} '
            "numbers, and the search improves their mean. To use one number, pass its name in the "
            f"history: {objective.name}_0"
        )

    def objective(
        self, given: Any, direction: str | None, *, callbacks: bool
    ) -> Objective | Objectives:
        """The objective of a search, or all of several; callbacks may add it to the logs."""
        if isinstance(given, list):
            from paceline.study.objectives import resolve_objectives  # seldom needed

            return resolve_objectives(given, direction, self.names, callbacks=callbacks)
        try:
            if given is None and self.names is None and self.untraced == _no_trace():
                return resolve_objective("val_loss", direction, None)
            return resolve_objective(given, direction, self.names, self.compiled)
        except ObjectiveError:
            if given is None and self.untraced is not None:
                raise ObjectiveError(
                    "objective is None, and the model's own step shows no metrics: "
                    f"{self.untraced}. Correct the step, or pass the name of a metric."
                ) from None
            if given is None or not callbacks:
                raise
            try:
                return resolve_objective(given, direction, None)
            except ObjectiveError:
                raise ObjectiveError(
                    f"objective {given!r} is not a metric of the model. If a callback adds it to "
                    'the logs, pass its direction: "max:NAME" or "min:NAME".'
                ) from None


def _no_trace() -> str:
    """Why a user's own steps cannot be traced on this backend."""
    return f"Keras runs on {keras.backend.backend()}"


def first_preprocessing(
    builder: ModelBuilder, seed: int, precision: str | None, first: HyperParameters | None
) -> Any:
    """What the first model does to samples before its step, if it is a task of KerasHub."""
    if "keras_hub" not in sys.modules or keras.backend.backend() != "jax":
        return None  # there are no tasks yet, or ``fit`` reads their data
    from paceline.data.preprocessed import preprocessing_of

    try:
        with search_process(precision, memory=False):
            return preprocessing_of(builder(first or HyperParameters(), seed))
    except PacelineError as error:
        if isinstance(error, TrialRejected):  # other values may be allowed, as ``probe`` finds out
            raise BuildError(f"build(hp) rejects what it is given: {error}") from error
        raise
    except Exception as error:  # the user's code may raise anything
        raise _build_error(error) from error


def _build_error(error: Exception) -> BuildError:
    if isinstance(error, ForeignOperationError) and (other := _not_on_jax(error)) is not None:
        return other
    return BuildError(with_keras_3(f"build(hp) failed: {type(error).__name__}: {error}"))


def _not_on_jax(error: Exception) -> BuildError | None:
    """The error about calls of another backend's functions; None if there are none."""
    from paceline.tuner.search.session import foreign_calls

    foreign = foreign_calls(error) if keras.backend.backend() == "jax" else None
    if foreign is None:
        return None
    return BuildError(
        f"the model that build(hp) returned does not train on JAX: {foreign}. Or set "
        "KERAS_BACKEND=tensorflow, where such trials train one at a time."
    )


def probe(
    builder: ModelBuilder,
    arguments: SearchArguments,
    seed: int,
    attempts: int,
    first: HyperParameters | None = None,
    constraints: Constraints | None = None,
) -> FirstBuild:
    """Builds the model of the default hyperparameters, or of others where that one fails.

    ``attempts`` builds may fail; ``seed`` is that of the hyperparameters of the further ones.
    ``first`` is the hp of the first build; None: nothing is known of the space. ``constraints`` are
    tried on the model, which need not satisfy them.
    """
    keras_private.check_names()  # before the build and the data could be blamed
    hp, model, inputs = _first_model(builder, arguments, seed, attempts, first)
    data, validation = data_of(inputs, arguments), inputs.validation
    if data is None:
        _try_constraints(constraints, hp, model)
        return FirstBuild(hp, None, None)
    size = min(inputs.batch_size, data.n)
    batch = data.batch_shapes(size)
    _check_complex(model, batch[0])
    names, untraced = _log_names(model, batch, data.step_shapes(size), arguments)
    _check_complex(model, batch[0])  # a Sequential may know its inputs only now
    _try_constraints(constraints, hp, model)
    outputs = output_shapes(model, batch[0])
    check_labels(model, _labelled(inputs, data), "training data", outputs)
    if arguments.callbacks is not None and names is not None:
        arguments.callbacks.check_logs(hp, names)
    validation = validation or arguments.loaded.validation_sample
    n = inputs.validation_batch_size
    if validation is not None:
        n = min(n, validation.n)
        _check_validation(model, batch, validation.batch_shapes(n), wrapped=validation.wrapped)
        check_labels(model, validation, "validation data", outputs)
    if tables := keras_private.embeddings(model):
        from paceline.executor.tokens import TokenChecks

        tokens = TokenChecks()
        tokens.check(model, tables, inputs.data or data, "training data")
        tokens.check(model, tables, validation, "validation data")
    if data.wide or getattr(validation, "wide", None):
        check_casts(model, inputs.data or data, size, validation, n, inputs.class_weight)
    sizes = {name: value.size for name, value in trace.metric_results(model).items()}
    arrays = {name: size for name, size in sizes.items() if size > 1}
    steps = inputs.steps_per_epoch or 0
    if not steps and isinstance(inputs.data, ArrayData):
        n_trained = arguments.fold[0] if arguments.fold else inputs.data.n
        steps = -(-n_trained // inputs.batch_size)
    momentum = keras_private.slowest_average(model)
    return FirstBuild(hp, names, batch, arrays, untraced, _compiled(model), steps, momentum)


def _compiled(model: Any) -> frozenset[str]:
    """Names of logs that follow from the metrics which ``compile`` was given."""
    given = [metric for metric in model.metrics if hasattr(metric, "metrics")]
    results = [trace.results_of(metric.result) for metric in given]
    found = [result for result in results if isinstance(result, dict)]
    return frozenset(name for result in found for name in trace.flat_logs(result))


def _try_constraints(constraints: Constraints | None, hp: HyperParameters, model: Any) -> None:
    """Has the user's constraints fail before anything is trained, if they fail at all."""
    if constraints and model.built:
        with suppress(TrialRejected):
            constraints.check(model, hp.hparams)


def _check_complex(model: Any, x: Any) -> None:
    """Refuses complex inputs of a model whose inputs are real: Keras drops the imaginary part."""
    inputs = keras.tree.flatten(getattr(model, "inputs", None) or [])
    complex_x = any(leaf.dtype.kind == "c" for leaf in keras.tree.flatten(x))
    if complex_x and inputs and not any("complex" in str(each.dtype) for each in inputs):
        raise DataError(
            "training data: x must hold real numbers, as the model's inputs, got complex ones. "
            "Pass both parts as features, such as np.stack([x.real, x.imag], axis=-1)."
        )


def _check_validation(model: Any, batch: Any, validation: Any, *, wrapped: bool) -> None:
    """Checks that the model takes validation data of other shapes than those to train on."""
    say = _differences(batch, validation)
    if not say:
        return
    own_step = type(model).test_step is not keras.Model.test_step
    same_x = _per_example(batch[:1]) == _per_example(validation[:1])
    if not own_step and len(batch) > 1 and len(validation) == 1:
        raise DataError(f"validation_data: {say}. Pass (x, y).")
    if not own_step and same_x and _targets(batch) != _targets(validation):
        raise DataError(
            f"validation_data: {say}. Targets must have the same shape as for training."
        )
    error = _refusal(model, batch, validation, wrapped)
    if error is not None and _refusal(model, batch, batch, wrapped) is None:
        raise DataError(
            f"validation_data: {say}. The model does not accept them: {_said(error)}"
        ) from error


def _said(error: Exception) -> str:
    """What an error of Keras' says, without its colours and the list of all arguments."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("\n\nArguments received by")[0]
    text = re.sub(r"^Exception encountered when calling [^\n]*\n+", "", text)
    return f"{type(error).__name__}: {' '.join(text.split())}"


def _differences(batch: Any, validation: Any) -> str:
    """How validation data differ in shape from training data; weights may always be left out."""
    found = []
    for at, name in enumerate(("x", "y", "sample_weight")):
        ours, theirs = (_per_example(each[at : at + 1]) for each in (batch, validation))
        if ours != theirs and not (name == "sample_weight" and not theirs):
            found.append(
                f"{name} has {theirs or 'nothing'} per example, for training {ours or '-'}"
            )
    return ", ".join(found)


def _per_example(parts: Any) -> str:
    """Shapes of one example as text; empty if there is no such part."""
    shapes = [keras.tree.map_structure(lambda leaf: str(tuple(leaf.shape[1:])), p) for p in parts]
    return str(shapes[0]).replace("'", "") if shapes else ""


def _targets(batch: Any) -> list[Any]:
    """Shapes of the targets of one example, without axes of length 1, which losses add and drop."""
    return [[n for n in leaf.shape[1:] if n != 1] for leaf in keras.tree.flatten(batch[1:2])]


def _refusal(model: Any, batch: Any, validation: Any, wrapped: bool) -> Exception | None:
    """What a model raises when it is called on shapes of validation data; None: nothing."""
    try:
        if keras.backend.backend() == "jax":
            given = step_form(validation, wrapped=wrapped)
            trace.trace_test(model, trace.build_state(model, batch), given)
        else:
            model.compute_output_spec(
                keras.tree.map_structure(
                    lambda leaf: keras.KerasTensor(leaf.shape, str(leaf.dtype)), validation[0]
                )
            )
    except Exception as error:  # the user's layers may raise anything
        return error
    return None


def data_of(inputs: TrialInputs, arguments: SearchArguments) -> ArrayData | None:
    """Arrays like the training data of a trial: all of it, or the first batch; None for none."""
    if inputs.data is None:
        data = arguments.loaded.data
        return data if isinstance(data, ArrayData) else arguments.loaded.sample
    return inputs.data.sample if isinstance(inputs.data, BatchedDataset) else inputs.data


def make_variables(model: Any, inputs: TrialInputs, arguments: SearchArguments) -> None:
    """Makes the variables of a model that knows its inputs only from data, which are arrays."""
    data = data_of(inputs, arguments)
    if data is None:
        raise ConstraintError(
            "constraints: the number of parameters is unknown before the model trains. Begin the "
            "model with keras.Input in build(hp)."
        )
    keras_private.symbolic_build(model, data.batch_shapes(min(inputs.batch_size, data.n)))


def _labelled(inputs: TrialInputs, data: ArrayData) -> ArrayData:
    """Arrays with all labels; of a data set with an end, the lowest and the highest label."""
    if isinstance(inputs.data, BatchedDataset) and inputs.data.labels is not None:
        return inputs.data.labels
    return data


def built_with_all(
    builder: ModelBuilder, arguments: SearchArguments, hp: HyperParameters, seed: int
) -> tuple[Any, TrialInputs]:
    """A model and its inputs; hp then holds what all functions of hp declare, as for a trial."""
    model = builder(hp, seed)
    if arguments.callbacks is not None:
        arguments.callbacks.ask(hp)
    arguments.epochs_for(hp)
    return model, arguments.inputs_for(hp, model)


def _first_model(
    builder: ModelBuilder,
    arguments: SearchArguments,
    seed: int,
    attempts: int,
    first: HyperParameters | None,
) -> tuple[HyperParameters, Any, TrialInputs]:
    rng = np.random.default_rng(seed)
    error: Exception | None = None
    rejected: list[TrialRejected] = []
    attempt = -1
    while attempt + 1 - len(rejected) < attempts and len(rejected) < REJECTED_IN_A_ROW:
        attempt += 1
        hp = HyperParameters(chooser=None if attempt == 0 else _random_chooser(rng))
        if attempt == 0 and first is not None:
            hp = first
        try:
            return hp, *built_with_all(builder, arguments, hp, seed)
        except TrialRejected as raised:
            rejected.append(raised)
            if not hp.hparams:
                break
        except PacelineError:
            raise
        except Exception as raised:  # the user's code may raise anything
            error = error or raised
            if not hp.hparams:
                break  # it failed before its first hyperparameter: other values change nothing
    if error is None:
        raise ConstraintError(rejections_text([*map(str, rejected)], over=False)) from rejected[-1]
    raise _build_error(error) from error


def _random_chooser(rng: np.random.Generator) -> Callable[[Any], Any]:
    def choose(parameter: Any) -> Any:
        values = parameter.values()
        return values[int(rng.integers(len(values)))]

    return choose


def _other_input(model: Any, x: Any) -> str:
    """What to write if the model's one Input has another shape than the examples; else nothing."""
    inputs = getattr(model, "inputs", None) or ()
    if len(inputs) != 1 or not hasattr(x, "shape"):
        return ""
    here, wanted = tuple(inputs[0].shape[1:]), tuple(x.shape[1:])
    sizes = zip(here, wanted, strict=False)
    if len(here) == len(wanted) and all(one in (None, other) for one, other in sizes):
        return ""
    left_out = ", or leave it out" if isinstance(model, keras.Sequential) else ""
    return f" Use keras.Input({wanted}){left_out}."


def _log_names(
    model: Any, batch: Any, given: Any, arguments: SearchArguments
) -> tuple[list[str] | None, str | None]:
    """Names of an epoch's logs; for the user's own steps that cannot be traced None, and why.

    ``batch`` has shapes and dtypes; ``given`` is the same, as ``fit`` hands it to the steps.
    """
    validated = arguments.validated
    try:
        keras_private.symbolic_build(model, batch)
        results = trace.metric_results(model)
    except Exception as error:
        _check_weights(model, batch)
        if (other := _not_on_jax(error)) is not None:
            raise other from error
        raise BuildError(
            "the model that build(hp) returned does not accept the data: x has "
            f"{_per_example(batch[:1])} per example.{_other_input(model, batch[0])} {_said(error)}"
        ) from error
    names = [str(name) for name in trace.each_number(results)]
    if names == sorted(names):  # as Keras before 3.12 has them
        names = _as_compiled(model, names)
    train, test = names, names
    if keras.backend.backend() != "jax":  # only JAX's steps can be traced
        own = any(
            getattr(type(model), name) is not getattr(keras.Model, name)
            for name in ("train_step", "test_step")
        )
        if own:
            return None, _no_trace()
        return ([*names, *(f"val_{name}" for name in names)] if validated else names), None
    try:
        if type(model).train_step is not keras.Model.train_step:
            train = list(trace.trace_train(model, trace.build_state(model, batch), given).log_names)
        if validated and type(model).test_step is not keras.Model.test_step:
            test = list(trace.trace_test(model, trace.build_state(model, batch), given).log_names)
    except Exception as error:  # such trials run in fit, whose logs show the names, or fail
        return None, f"{type(error).__name__}: {error}"
    return ([*train, *(f"val_{name}" for name in test)] if validated else train), None


def _check_weights(model: Any, batch: Any) -> None:
    """Refuses sample weights by output that the outputs of a model do not take."""
    weights = batch[2] if len(batch) > 2 else None
    names = [str(name) for name in getattr(model, "output_names", None) or []]
    if not isinstance(weights, Mapping) or not names:
        return
    got = f"got a dict of {', '.join(map(repr, weights))}"
    if not isinstance(getattr(model, "output", None), Mapping):
        each = ", ".join(f"sample_weight[{name!r}]" for name in names)
        form, how = "a list", f"Pass [{each}]."
        if len(names) == 1:
            form, how = "one array", "Pass the array itself."
        raise DataError(
            f"sample_weight must be {form}, as the outputs of the model are, {got}. {how}"
        )
    missing = [name for name in names if name not in weights]
    if missing:
        raise DataError(
            f"sample_weight must have an array for each output, {got}. Add ones for "
            f"{', '.join(map(repr, missing))}."
        )


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
    packs: PackExecutor,
    builder: ModelBuilder,
    arguments: SearchArguments,
    known: HyperParameters,
    seed: int,
) -> None:
    """Traces a model at each end of a space of continuous numbers, as far as it is ``known``."""
    parameters = known.parameters.values()
    packs.demand.uniform = bool(parameters) and all(not p.is_finite for p in parameters)
    packs.demand.continuous = not any(
        parameter.is_finite and isinstance(parameter.default, float) for parameter in parameters
    )
    if not packs.demand.uniform or (arguments.n_trials or _ENOUGH) < _ENOUGH:
        return
    for share in _ENDS:

        def choose(parameter: Parameter, share: float = share) -> Any:
            if parameter.is_finite:
                return parameter.default
            return parameter.from_storage(value_at(parameter.distribution, share))

        hp = HyperParameters(chooser=choose)
        try:
            model = builder(hp, seed)
            packs.pretrace(model, arguments.inputs_for(hp, model))
        except Exception:  # no error of the search: a trial that fails will say why
            return
