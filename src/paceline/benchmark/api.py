"""``paceline.bench``: checks its arguments, measures, and returns the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from paceline.benchmark import arguments
from paceline.benchmark.measure.cell import nothing_cached
from paceline.benchmark.measure.runner import BenchPlan, Runner
from paceline.benchmark.measure.subject import BenchModel
from paceline.benchmark.presentation.result import Bench
from paceline.benchmark.records import Run
from paceline.data.arrays import ArrayData, NotArrays, prepare, split
from paceline.errors import BuildError, PacelineError, UsageError
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import search_process
from paceline.program.trace import check_precision
from paceline.report import formats
from paceline.tuner.arguments.arguments import whole_number
from paceline.tuner.search.progress import to_stderr

#: Seconds of a benchmark by default.
BUDGET = 300.0


def bench(
    build: Any,
    x: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    batch_sizes: Sequence[int] | None = None,
    parallel_trials: Sequence[int | str] | None = None,
    mesh: int | None = None,
    hparams: Mapping[str, Any] | None = None,
    precision: str | None = None,
    measure_for: float | None = BUDGET,
    epochs: int | None = None,
    objective: str | None = None,
    scale_lr: str | None = None,
    target_value: float | None = None,
    predict_trials: int | None = None,
    predict_epochs: int = 10,
    predict_batch_size: int | None = None,
    predict_pruner: str | None = None,
    workers: int | None = None,
    quota: str | Mapping[str, float] | None = None,
    executor: str = "auto",
    fit: bool = False,
    seed: int = 0,
    name: str | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Bench:
    """Measures how fast a model trains at several batch sizes, slots and plans.

    One configuration of the model is measured: ``hparams``, with defaults for the other
    hyperparameters. Every program is compiled again, so that compile times are real. No trained
    model is kept. In a session on another backend of Keras, the session's process on JAX measures,
    as it trains the session's searches.

    N: training examples. V: validation examples.

    Args:
        build: ``build(hp) -> compiled keras.Model``, or a ``HyperModel``, as ``Tuner`` takes it.
        x: Features [N, ...]: an array, or a list, tuple or dict of arrays.
        y: Targets [N, ...], in the same forms as ``x``.
        sample_weight: As in Keras: factors of the examples' losses [N].
        validation_data: ``(x, y)`` or ``(x, y, sample_weight)``, each [V, ...].
        validation_split: Fraction of the examples, from the end of ``x`` and ``y``, that validate.
        batch_sizes: Examples per step. None: 32, 64, 128, 256, 512 and 1024, up to N.
        parallel_trials: Numbers of trials that train at once. None: 1, 4 and 16. One trial alone,
            and the number that a search would choose ("auto"), are measured in any case.
        mesh: Number of devices to compare with one device, once with trials spread over them and
            once with each batch split over them. None: all accelerators, if there are several. 1:
            no such comparison.
        hparams: Hyperparameter name -> value; the others have their defaults.
        precision: "float32" or "bfloat16"; None: Keras' dtype policy stays as it is.
        measure_for: Seconds for everything, 300 by default; the most important cells are measured
            first. None: no limit.
        epochs: Epochs of a trial that is also trained at each batch size, and validated. None: no
            such training.
        objective: Metric that compares these trials, as ``Tuner`` takes it.
        scale_lr: "linear" or "sqrt": how the learning rate of these trials follows the batch size,
            by its ratio to the smallest one. None: the learning rate is the same for all.
        target_value: A value of the objective; the result says which batch size reaches it first.
        predict_trials: Trials of a search whose time is to be predicted. The beginning of that
            search is run and timed. None: no prediction.
        predict_epochs: Epochs of each trial of that search.
        predict_batch_size: Batch size of that search; None: the batch size that is measured first.
        predict_pruner: Pruner of that search. The share of epochs that "asha" leaves out is known
            beforehand; with any other pruner the prediction counts all epochs.
        workers: Workers of a Ray cluster, each with one device like this one. The result also has
            the time of the search on them, and whether Ray is worth it.
        quota: Hours a week of each platform, and hours of a session: "gpu=30h,tpu=20h,session=9h",
            or seconds by name. The result says how many sessions that search takes.
        executor: "auto", or "fit" to measure nothing but Keras' own ``fit``.
        fit: Whether Keras' own ``fit`` is measured at every batch size; else at one only.
        seed: Seed of the weights and of the order of examples.
        name: Name of the model in the result; None: the name of ``build``.
        on_note: Called with one line of text for each cell; None: lines go to stderr.

    Returns:
        The result: ``print`` it, or read its ``runs`` and ``advice``.

    Raises:
        UsageError: An argument cannot work; the message names it.
        DataError: The data cannot be trained on.
        BuildError: ``build`` failed.
    """
    given = dict(locals())
    note = on_note or to_stderr
    ModelBuilder(build)  # a bad build function is refused before the data are read
    check_precision(precision)
    if executor not in ("auto", "fit"):
        raise UsageError(f"executor must be auto or fit, got {executor!r}.")
    budget = arguments.check_budget(measure_for)
    seed = whole_number(seed, "seed", least=0, most=2**32 - 1)
    data, validation = read_data(x, y, validation_data, validation_split, sample_weight)
    packs = executor == "auto" and keras.backend.backend() == "jax"
    if executor == "auto" and not packs:
        from paceline.benchmark.own_process import measured  # not in sessions on JAX

        found = measured(bench, given, note)
        if found is not None:
            return found
    asked = (predict_trials, predict_epochs, predict_batch_size, predict_pruner, quota, workers)
    plan = arguments.planned_search(*asked, n=data.n, packs=packs)
    arguments.check_curves(epochs, scale_lr, target_value, validation is not None)
    sizes = arguments.check_batch_sizes(batch_sizes, data.n, note)
    chosen = arguments.check_slots(parallel_trials)
    with search_process(precision, initial_weights=False, also=[nothing_cached()]):
        began = time.perf_counter()
        subject = BenchModel(build, dict(hparams or {}), data, validation, seed)
        model = _first(subject)
        arguments.check_hparams(hparams or {}, subject)
        bench_plan = BenchPlan(
            sizes,
            chosen,
            budget,
            packs,
            "all" if fit else "middle",
            meshes=arguments.meshes(mesh) if packs else (),
            epochs=epochs or 0,
            objective=objective,
            scale_lr=scale_lr or "none",
            search=plan,
            search_batch_size=predict_batch_size,
        )
        facts = {
            "name": name or getattr(build, "__name__", type(build).__name__),
            "hparams": _as_scalars(subject.hp.hparams) if subject.hp else {},
            "variables": int(model.count_params()) if model.built else None,
        }
        del model
        run = Runner(subject, bench_plan, facts, note)()
    _check_measured(run, budget, time.perf_counter() - began)
    return Bench([run], target_value=target_value, plan=plan)


def read_data(
    x: Any, y: Any, validation_data: Any, validation_split: float, sample_weight: Any = None
) -> tuple[ArrayData, ArrayData | None]:
    """Reads training and validation data, as ``bench`` takes them.

    Raises UsageError if they are not arrays, and DataError if they cannot be trained on.
    """
    try:
        data, validation = prepare(x, y, sample_weight), None
        if validation_data is not None:
            if not isinstance(validation_data, (tuple, list)):
                raise UsageError("validation_data must be (x, y) or (x, y, sample_weight).")
            validation = prepare(*validation_data, what="validation data")
        elif validation_split:
            data, validation = split(data, validation_split)
    except NotArrays as reason:
        raise UsageError(f"x must be arrays for a measurement, but {reason}.") from None
    return data, validation


def _first(subject: BenchModel) -> Any:
    """Builds the model once, so that a ``build`` that fails does so before anything is measured."""
    try:
        return subject.model()
    except PacelineError:
        raise
    except Exception as error:
        raise BuildError(f"build(hp) failed: {type(error).__name__}: {error}") from error


def _check_measured(run: Run, budget: float | None, seconds: float) -> None:
    """Checks that the budget sufficed for at least one cell, unless cells failed."""
    if (
        run.measured
        or run.interrupted
        or any(measurement.state == "failed" for measurement in run.cells)
    ):
        return
    assert budget is not None
    raise UsageError(
        f"measure_for: {budget:g} s are too short. Building and tracing the model, and probing "
        f"the device, took {formats.seconds(seconds)}. Pass more, such as "
        f"{max(60, round(10 * seconds))} s."
    )


def _as_scalars(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters as a result file holds them: all but scalars, such as tuples, as text."""
    plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in hparams.items()}
    kinds = (bool, int, float, str, type(None))
    return {name: v if isinstance(v, kinds) else str(v) for name, v in plain.items()}
