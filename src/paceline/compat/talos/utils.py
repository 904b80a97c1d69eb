"""``talos.utils``: the functions and classes that notebooks import from there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import keras
import numpy as np
import pandas as pd

from paceline.compat.talos import metrics
from paceline.compat.talos.callbacks import TrainingPlot
from paceline.compat.talos.errors import TalosDataError
from paceline.compat.talos.evaluate import Scoring, check_inputs, measure, split
from paceline.compat.talos.logs import (
    column,
    is_loss,
    parameter_columns,
    read_table,
    trained_params,
)
from paceline.compat.talos.model import early_stopper, hidden_layers, lr_normalizer
from paceline.compat.talos.notes import say
from paceline.compat.talos.space import ParamSpace
from paceline.errors import UsageError

__all__ = [
    "SequenceGenerator",
    "TorchHistory",
    "create_param_space",
    "early_stopper",
    "generator",
    "gpu_utils",
    "hidden_layers",
    "live",
    "lr_normalizer",
    "metrics",
    "power_draw_append",
    "recover_best_model",
    "rescale_meanzero",
    "val_split",
]


class SequenceGenerator(keras.utils.PyDataset):
    """A data set of batches in order, for ``model.fit``.

    Args:
        x_set: Features [N, ...].
        y_set: Targets [N, ...].
        batch_size: Number of examples of a batch.
        x: Another name of ``x_set``.
        y: Another name of ``y_set``.
        backend: Has no effect: all models are Keras models.
        **arguments: Further arguments of ``keras.utils.PyDataset``.
    """

    def __init__(
        self,
        x_set: Any = None,
        y_set: Any = None,
        batch_size: int = 32,
        *,
        x: Any = None,
        y: Any = None,
        backend: str = "keras",
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.x, self.y = (x if x_set is None else x_set), (y if y_set is None else y_set)
        if self.x is None or self.y is None or batch_size < 1:
            raise TalosDataError(
                "SequenceGenerator needs x_set, y_set and a positive batch_size, got batch_size="
                f"{batch_size}. Pass all three."
            )
        self.batch_size = batch_size

    def __len__(self) -> int:
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        part = slice(index * self.batch_size, (index + 1) * self.batch_size)
        return self.x[part], self.y[part]


def generator(x: Any, y: Any, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches of x [N, ...] and y [N, ...] in order, without end, as float32."""
    while True:
        for start in range(0, len(x), batch_size):
            part = slice(start, start + batch_size)
            yield np.asarray(x[part], "float32"), np.asarray(y[part], "float32")


