"""A training in Keras' ``fit`` as it stands after an epoch, and one that goes on from there.

Beside the model's variables, the order of examples hangs on the global random states, from which
``fit`` draws a permutation at the beginning of each epoch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

Arrays = dict[str, np.ndarray]
_NAME = "fit"


class FitState(keras.callbacks.Callback):
    """Follows one training; the callback before the one that reports.

    Args:
        number: Of the job that trains.
        before: Of ``taken``, where it goes on; None: it begins.
        arrays: Likewise.

    Attributes:
        number: Of the job.
        epoch: Epochs trained, those before among them.
    """

    def __init__(
        self,
        number: int,
        before: Mapping[str, Any] | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__()
        self.number, self._before, self._arrays = number, before, dict(arrays or {})
        self.epoch = 0 if before is None else int(before["epoch"])
        self._random: tuple[Any, Any] = random.getstate(), np.random.get_state()

    def on_train_begin(self, logs: Any = None) -> None:
        """Puts the variables back, which exist from here on."""
        if self._before is None:
            return
        for part, variables in enumerate(self._parts()):
            for at, variable in enumerate(variables):
                value = self._arrays.get(f"{_NAME}.{part}.{at}")
                if value is None or value.shape != tuple(variable.shape):
                    raise RuntimeError("its model is not what it was when the search stopped")
                variable.assign(value)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Puts the random states back: ``fit`` draws an epoch's order after this."""
        if self._before is None:
            return
        python, kind, position, gauss, cached = self._before["random"]
        random.setstate((python[0], tuple(python[1]), python[2]))
        keys = self._arrays[f"{_NAME}.keys"]
        np.random.set_state((kind, keys, position, gauss, cached))
        self._before = None
        self._arrays.clear()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes that an epoch has ended, and from where the next would draw."""
        self.epoch += 1
        self._random = random.getstate(), np.random.get_state()

    def taken(self, arrays: Arrays) -> dict[str, Any]:
        """The training after its last epoch, as JSON values and, in ``arrays``, variables."""
        if self._before is not None:  # its turn has not come again
            arrays.update(self._arrays)
            return dict(self._before)
        for part, variables in enumerate(self._parts()):
            for at, variable in enumerate(variables):
                arrays[f"{_NAME}.{part}.{at}"] = np.array(keras.ops.convert_to_numpy(variable))
        python, (kind, keys, position, gauss, cached) = self._random
        arrays[f"{_NAME}.keys"] = np.array(keys)
        own = [python[0], list(python[1]), python[2]]
        return {
            "job": self.number,
            "epoch": self.epoch,
            "random": [own, kind, int(position), int(gauss), float(cached)],
        }

    def _parts(self) -> list[list[Any]]:
        model = self.model
        assert model is not None
        optimizer = model.optimizer.variables
        return [model.trainable_variables, model.non_trainable_variables, list(optimizer)]
