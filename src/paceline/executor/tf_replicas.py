"""TensorFlow's replicas: finds the devices, makes the strategy and its scope, and rounds batches.

Several accelerators, or one TPU, train each trial together. A batch is split over them into equal
parts. So batch sizes and numbers of examples are rounded down to a multiple of the number of
replicas. A TPU's programs have fixed shapes, so there the examples are rounded to whole batches.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import os
from collections.abc import Callable
from typing import Any

import keras

#: Environment variables that are set if there is a TPU, by Google's machines, Kaggle or users.
_TPU_VARIABLES = ("TPU_NAME", "COLAB_TPU_ADDR", "TPU_ACCELERATOR_TYPE")
_DATA = ("x", "y", "sample_weight")
#: Strategies that change nothing if they have one replica, on the only device.
_OF_ONE = ("MirroredStrategy", "OneDeviceStrategy")

Arguments = dict[str, Any]


class Replicas:
    """How many copies of a model train together.

    ``strategy`` is one of ``tf.distribute``; None: one copy, and nothing to do. ``note`` is told
    what is rounded, each sentence once.
    """

    def __init__(self, strategy: Any = None, note: Callable[[str], None] = lambda _: None) -> None:
        self._strategy, self._note = strategy, note
        self._said: set[str] = set()
        self.n = 1 if strategy is None else int(strategy.num_replicas_in_sync)  # number of copies
        self.name = type(strategy).__name__  # of the strategy's class

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which models are built."""
        return contextlib.nullcontext() if self._strategy is None else self._strategy.scope()

    def round(self, arguments: Arguments) -> Arguments:
        """Rounds the arguments of ``fit`` so that the replicas share batches and examples evenly.

        Without a batch size, and for data that are not arrays, nothing is rounded.
        """
        if self.n == 1 or "batch_size" not in arguments:
            return arguments
        found = dict(arguments)
        for name in ("batch_size", "validation_batch_size"):
            if found.get(name):
                found[name] = self._batch(name, found[name])
        size = found["batch_size"]
        found |= self._whole({k: found[k] for k in _DATA if k in found}, size, "training")
        if isinstance(found.get("validation_data"), (tuple, list)):
            parts: Arguments = dict(zip(_DATA, found["validation_data"], strict=False))
            size = found.get("validation_batch_size") or size
            found["validation_data"] = tuple(self._whole(parts, size, "validation").values())
        return found

    def _batch(self, name: str, size: int) -> int:
        rounded = max(self.n, size - size % self.n)
        if rounded != size:
            self._say(
                f"{name}: {size} becomes {rounded}, so that {self.n} replicas get equal parts"
            )
        return rounded

    def _whole(self, parts: Arguments, size: int, what: str) -> Arguments:
        """The data without those examples at the end that replicas could not share."""
        arrays = [a for part in parts.values() for a in keras.tree.flatten(part) if a is not None]
        if not arrays or not all(hasattr(array, "shape") for array in arrays):
            return parts
        n, unit = len(arrays[0]), size if "TPU" in self.name else self.n
        kept = n - n % unit
        if kept in (0, n):
            return parts
        self._say(
            f"the last {n - kept} of {n} {what} examples are left out, so that {self.n} replicas "
            f"get {'whole batches of' if unit == size else 'batches of'} equal parts"
        )
        return {
            name: None if part is None else keras.tree.map_structure(lambda a: a[:kept], part)
            for name, part in parts.items()
        }

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._note(text)


def find(note: Callable[[str], None]) -> Replicas:
    """Finds the replicas: TPUStrategy if a TPU answers, MirroredStrategy on several GPUs, else one.

    Without a GPU, several logical CPU devices count as well. ``note`` is told what was found unless
    it is a single device.
    """
    if keras.backend.backend() != "tensorflow":
        return Replicas()
    import tensorflow as tf

    if tf.distribute.has_strategy():  # the user's own
        return Replicas(tf.distribute.get_strategy(), note)
    strategy = _tpu(tf, note)
    if strategy is None:
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        if len(devices) > 1:
            strategy = tf.distribute.MirroredStrategy([device.name for device in devices])
    if strategy is not None:
        n = strategy.num_replicas_in_sync
        note(f"TensorFlow: {type(strategy).__name__} over {n} devices; each batch is split")
    return Replicas(strategy, note)


#: By which TensorFlow takes no more of a GPU's memory than it needs.
_GROWS = "TF_FORCE_GPU_ALLOW_GROWTH"


@functools.cache
def let_memory_grow() -> str | None:
    """Has TensorFlow take no more of a GPU than it needs; returns what to say if it is too late."""
    if _GROWS in os.environ:  # of the user's
        return None
    os.environ[_GROWS] = "true"
    import tensorflow as tf

    for device in tf.config.list_physical_devices("GPU"):
        try:
            if not tf.config.experimental.get_memory_growth(device):
                tf.config.experimental.set_memory_growth(device, True)
        except ValueError:  # the user has divided the device, and limited what TensorFlow takes
            continue
        except RuntimeError:  # it is in use
            return (
                "TensorFlow took the memory of the GPU before this search, so that packs may not "
                "have enough. Restart Python (in a notebook: the kernel), and put this line above "
                f'all imports: import os; os.environ["{_GROWS}"] = "true"'
            )
    return None


def leave_memory_to_packs(note: Callable[[str], None]) -> None:
    """As ``let_memory_grow`` where Keras is on TensorFlow; ``note`` is told if it is too late."""
    if keras.backend.backend() == "tensorflow" and (late := let_memory_grow()) is not None:
        note(late)


def has_replicas() -> bool:
    """Whether TensorFlow trains in the user's strategy, or there is a sign of a TPU.

    A strategy that trains as TensorFlow does without one is none.
    """
    import tensorflow as tf

    own = tf.distribute.has_strategy() and is_spread(tf.distribute.get_strategy())
    return own or _sign_of_tpu()


def is_spread(strategy: Any) -> bool:
    """Whether a strategy trains several copies of a model, or on a device that it has chosen."""
    import tensorflow as tf

    gpus = tf.config.list_logical_devices("GPU")
    if type(strategy).__name__ not in _OF_ONE or strategy.num_replicas_in_sync > 1 or len(gpus) > 1:
        return True
    return bool(gpus) != all("GPU" in device for device in strategy.extended.worker_devices)


def _sign_of_tpu() -> bool:
    return any(os.environ.get(name) for name in _TPU_VARIABLES) or bool(glob.glob("/dev/accel*"))


def _tpu(tf: Any, note: Callable[[str], None]) -> Any:
    """TPUStrategy; None if there is no sign of a TPU, or the TPU does not answer."""
    if not _sign_of_tpu():
        return None
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # there are many kinds: no TPU, another process's TPU, no such name
        note(f"TensorFlow found no TPU ({type(error).__name__}: {error}); continuing without it")
        return None
