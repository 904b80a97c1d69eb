"""What evaluation and reduction see of a scan; ``Scan`` and ``Restore`` fulfil these protocols."""

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
        """The row of ``data`` that is best in a metric; ``asc``: less is better."""
        ...

    def activate(
        self, row: int, saved: bool = False, custom_objects: dict[str, Any] | None = None
    ) -> Any:
        """The trained model of a row of ``data``."""
        ...


class RunningScan(ScanResults, Protocol):
    """A scan that runs, whose space a reduction makes smaller.

    Attributes:
        param_object: The permutations to come.
        folder: Where the files of the experiment are.
        experiment_id: Names those files.
        seed: Of the scan; None: any.
        minimize_loss: Less of the reduction's metric is better.
        reduction_method: One of ``reduction.METHODS``, or a function of the scan.
        reduction_interval: Permutations between two reductions.
        reduction_window: The latest rows of ``data`` that a reduction looks at.
        reduction_threshold: Correlation from which a value is taken out.
        reduction_metric: A metric of ``data``.
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
