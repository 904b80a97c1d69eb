"""``TorchHistory``: the history of a model that the user's own loop trains, such as PyTorch's."""

from __future__ import annotations


class TorchHistory:
    """Collects metrics by name, as ``fit`` does; a base class for a module of PyTorch.

    A module is not initialized by this class, so ``init_history`` is to be called first.

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
