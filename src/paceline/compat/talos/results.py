"""The protocols of a scan for evaluation and reduction.

``Scan`` fulfils both, ``Restore`` fulfils ``ScanResults``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from paceline.compat.talos.space import ParamSpace


class ScanResults(Protocol):
    """Results whose models can be evaluated.

    Attributes:
        data: One row per permutation that trained.
    """

    data: pd.DataFrame

    def best_row(self, metric: str | None, asc: bool) -> int:
        """Returns the row of ``data`` that is best in a metric; ``asc``: low values are better."""
        ...

    def activate(
        self, row: int, saved: bool = False, custom_objects: dict[str, Any] | None = None
    ) -> Any:
        """Returns the trained model of a row of ``data``."""
        ...


class RunningScan(ScanResults, Protocol):
    """A scan that runs, whose space a reduction makes smaller.

    Attributes:
        param_object: The permutations to come.
        folder: Folder of the experiment.
        experiment_id: The name of the experiment's files, without their endings.
        seed: Seed of the scan; None: another one each time.
        minimize_loss: Whether low values of ``reduction_metric`` are better.
        reduction_method: One of ``reduction.METHODS``, or a function of the scan.
        reduction_interval: Number of permutations between two reductions.
        reduction_window: Number of the latest rows of ``data`` that a reduction uses.
        reduction_threshold: Correlation from which a value is removed.
        reduction_metric: Name of a metric in ``data``.
    """

    param_object: ParamSpace
    folder: Path
    experiment_id: str
    seed: int | None
    minimize_loss: bool
    reduction_method: Any
    reduction_interval: int
    reduction_window: int
    reduction_threshold: float
    reduction_metric: str

    @property
    def parameter_columns(self) -> dict[str, str]:
        """Parameter -> its column of ``data``."""
        ...

    @property
    def metric_columns(self) -> list[str]:
        """Columns of ``data`` that are metrics."""
        ...
