"""What the models of a search's trials cost: weights, bytes, operations, and the time of a call.

The first three are known once a model is built. The latency is measured on the trained model, once
for each trial and in the main thread between two rounds, while no pack trains.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from paceline.data.arrays import ArrayData, device_dtype
from paceline.data.inputs import TrialInputs
from paceline.errors import ObjectiveError
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.search_space import HyperParameters
from paceline.study.trials.trial import Trial
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.arguments.constraints import n_weights
from paceline.tuner.arguments.provenance import versions
from paceline.tuner.checkpoint.best_models import TrainedModels
from paceline.tuner.checkpoint.trial_variables import apply_weights
from paceline.tuner.search.first_build import data_of, make_variables

#: Calls whose median is the latency, and calls before them that are not timed.
CALLS, WARM_UP = 30, 3
#: Seconds that a measurement waits at most for programs that are compiled in the background.
_PATIENCE = 60.0


@dataclass(eq=False, repr=False)
class TrialCosts:
    """The costs of one search's trials."""

    names: Sequence[str]  # objectives of ``study.objectives.COSTS``
    arguments: SearchArguments
    builder: ModelBuilder
    models: TrainedModels
    packs: LocalExecutor | None
    # Trials that have trained and wait for a measurement, in the order of their ends.
    _due: list[int] = field(init=False, default_factory=list)

    def check(self, hp: HyperParameters) -> None:
        """Refuses costs that cannot be told of a model, before anything is trained."""

        def build() -> Any:
            return self.builder(HyperParameters(values=hp.hparams), 0)

        model = build()
        inputs = self.arguments.inputs_for(hp, model)
        self.of_build(model, inputs, build)
        if "latency" in self.names:
            data = self._data(inputs, "latency")
            if not model.built:
                make_variables(model, inputs, self.arguments)
            try:
                model.predict_on_batch(_examples(data, 1))
            except Exception as error:  # the user's layers may raise anything
                raise ObjectiveError(
                    'objective "latency": predict_on_batch of the model fails: '
                    f"{type(error).__name__}: {error}"
                ) from error

    def of_build(self, model: Any, inputs: TrialInputs, build: Callable[[], Any]) -> dict[str, int]:
        """Name -> cost of a model that was just built, for the objectives other than the latency.

        The model is not changed: if it has no variables yet, ``build`` builds it again.
        """
        wanted = [name for name in self.names if name != "latency"]
        if not wanted:
            return {}
        if not model.built:
            # Its variables are made when it is traced, from random numbers that nothing else may
            # draw.
            self._data(inputs, wanted[0])
            model = build()
            make_variables(model, inputs, self.arguments)
        count: dict[str, Callable[[], float]] = {
            "params": lambda: n_weights(model.weights),
            "bytes": lambda: n_bytes(model),
            "flops": lambda: self._flops(model, inputs),
        }
        return {name: int(count[name]()) for name in wanted}

    def must_wait(self, number: int, known: Mapping[str, Any]) -> bool:
        """Whether a trial that has trained, with these costs ``known``, waits to be measured."""
        if "latency" not in self.names or "latency" in known:
            return False
        if number not in self._due:
            self._due.append(number)
        return True

    def forget(self, number: int) -> None:
        """Forgets a trial that has ended, or is no longer this search's."""
        if number in self._due:
            self._due.remove(number)

    def take_due(self) -> list[int]:
        """The trials that have trained since the last call, and wait for a measurement."""
        due, self._due = self._due, []
        return due

    def measure(self, trial: Trial, known: Mapping[str, Any]) -> dict[str, Any]:
        """Measures the latency of a trial's model, unless an earlier process did: see ``known``."""
        found = {name: known[name] for name in known if name.startswith("latency")}
        if "latency" in found:
            return found
        self._wait_for_compilers()
        return self._measured(trial)

    def _measured(self, trial: Trial) -> dict[str, Any]:
        from paceline.program.initial_weights import changes_kept, values_kept

        held = self.models.best.held(trial.number)
        with ExitStack() as stack:
            # Its layers may be the user's, and part of the models of other trials.
            stack.enter_context(changes_kept())
            model = self.models.rebuild(trial)
            stack.enter_context(values_kept(model))
            if held is not None and held.arrays is not None:
                apply_weights(model, held.arrays)
            return self._latency(trial, model)

    def _latency(self, trial: Trial, model: Any) -> dict[str, Any]:
        inputs = self.arguments.inputs_for(HyperParameters(values=trial.hparams), model)
        data = self._data(inputs, "latency")
        one, batch = _examples(data, 1), _examples(data, min(inputs.batch_size, data.n))
        return {
            "latency": median_milliseconds(lambda: model.predict_on_batch(one)),
            "latency_batch": median_milliseconds(lambda: model.predict_on_batch(batch)),
            "latency_device": versions()["device"],
        }

    def _wait_for_compilers(self) -> None:
        until = time.monotonic() + _PATIENCE
        packs = self.packs
        while packs is not None and packs.compiles[0] < packs.compiles[1]:
            if time.monotonic() > until:
                return
            time.sleep(0.02)

    def _data(self, inputs: TrialInputs, name: str) -> ArrayData:
        data = data_of(inputs, self.arguments)
        if data is None:
            raise ObjectiveError(
                f'objective "{name}": only Keras\' fit can read this data, so the shapes of an '
                "example are unknown. Pass arrays, or leave this cost out."
            )
        return data

    def _flops(self, model: Any, inputs: TrialInputs) -> float:
        if keras.backend.backend() != "jax":
            raise ObjectiveError(
                'objective "flops" needs a trace of JAX, but Keras runs on '
                f"{keras.backend.backend()}. Set KERAS_BACKEND=jax, or use params."
            )
        x = self._data(inputs, "flops").batch_shapes(1)[0]
        try:
            return forward_flops(model, x)
        except Exception as error:  # the user's layers may raise anything
            raise ObjectiveError(
                'objective "flops": the forward pass of the model cannot be traced: '
                f"{type(error).__name__}: {error}. Use params or latency."
            ) from error


