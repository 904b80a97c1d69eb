"""The subject of a benchmark: one configuration of a model and its data.

The model is traced once for each batch size.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import keras

from paceline.data.arrays import ArrayData
from paceline.data.labels import check_labels
from paceline.executor.base import SearchData
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.sharing.grouping import LocalGroup, TrialGrouper
from paceline.executor.tokens import TokenChecks
from paceline.executor.training.memory import free_bytes
from paceline.executor.wide_integers import check_casts
from paceline.pack.mesh import MeshLayout
from paceline.program import keras_private, trace
from paceline.program.trace import State
from paceline.search_space import HyperParameters


@dataclass(frozen=True)
class TracedSteps:
    """The traced steps of a model at one batch size."""

    group: LocalGroup  # of trials that share these steps, as in a search
    state: State  # the variables of the model
    build: float  # seconds that building the model took
    trace: float  # seconds that tracing the steps took


class BenchModel:
    """A model with fixed hyperparameters, and its data.

    Hyperparameters that ``hparams`` leave out have their defaults. ``seed`` is that of the weights
    and of the order of examples.
    """

    def __init__(
        self,
        build: Any,
        hparams: dict[str, Any],
        data: ArrayData,
        validation: ArrayData | None,
        seed: int = 0,
    ) -> None:
        self.build, self._builder = build, ModelBuilder(build)
        self._hparams, self.seed = dict(hparams), seed
        self.data, self.validation = data, validation
        self.hp: HyperParameters | None = None  # None before the first build
        self.free = free_bytes()  # on the device, before the data is put there
        self.first_build = 0.0  # seconds
        self._traced: dict[int, TracedSteps | Exception] = {}
        self._placed: dict[Any, Any] = {}
        self._there: dict[Any, dict[int, Any]] = {}

    def model(self) -> Any:
        """Builds the compiled model again; its weights are drawn from the seed."""
        hp = HyperParameters(values=self._hparams, chooser=_default)
        began = time.perf_counter()
        model = self._builder(hp, self.seed)
        if self.hp is None:
            self.hp, self.first_build = hp, time.perf_counter() - began
            self._check(model)
        return model

    def _check(self, model: Any) -> None:
        """Checks labels, tokens and integers beyond 32 bits, as a search does."""
        sets = (self.data, "training data"), (self.validation, "validation data")
        tokens, tables = TokenChecks(), keras_private.embeddings(model)
        for data, what in sets:
            if data is not None:
                check_labels(model, data, what)
                tokens.check(model, tables, data, what, self.model)
        if any(data is not None and data.wide for data, _ in sets):
            whole = self.model()
            trace.build_state(whole, self.data.batch_shapes(1))
            check_casts(whole, self.data, 1, self.validation, 1)

    def traced(self, batch_size: int) -> TracedSteps:
        """Returns the traced steps at a batch size; each batch size is traced once.

        Raises whatever building or tracing raised, the same error each time.
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

    def _trace(self, batch_size: int) -> TracedSteps:
        began = time.perf_counter()
        model = self.model()
        trace.check_packable(model)
        state = trace.build_state(model, self.data.batch_shapes(batch_size))
        built = time.perf_counter()
        # A new grouper for each batch size: one that knows the structure would not trace it again.
        group = TrialGrouper(SearchData(self.data, self.validation)).pretrace(model, batch_size)
        assert group is not None
        for role in group.roles:
            role.settle(group.n_seen)
        return TracedSteps(group, state, built - began, time.perf_counter() - built)

    def on_device(self, layout: MeshLayout | None) -> Any:
        """Returns the training data on the default device, or on the devices of a layout."""
        if layout not in self._placed:
            there = self._there.setdefault(layout.devices if layout else None, {})
            where = layout.everywhere if layout else None
            self._placed[layout] = self.data.on_device(there=there, sharding=where)
        return self._placed[layout]

    @property
    def precision(self) -> str:
        """Name of Keras' dtype policy, under which the model is built."""
        return keras.config.dtype_policy().name


def _default(parameter: Any) -> Any:
    return parameter.default
