"""What a trial trains with, beside its model: data, batches and epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset


@dataclass(frozen=True, eq=False)
class TrialInputs:
    """One trial's data, batch sizes and so on; trials that share one share the objects in it.

    Attributes:
        data: Training data; None where only ``fit`` can read it.
        validation: Validation data, or None.
        batch_size: Examples per step.
        validation_batch_size: Examples per validation step.
        steps_per_epoch: Batches of an epoch; None: all of the data.
        first_epoch: ``initial_epoch``.
        class_weight: Weight of each class, float[classes], where it differs between trials.
        key: Tells it from other settings of the search; empty where no data hang on hp.
        fit: What ``model.fit`` gets in this trial only.
        why_fit: Why it cannot be packed; None where it can.
    """

    data: ArrayData | BatchedDataset | None
    validation: ArrayData | None
    batch_size: int
    validation_batch_size: int
    steps_per_epoch: int | None = None
    first_epoch: int = 0
    class_weight: np.ndarray | None = None
    key: str = ""
    fit: Mapping[str, Any] = field(default_factory=dict)
    why_fit: str | None = None

    @property
    def group_key(self) -> str:
        """Tells apart what must not be taken for one another when trials are recognised."""
        text = self.key
        if self.steps_per_epoch is not None:
            text += f" steps {self.steps_per_epoch}"
        if self.validation is not None:
            text += f" validation {self.validation.n} by {self.validation_batch_size}"
        return text
