"""``paceline.bench``: checks what is asked for, measures, and hands the result back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from paceline.benchmark import arguments, table
from paceline.benchmark.measure import nothing_cached
from paceline.benchmark.records import Measurement, Run
from paceline.benchmark.result import Bench
from paceline.benchmark.runner import BenchPlan, Runner
from paceline.benchmark.subject import Subject
from paceline.data.arrays import ArrayData, NotArrays, prepare, split
from paceline.errors import BuildError, PacelineError, UsageError
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import search_process
from paceline.program.trace import check_precision
from paceline.report import numbers

#: Seconds, where nothing is said.
BUDGET = 300.0


def bench(
    build: Any,
    x: Any,
    y: Any = None,
    *,
    validation_data: Any = None,
    validation_split: float = 0.0,
    batch_sizes: Sequence[int] | None = None,
    slots: Sequence[int | str] | None = None,
    mesh: int | None = None,
    hparams: Mapping[str, Any] | None = None,
    precision: str | None = None,
    budget: float | None = BUDGET,
    epochs: int | None = None,
    objective: str | None = None,
    scale_lr: str | None = None,
    target: float | None = None,
    plan_trials: int | None = None,
    plan_epochs: int = 10,
    plan_batch_size: int | None = None,
    plan_pruner: str | None = None,
    quota: str | Mapping[str, float] | None = None,
    executor: str = "auto",
    fit: bool = False,
    seed: int = 0,
    name: str | None = None,
    notes: Callable[[str], None] | None = None,
) -> Bench:
    """Measures what training a model costs: batch size x trials at once x plan.

    One configuration of the model is measured, the defaults of its hyperparameters or ``hparams``.
    Every program is compiled afresh; nothing is trained that could be kept.

    Args:
        build: As for a search.
        x: Training data: arrays, or lists, tuples and dicts of arrays.
        y: Targets, likewise.
        validation_data: ``(x, y)`` or ``(x, y, sample_weight)``.
        validation_split: Fraction of the end of x and y to validate on instead.
        batch_sizes: 32, 64, 128, 256, 512 and 1024, as far as the data go, where nothing is said.
        slots: Trials that train at once: 1, 4 and 16 where nothing is said. One trial alone, and
            what a search does by itself ("auto"), are measured in any case.
        mesh: Devices to compare with one of them: trials spread over them, and each batch split
            over them. None: all accelerators, where there are several. 1: none.
        hparams: Values of hyperparameters; the others have their defaults.
        precision: "float32" or "bfloat16"; None: Keras' policy as it is.
        budget: Seconds for everything; the most telling cells come first. None: no limit.
        epochs: Train one trial at each batch size for so many epochs too, and validate it.
        objective: What to compare them by; as for a search.
        scale_lr: "linear" or "sqrt": these trials' learning rate follows the batch size, by its
            ratio to the smallest; None: it is as ``build`` has it.
        target: A value of the objective: which batch size reaches it soonest?
        plan_trials: Of a search: how long will it take? Its beginning is run and timed.
        plan_epochs: Of each of its trials.
        plan_batch_size: Of its trials; None: the batch size that is measured first.
        plan_pruner: Its pruner. How much "asha" spares is known beforehand, what others do is not.
        quota: Hours a week of each platform, and of a session: "gpu=30h,tpu=20h,session=9h", or
            seconds by name. How many sessions does that search take, and where to stop?
        executor: "auto", or "fit" to measure Keras' own ``fit`` only.
        fit: Measure Keras' own ``fit`` at every batch size, not at one only.
        seed: Of weights and order.
        name: What to call the model; None: the function's own name.
        notes: Told of each cell; None: stderr.

    Returns:
        The result: ``print`` it, or take its ``runs`` and ``advice``.

    Raises:
        UsageError, DataError, BuildError: Something cannot work.
    """
    note = notes or _to_stderr
    builder = ModelBuilder(build)
    check_precision(precision)
    if executor not in ("auto", "fit"):
        raise UsageError(f"executor: {executor!r} is not one of auto, fit.")
    budget = arguments.check_budget(budget)
    data, validation = _data(x, y, validation_data, validation_split)
    plan = arguments.check_plan(
        plan_trials, plan_epochs, plan_batch_size, plan_pruner, quota, data.n
    )
    arguments.check_curves(epochs, scale_lr, target, validation is not None)
    sizes = arguments.check_batch_sizes(batch_sizes, data.n, note)
    chosen = arguments.check_slots(slots)
    packs = executor == "auto" and keras.backend.backend() == "jax"
    with search_process(precision, initial_weights=False, also=[nothing_cached()]):
        began = time.perf_counter()
        subject = Subject(builder, dict(hparams or {}), data, validation, seed)
        model = _first(subject)
        first_build = time.perf_counter() - began
        arguments.check_hparams(hparams or {}, subject)
        ask = BenchPlan(
            sizes,
            chosen,
            budget,
            packs,
            "all" if fit else "middle",
            meshes=arguments.meshes(mesh) if packs else (),
            epochs=epochs or 0,
            objective=objective,
            scale_lr=scale_lr or "none",
            plan_trials=plan.n_trials if plan else 0,
            plan_epochs=plan.epochs if plan else 0,
            plan_batch_size=plan_batch_size,
            plan_pruner=plan.pruner if plan else None,
        )
        facts = {
            "name": name or getattr(build, "__name__", type(build).__name__),
            "hparams": subject.hp.hparams if subject.hp else {},
            "variables": int(model.count_params()) if model.built else None,
        }
        del model
        runner = Runner(
            build, subject, ask, facts, told=_Teller(note), note=note, first_build=first_build
        )
        run = runner()
    _check_measured(run, budget, time.perf_counter() - began)
    return Bench([run], target=target, plan=plan)


class _Teller:
    """Tells of each cell; of those that are skipped for one reason in a row, only once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note, self._said = note, ""

    def __call__(self, cell: Measurement, at: int, of: int) -> None:
        again = cell.state == "skipped" and cell.reason == self._said
        self._said = cell.reason or ""
        if not again:
            self._note(progress_line(cell, at, of))


