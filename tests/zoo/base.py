"""What a catalogue entry is, the data the entries share, and Keras' own answer to compare with.

Notation: N samples, B batch size. All data sets are tiny and the last batch is always smaller than
the others (50 = 3 * 16 + 2 for training, 23 = 16 + 7 for validation), because a remainder batch is
where averages and padding go wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import keras
import numpy as np

from paceline.search_space import HyperParameters

N_TRAIN = 50
N_VAL = 23
BATCH_SIZE = 16
# What an input is multiplied by to see how far Keras moves from itself in float32: about 8 units in
# the last place, enough to change the rounding of every later operation.
NUDGE = 1.0 + 1e-6


@dataclass(frozen=True)
class Case:
    """A small model of one kind, with data, and values that differ in float constants only.

    Attributes:
        name: identifies the case in test names.
        build: the user's function, ``build(hp) -> compiled keras.Model``.
        data: ``() -> (x, y)`` or ``(x, y, sample_weight)``, N_TRAIN samples.
        val_data: the same with N_VAL samples, or None (then ``fit`` may hold validation_split).
        hparams: three or four trials' values; every name that ``build`` declares is given.
        one_group: whether all of ``hparams`` are expected to share one fingerprint.
        float64_exact: under float64 the traced steps hold no float32 or bfloat16 arithmetic, so a
            packed trial agrees with Keras to 1e-9; otherwise to 1e-6. ``test_zoo.py`` checks this
            flag against the traced steps.
        packable: False where Paceline must refuse to pack and leave the trial to Keras' ``fit``.
        bfloat16: the case computes in bfloat16 whatever floatx is: allowed to differ by 2e-2.
        chaotic: why two correct float32 runs drift apart quickly, or "": judge this case in
            float64, or in float32 by ``self_perturbation`` alone.
        fit: further arguments for ``model.fit`` (class_weight, validation_split).
        family: which file of the catalogue it comes from.
    """

    name: str
    build: Callable[[Any], keras.Model]
    data: Callable[[], tuple]
    val_data: Callable[[], tuple] | None
    hparams: list[dict[str, float]]
    one_group: bool = True
    float64_exact: bool = True
    packable: bool = True
    bfloat16: bool = False
    chaotic: str = ""
    epochs: int = 2
    batch_size: int = BATCH_SIZE
    fit: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""
    notes: str = ""


CASES: dict[str, Case] = {}

# History and final weights.
Run = tuple[dict[str, list[Any]], list[np.ndarray]]


def case(
    data: Callable[[int, int], tuple],
    *,
    name: str | None = None,
    validation: bool = True,
    notes: str = "",
    **fields: Any,
) -> Callable[[Callable[[Any], keras.Model]], Callable[[Any], keras.Model]]:
    """Put the decorated ``build`` into ``CASES``.

    Args:
        data: ``(n, seed) -> (x, y[, sample_weight])``.
        name: the case's name; the function's when not given.
        validation: whether the case has a validation set of its own.
        notes: anything a reader of a failing test should know.
        **fields: the other fields of ``Case``.
    """

    def add(build: Callable[[Any], keras.Model]) -> Callable[[Any], keras.Model]:
        entry = Case(
            name=name or build.__name__,
            build=build,
            data=lambda: data(N_TRAIN, 1),
            val_data=(lambda: data(N_VAL, 2)) if validation else None,
            family=build.__module__.rpartition(".")[2],
            notes=notes or (build.__doc__ or "").strip(),
            **fields,
        )
        if entry.name in CASES:
            raise ValueError(f"two zoo cases are called {entry.name!r}")
        CASES[entry.name] = entry
        return build

    return add


def vary(**columns: Sequence[float]) -> list[dict[str, float]]:
    """``vary(lr=[1, 2], rate=[3, 4])`` is ``[{"lr": 1, "rate": 3}, {"lr": 2, "rate": 4}]``."""
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def reference(
    entry: Case,
    hparams: Mapping[str, float],
    seed: int,
    *,
    data: tuple | None = None,
    val_data: tuple | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    nudge_weights: float = 1.0,
) -> Run:
    """Train the case alone with Keras' own ``fit(shuffle=False)``: what a packed trial must equal.

    The session is cleared first, so that names which Keras numbers per process (``auc``, ``auc_1``)
    are those of a fresh process.

    Args:
        entry: the case.
        hparams: the trial's values.
        seed: the trial's seed.
        data: instead of the case's own (x, y[, sample_weight]).
        val_data: instead of the case's own.
        epochs: instead of the case's own.
        batch_size: instead of the case's own.
        callbacks: given to ``fit``; ``EpochWeights`` is one.
        nudge_weights: the initial trainable weights are multiplied by this.

    Returns:
        The history (metric name to one float per epoch; of a metric that is a vector the mean under
        its name, and each number under the name with its index) and the weights after ``fit``, in
        the order of ``model.get_weights()``. With ``use_ema`` these are the averages, which ``fit``
        puts into the model as its last act; the trained weights themselves are only visible to a
        callback (``EpochWeights``).
    """
    x, y, sample_weight = _unpack(entry.data() if data is None else data)
    if val_data is None and entry.val_data is not None:
        val_data = entry.val_data()
    fresh_session()
    keras.utils.set_random_seed(seed)
    model = entry.build(HyperParameters(values=dict(hparams)))
    if nudge_weights != 1.0:
        _scale_initial_weights(model, x, nudge_weights)
    history = model.fit(
        x,
        y,
        sample_weight=sample_weight,
        validation_data=val_data,
        epochs=entry.epochs if epochs is None else epochs,
        batch_size=entry.batch_size if batch_size is None else batch_size,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        **entry.fit,
    ).history
    found: dict[str, list[Any]] = {}
    for name, values in history.items():
        table = np.asarray([np.asarray(value, dtype="float64") for value in values])
        if table.ndim == 1:
            found[name] = table.tolist()
            continue
        found[name] = table.mean(axis=1).tolist()
        found |= {f"{name}_{i}": column.tolist() for i, column in enumerate(table.T)}
    return found, [np.asarray(w) for w in model.get_weights()]


def fresh_session() -> None:
    """Keras' automatic names start again at 0, as in a new process; the dtype policy stays."""
    policy = keras.config.dtype_policy()
    keras.backend.clear_session(free_memory=False)  # a full garbage collection costs 0.2 s
    keras.config.set_dtype_policy(policy)


