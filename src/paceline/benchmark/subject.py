"""What is measured: one configuration of a model on its data, traced once for each batch size."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import keras

from paceline.data.arrays import ArrayData
from paceline.data.labels import check_labels
from paceline.executor.base import SearchData
from paceline.executor.grouping import Group, TrialGrouper
from paceline.executor.memory import free_bytes
from paceline.executor.model_builder import ModelBuilder
from paceline.pack.mesh import MeshLayout
from paceline.program import trace
from paceline.program.trace import State
from paceline.search_space import HyperParameters


@dataclass(frozen=True)
class Traced:
    """A model's steps at one batch size.

    Attributes:
        group: As a search has it.
        state: The model's variables.
        build, trace: Seconds.
    """

    group: Group
    state: State
    build: float
    trace: float


class Subject:
    """A model and its data.

    Args:
        build: As for a search.
        hparams: Values of hyperparameters; the others have their defaults.
        data: Training data.
        validation: Validation data, or None.
        seed: Of weights and order.

    Attributes:
        hp: The hyperparameters, after the first build.
        free: Bytes that were free on the device before anything was there.
    """

    def __init__(
        self,
        build: ModelBuilder,
        hparams: dict[str, Any],
        data: ArrayData,
        validation: ArrayData | None,
        seed: int = 0,
    ) -> None:
        self._build, self._hparams, self.seed = build, dict(hparams), seed
        self.data, self.validation = data, validation
        self.hp: HyperParameters | None = None
        self.free = free_bytes()
        self._traced: dict[int, Traced | Exception] = {}
        self._placed: dict[Any, Any] = {}
        self._there: dict[Any, dict[int, Any]] = {}

    def model(self) -> Any:
        """The compiled model, built anew, from the seed.

        Raises:
            Exception: Whatever the user's ``build`` raises.
        """
        hp = HyperParameters(values=self._hparams, chooser=_default)
        model = self._build(hp, self.seed)
        if self.hp is None:
            check_labels(model, self.data, "training data")
            self.hp = hp
        return model

    def traced(self, batch_size: int) -> Traced:
        """The steps at a batch size; one that failed fails again without being tried.

        Raises:
            Exception: What building or tracing raised.
        """
        if batch_size not in self._traced:
            try:
                self._traced[batch_size] = self._trace(batch_size)
            except Exception as error:
                self._traced[batch_size] = error
        found = self._traced[batch_size]
        if isinstance(found, Exception):
            raise found
        return found

    def _trace(self, batch_size: int) -> Traced:
        began = time.perf_counter()
        model = self.model()
        trace.check_packable(model)
        state = trace.build_state(model, self.data.batch_shapes(batch_size))
        built = time.perf_counter()
        # An intake of its own: one that knows the structure would not trace again.
        group = TrialGrouper(SearchData(self.data, self.validation)).pretrace(model, batch_size)
        assert group is not None
        for role in group.roles:
            role.settle(group.n_seen)
        return Traced(group, state, built - began, time.perf_counter() - built)

    def fingerprint(self, model: Any, batch_size: int) -> str:
        """What decides which models share a program at a batch size.

        Raises:
            Unpackable: It cannot be packed.
        """
        trace.check_packable(model)
        shapes = self.data.batch_shapes(batch_size)
        step = trace.trace_train(model, trace.build_state(model, shapes), shapes)
        return step.canonical.fingerprint

    def on_device(self, layout: MeshLayout | None) -> Any:
        """The training data on the default device, or on those of a layout."""
        if layout not in self._placed:
            there = self._there.setdefault(layout.devices if layout else None, {})
            where = layout.everywhere if layout else None
            self._placed[layout] = self.data.on_device(there=there, sharding=where)
        return self._placed[layout]

    @property
    def precision(self) -> str:
        """Keras' dtype policy, which the model is built in."""
        return keras.config.dtype_policy().name


def _default(parameter: Any) -> Any:
    return parameter.default
