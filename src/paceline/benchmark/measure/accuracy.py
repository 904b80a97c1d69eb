"""What a larger batch does to accuracy: one trial is trained at each batch size, and timed.

Each batch size needs a program of its own, so these trials cannot share a pack. They train one
after another, so that the seconds of each trial are not those of its neighbours too. The seconds
leave out building, tracing and compiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from paceline.benchmark.measure.cell import describe
from paceline.benchmark.measure.subject import BenchModel
from paceline.benchmark.records import Curve
from paceline.executor.base import Answer, EpochReport, Executor, Job, PackOptions, SearchData
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.report import formats
from paceline.study.objectives import Objective, resolve_objective

#: How the learning rate follows the batch size: by its ratio to the smallest one.
SCALES: dict[str, Callable[[float], float]] = {
    "none": lambda ratio: 1.0,
    "linear": lambda ratio: ratio,
    "sqrt": math.sqrt,
}
_NO_TIME = "stopped after {} of {} epochs: the measuring time is used up"


class CurveInterrupted(KeyboardInterrupt):
    """Raised when the user pressed Ctrl-C; ``curve`` has the epochs that had ended by then."""

    def __init__(self, curve: Curve) -> None:
        super().__init__()
        done = formats.count(len(curve.values), "epoch")
        self.curve = replace(curve, reason=f"interrupted after {done}")


def train_curve(
    subject: BenchModel,
    batch_size: int,
    epochs: int,
    *,
    objective: str | None,
    scale: float,
    plan: str,
    left: Callable[[], float],
    note: Callable[[str], None] = lambda text: None,
) -> Curve:
    """Trains one trial and validates it after each epoch.

    ``objective`` is as ``Tuner`` takes it; None: the model's first metric. ``scale`` multiplies the
    learning rate. ``plan``: "vectorized" or "sequential", whichever is faster for one trial; or
    "fit". ``left`` returns the seconds that are left of the budget; ``note`` gets a line of text
    after each epoch.

    An error of the user's code does not reach the caller: it is the curve's ``reason``. Raises
    CurveInterrupted when the user presses Ctrl-C.
    """
    curve = Curve(batch_size, objective or "", "maximize", scale=scale, plan=plan)
    try:
        model = subject.model()
        rate = _scaled(model, scale)
        executor = _executor(subject, batch_size, plan)
    except Exception as error:  # the user's code
        return replace(curve, reason=describe(error))
    trained = _CurveRecorder(replace(curve, learning_rate=rate), objective, epochs, left, note)

    def rebuild() -> Any:
        again = subject.model()
        _scaled(again, scale)
        return again

    try:
        executor.submit(Job(0, subject.seed, epochs, batch_size, model, rebuild))
        while executor.busy:
            executor.advance(trained.take, lambda: False, trained.failed)
    except KeyboardInterrupt:
        raise CurveInterrupted(trained.curve) from None
    except Exception as error:
        trained.failed(0, error)
    finally:
        if isinstance(executor, LocalExecutor):
            executor.close()
    return trained.curve


@dataclass(eq=False, repr=False)
class _CurveRecorder:
    """Collects the epochs of the trial into a curve, and stops the trial when time runs out."""

    curve: Curve
    given: str | None  # the objective as ``Tuner`` takes it
    epochs: int
    left: Callable[[], float]
    note: Callable[[str], None]
    objective: Objective | None = None  # known after the first epoch

    def take(self, report: EpochReport) -> Answer:
        if self.objective is None:
            self.objective = resolve_objective(self.given, None, list(report.logs))
            self.curve = replace(
                self.curve, metric=self.objective.name, direction=self.objective.direction
            )
        curve, name = self.curve, self.objective.name
        value = float(report.logs[name])
        self.note(
            f"batch {curve.batch_size}, epoch {report.epoch} of {self.epochs}: {name} {value:.4f}"
        )
        if not math.isfinite(value):
            self.curve = replace(curve, reason=f"{name} is {value} in epoch {report.epoch}")
            return "stop"
        curve.values.append(value)
        curve.seconds.append(report.seconds + (curve.seconds[-1] if curve.seconds else 0.0))
        if report.epoch < self.epochs and self.left() < report.seconds:
            why = _NO_TIME.format(report.epoch, self.epochs)
            self.curve = replace(curve, reason=why)
            return "stop"
        return "stop" if report.epoch >= self.epochs else "continue"

    def failed(self, number: int, error: BaseException) -> None:
        self.curve = replace(self.curve, reason=describe(error))


def _executor(subject: BenchModel, batch_size: int, plan: str) -> Executor:
    if plan != "fit":
        return LocalExecutor(
            SearchData(subject.data, subject.validation), PackOptions(slots=1, plan=plan)
        )
    names = ("x", "y", "sample_weight")
    arrays: dict[str, Any] = dict(zip(names, subject.data.inputs, strict=False))
    assert subject.validation is not None
    return FitExecutor({**arrays, "validation_data": subject.validation.inputs})


def _scaled(model: Any, scale: float) -> float | None:
    """Multiplies the learning rate of a model and returns it; None if it follows a schedule.

    Raises TypeError if ``scale`` is not 1 and the optimizer follows a schedule.
    """
    optimizer = model.optimizer
    rate = float(optimizer.learning_rate)
    try:
        optimizer.learning_rate = rate * scale
    except TypeError:
        if scale != 1.0:
            raise TypeError(
                "scale_lr: the optimizer's learning rate is a schedule, which scale_lr cannot "
                "change. Leave scale_lr out"
            ) from None
        return None
    return rate * scale