class EpochWeights(keras.callbacks.Callback):
    """Keeps ``model.get_weights()`` of every epoch's end, before EMA replaces them."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[list[np.ndarray]] = []

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.epochs.append([np.asarray(w) for w in self.model.get_weights()])


@dataclass(frozen=True)
class Movement:
    """How far two runs lie apart, as largest absolute differences."""

    history: dict[str, float]
    weights: float


def distance(one: Run, other: Run) -> Movement:
    """Largest absolute differences between two results of ``reference``.

    Raises:
        AssertionError: if they do not have the same metrics, epochs or shapes.
    """
    assert one[0].keys() == other[0].keys(), (sorted(one[0]), sorted(other[0]))
    history = {
        name: float(np.max(np.abs(np.subtract(values, other[0][name]))))
        for name, values in one[0].items()
    }
    assert [w.shape for w in one[1]] == [w.shape for w in other[1]]
    moves = [
        np.max(np.abs(a.astype("float64") - b.astype("float64")), initial=0.0)
        for a, b in zip(one[1], other[1], strict=True)
    ]
    return Movement(history, float(max(moves, default=0.0)))


def self_perturbation(
    entry: Case,
    hparams: Mapping[str, float],
    seed: int,
    *,
    nudges: Sequence[float] = (NUDGE,),
    alone: Run | None = None,
    **fit: Any,
) -> Movement:
    """How far Keras moves from itself when its float inputs are scaled by 1 + 1e-6.

    uint8 images become float32 first (the model casts them anyway). Where x holds no float, as with
    word numbers, the initial trainable weights are scaled instead.

    Args:
        entry: the case.
        hparams: the trial's values.
        seed: the trial's seed.
        nudges: factors to try; the largest movement over all of them counts.
        alone: the unchanged run, where ``reference`` has made it already.
        **fit: further arguments of ``reference``.
    """
    if alone is None:
        alone = reference(entry, hparams, seed, **fit)
    moves = []
    for nudge in nudges:
        x, *rest = entry.data()
        val = entry.val_data() if entry.val_data is not None else None
        changed: dict[str, Any] = {"nudge_weights": nudge}
        if any(_scalable(leaf) for leaf in jax.tree.leaves(x)):
            changed = {"data": (jax.tree.map(lambda a, f=nudge: _scaled(a, f), x), *rest)}
            if val is not None:
                val_x = jax.tree.map(lambda a, f=nudge: _scaled(a, f), val[0])
                changed["val_data"] = (val_x, *val[1:])
        moves.append(distance(alone, reference(entry, hparams, seed, **fit, **changed)))
    return Movement(
        {name: max(m.history[name] for m in moves) for name in moves[0].history},
        max(m.weights for m in moves),
    )


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Everything inside computes in float64: JAX's x64 mode, Keras' floatx and dtype policy."""
    before = (
        bool(jax.config.read("jax_enable_x64")),
        keras.config.floatx(),
        keras.config.dtype_policy(),
    )
    try:
        jax.config.update("jax_enable_x64", True)
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
        yield
    finally:
        jax.config.update("jax_enable_x64", before[0])
        keras.config.set_floatx(before[1])
        keras.config.set_dtype_policy(before[2])


def _unpack(data: tuple) -> tuple[Any, Any, Any]:
    x, y, sample_weight = (*data, None)[:3]
    return x, y, sample_weight


def _scalable(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype == np.uint8


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    if not _scalable(array):
        return array
    # In floatx precision: scaling float64 data in float32 would round it.
    return array.astype(keras.config.floatx()) * np.asarray(factor, keras.config.floatx())


def _scale_initial_weights(model: keras.Model, x: Any, factor: float) -> None:
    if not model.built:
        model.build(jax.tree.map(lambda a: (None, *a.shape[1:]), x))
    for variable in model.trainable_variables:
        variable.assign(variable.value * factor)