def val_split(
    x: Any,
    y: Any,
    split_share: float = 0.3,
    shuffled: bool = True,
    *,
    multi_input: bool = False,
    seed: int | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Splits x [N, ...] and y [N, ...]; returns x_train, y_train, x_val, y_val.

    ``split_share`` of the examples validate; ``multi_input``: x is a list of arrays.
    """
    check_inputs(x, multi_input)
    return split(x, y, split_share, shuffle=shuffled, seed=seed)


def live(**options: Any) -> TrainingPlot:
    """Returns a ``TrainingPlot``: the name of version 0.5. ``options`` have no effect."""
    return TrainingPlot(**options)


def rescale_meanzero(x: Any) -> np.ndarray:
    """Returns the numeric columns, each scaled to mean 0 and deviation 1."""
    table = pd.DataFrame(x).copy()
    for name in table.select_dtypes("number"):
        spread = table[name].std()
        table[name] = (table[name] - table[name].mean()) / (spread or 1.0)
    return table.to_numpy()


def create_param_space(data: pd.DataFrame, no_of_metrics: int = 2) -> ParamSpace:
    """Returns the space of a log, whose first ``no_of_metrics`` columns are not parameters."""
    columns = data.columns[no_of_metrics:]
    return ParamSpace({name: data[name].unique().tolist() for name in columns})


def power_draw_append(history: Any, power_draw: Any) -> Any:
    """Adds watts_min, watts_max, seconds and Ws to the history of a ``fit``, and returns it.

    ``power_draw`` is the ``PowerDraw`` callback of that ``fit``.
    """
    log = power_draw.log
    watts = [*log["epoch_begin"], *log["epoch_end"]]
    means = (np.array(log["epoch_begin"]) + np.array(log["epoch_end"])) / 2
    history.history |= {
        "watts_min": [min(watts)],
        "watts_max": [max(watts)],
        "seconds": [sum(log["seconds"])],
        "Ws": [round(float(means @ np.array(log["seconds"])), 2)],
    }
    return history


def recover_best_model(
    x_train: Any,
    y_train: Any,
    x_val: Any,
    y_val: Any,
    experiment_log: str | Path,
    input_model: Callable[..., Any],
    metric: str,
    multi_input: bool = False,
    x_cross: Any = None,
    y_cross: Any = None,
    n_models: int = 5,
    task: str = "multi_label",
    asc: bool | None = None,
    folds: int = 5,
    param_resolver: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> tuple[pd.DataFrame, list[Any]]:
    """Trains the best permutations of a log again, and scores them on parts of other data.

    If the folder of the log's scan still exists, the params are those of the scan. Else they are
    all columns of the log but the metric.

    Args:
        x_train: Training features [N, ...] of the scan.
        y_train: Training targets [N, ...] of the scan.
        x_val: Validation features [V, ...] of the scan.
        y_val: Validation targets [V, ...] of the scan.
        experiment_log: Path of the scan's log.
        input_model: The function of the scan.
        metric: The metric that ranks permutations.
        multi_input: Whether x is a list of arrays.
        x_cross: Features to score on; None: ``x_val``.
        y_cross: Targets to score on; None: ``y_val``.
        n_models: Number of permutations.
        task: "binary", "multi_class", "multi_label" or "continuous".
        asc: Whether low values of the metric are better; None: Paceline goes by its name.
        folds: Number of parts.
        param_resolver: Called with the params of each permutation; returns those to train with.

    Returns:
        The rows of these permutations with a column for the score, and their models.
    """
    table = read_table(experiment_log)
    name = column(metric, table.columns)
    least = is_loss(name) if asc is None else asc
    found = table.sort_values(name, ascending=least, kind="stable").head(n_models).copy()
    if x_cross is None:
        x_cross, y_cross = x_val, y_val
    scoring = Scoring(x_cross, y_cross, task, multi_input, folds)
    models, scores = [], []
    columns = parameter_columns(experiment_log)
    rows = found.to_dict("records")  # a Series would turn integers of a row into floats
    trained = trained_params(experiment_log, [row.get("duration", math.nan) for row in rows])
    for own, row in zip(trained, rows, strict=True):
        if own is not None:
            params = own
        elif columns is not None:
            params = {key: row[its] for key, its in columns.items() if its in row}
        else:
            params = {key: value for key, value in row.items() if key != name}
        if param_resolver is not None:
            params = param_resolver(params)
        _, model = input_model(x_train, y_train, x_val, y_val, params)
        models.append(model)
        scores.append(float(np.mean(scoring.scores(model))))
    found[f"crossval_mean_{measure(task)}"] = scores
    return found, models


class TorchHistory:
    """Collects metrics by name, as ``fit`` does; a base class for a module of PyTorch.

    This class does not initialize a module, so call ``init_history`` first.

    Attributes:
        history: Metric -> its values, in order.
    """

    def __init__(self) -> None:
        self.history: dict[str, list[float]] = {}

    def init_history(self) -> None:
        """Forgets all values."""
        self.history = {}

    def append_history(self, history_data: float, label: str) -> None:
        """Adds a value of a metric."""
        self.history.setdefault(label, []).append(history_data)

    def append_loss(self, _loss: float) -> None:
        """Adds a value of "loss"."""
        self.append_history(_loss, "loss")

    def append_metric(self, _metric: float) -> None:
        """Adds a value of "metric"."""
        self.append_history(_metric, "metric")

    def append_val_loss(self, _loss: float) -> None:
        """Adds a value of "val_loss"."""
        self.append_history(_loss, "val_loss")

    def append_val_metric(self, _loss: float) -> None:
        """Adds a value of "val_metric"."""
        self.append_history(_loss, "val_metric")


# -- gpu_utils: functions that arrange GPUs by hand, which Paceline does not need ------------------


def parallel_gpu_jobs(
    allow_growth: bool = True, fraction: float = 0.5, backend: str = "keras"
) -> None:
    """Prints a note: permutations share the GPU in one process, which needs no help."""
    say(
        "parallel_gpu_jobs: allow_growth and fraction have no effect, because permutations train "
        "side by side in one process. For several processes, set XLA_PYTHON_CLIENT_MEM_FRACTION"
    )


def multi_gpu(
    model: Any,
    gpus: Any = None,
    cpu_merge: bool = True,
    cpu_relocation: bool = False,
) -> Any:
    """Returns the model as it is, because a scan spreads permutations over the GPUs."""
    say("multi_gpu has no effect: a scan spreads permutations over all GPUs")
    return model


def force_cpu(backend: str = "keras") -> None:
    """Makes JAX use the CPU.

    Raises:
        UsageError: JAX has chosen another device already.
    """
    jax.config.update("jax_platforms", "cpu")
    if jax.default_backend() != "cpu":
        raise UsageError(
            f"force_cpu must come before JAX chooses a device, and JAX uses the "
            f"{jax.default_backend()}. Call it first, or set JAX_PLATFORMS=cpu."
        )


#: A module of this name exists in Talos.
gpu_utils = SimpleNamespace(
    parallel_gpu_jobs=parallel_gpu_jobs, multi_gpu=multi_gpu, force_cpu=force_cpu
)