def progress_line(cell: Measurement, at: int, of: int) -> str:
    """One cell, as it was measured."""
    where = f"{at} of {of}: batch {cell.spot.batch_size}, {table.way(cell.spot)}"
    if cell.state == "measured":
        return f"{where}: {numbers.fine(cell.step)} a step, {cell.rate:,.0f} examples/s"
    return f"{where}: {cell.state}: {cell.reason}"


def _data(
    x: Any, y: Any, validation_data: Any, validation_split: float
) -> tuple[ArrayData, ArrayData | None]:
    try:
        data, validation = prepare(x, y), None
        if validation_data is not None:
            if not isinstance(validation_data, (tuple, list)):
                raise UsageError("validation_data: pass (x, y) or (x, y, sample_weight).")
            validation = prepare(*validation_data, what="validation data")
        elif validation_split:
            data, validation = split(data, validation_split)
    except NotArrays as reason:
        raise UsageError(f"x: {reason}, and arrays are measured only; pass arrays.") from None
    return data, validation


def _first(subject: Subject) -> Any:
    """A first model: one that fails, fails before anything is measured.

    Raises:
        BuildError: It failed.
    """
    try:
        return subject.model()
    except PacelineError:
        raise
    except Exception as error:
        raise BuildError(f"build(hp) failed: {type(error).__name__}: {error}") from error


def _check_measured(run: Run, budget: float | None, seconds: float) -> None:
    """Raises where the budget did not suffice for anything."""
    if run.measured or run.interrupted or any(cell.state == "failed" for cell in run.cells):
        return
    assert budget is not None
    raise UsageError(
        f"budget: {budget:g} s do not suffice for one cell: building and tracing the model, and "
        f"probing the device, took {numbers.seconds(seconds)} already; give more, such as "
        f"{max(60, round(10 * seconds))} s."
    )


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"paceline: {text}\n")