def n_bytes(model: Any) -> int:
    """The bytes of a model's weights."""
    return sum(
        int(np.prod(weight.shape, dtype=np.int64)) * _item_bytes(weight.dtype)
        for weight in model.weights
    )


def _item_bytes(dtype: Any) -> int:
    bits = re.search(r"(\d+)", keras.backend.standardize_dtype(dtype))
    return 1 if bits is None else max(1, int(bits[1]) // 8)  # bool; bfloat16, float8_e4m3fn


def forward_flops(model: Any, x: Any) -> float:
    """The floating-point operations of a call of a model, in matrix products and convolutions."""
    import jax

    from paceline.pack.plan.base import count_flops

    def call(trainable: Any, fixed: Any, inputs: Any) -> Any:
        return model.stateless_call(trainable, fixed, inputs, training=False)[0]

    def shapes(variables: Any) -> list[Any]:
        return [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in variables]

    closed = jax.make_jaxpr(call)(
        shapes(model.trainable_variables), shapes(model.non_trainable_variables), x
    )
    return count_flops(closed.jaxpr)[0]


def median_milliseconds(
    call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
) -> float:
    """The median of the milliseconds that a call takes; it returns with its result on the host."""
    for _ in range(WARM_UP):
        call()
    taken = []
    for _ in range(CALLS):
        began = clock()
        call()
        taken.append(clock() - began)
    return 1e3 * statistics.median(taken)


def _examples(data: ArrayData, n: int) -> Any:
    """The first examples' features, as ``predict_on_batch`` takes them."""
    x = data.slice(0, n).inputs[0]
    return keras.tree.map_structure(
        lambda array: np.asarray(array).astype(device_dtype(array), copy=False), x
    )
