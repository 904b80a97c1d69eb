"""What TensorFlow is told of GPUs, by a module that stands for it: there is none in these tests."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paceline.executor import tf_replicas
from paceline.tuner.search import own_process

NAME = "TF_FORCE_GPU_ALLOW_GROWTH"


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """GPUs by name: whether their memory grows, or the error that TensorFlow raises of it."""
    devices: dict[str, Any] = {}

    def grow(device: str, on: bool) -> None:
        if isinstance(devices[device], Exception):
            raise devices[device]
        devices[device] = on

    experimental = SimpleNamespace(
        get_memory_growth=lambda device: devices[device] is True, set_memory_growth=grow
    )
    module: Any = ModuleType("tensorflow")
    module.config = SimpleNamespace(
        list_physical_devices=lambda kind: list(devices), experimental=experimental
    )
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    monkeypatch.setenv(NAME, "")  # so that it is put back
    monkeypatch.delenv(NAME)
    tf_replicas.let_memory_grow.cache_clear()
    yield devices
    tf_replicas.let_memory_grow.cache_clear()


def test_memory_grows_before_tensorflow_takes_it(grown: dict[str, Any]) -> None:
    grown |= {"a": False, "b": True}
    assert tf_replicas.let_memory_grow() is None
    assert grown == {"a": True, "b": True} and os.environ[NAME] == "true"


def test_it_is_said_that_tensorflow_has_taken_the_memory(grown: dict[str, Any]) -> None:
    grown["a"] = RuntimeError("Physical devices cannot be modified after being initialized")
    text = tf_replicas.let_memory_grow()
    assert text is not None and f'os.environ["{NAME}"] = "true"' in text
    assert text == tf_replicas.let_memory_grow()  # though the variable is set by now


@pytest.mark.parametrize("strategy", [None, "the user's own"])
def test_tuners_of_keras_tuner_leave_memory_to_packs_before_they_build_a_model(
    grown: dict[str, Any], monkeypatch: pytest.MonkeyPatch, strategy: Any
) -> None:
    """Their first model is built as soon as the tuner is created, which learns the space of it."""
    from paceline.compat import keras_tuner
    from paceline.compat.keras_tuner.engine import model_tuner

    grown["a"] = False
    session = SimpleNamespace(backend=lambda: "tensorflow")
    monkeypatch.setattr(model_tuner, "keras", SimpleNamespace(backend=session))

    oracle = keras_tuner.oracles.RandomSearchOracle(objective="loss", max_trials=1)
    monkeypatch.setattr(
        model_tuner.BaseTuner,
        "_populate_initial_space",
        lambda self: grown.update(built=grown["a"]),
    )
    keras_tuner.Tuner(oracle, lambda hp: None, distribution_strategy=strategy)
    assert grown["built"] == (strategy is None)


def test_what_the_user_has_set_stays(
    grown: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    grown["a"] = ValueError("Cannot set memory growth on device when virtual devices configured")
    assert tf_replicas.let_memory_grow() is None
    tf_replicas.let_memory_grow.cache_clear()
    monkeypatch.setenv(NAME, "false")
    grown["a"] = False
    assert tf_replicas.let_memory_grow() is None
    assert grown == {"a": False} and os.environ[NAME] == "false"


@pytest.mark.parametrize(
    ("name", "n", "gpus", "devices", "spread"),
    [
        ("MirroredStrategy", 1, 0, ["/CPU:0"], False),
        ("MirroredStrategy", 1, 1, ["/GPU:0"], False),
        ("OneDeviceStrategy", 1, 0, ["/CPU:0"], False),
        ("OneDeviceStrategy", 1, 1, ["/CPU:0"], True),
        ("MirroredStrategy", 1, 2, ["/GPU:0"], True),
        ("MirroredStrategy", 2, 2, ["/GPU:0", "/GPU:1"], True),
        ("ParameterServerStrategyV2", 1, 0, ["/CPU:0"], True),
    ],
)
def test_a_strategy_of_one_replica_changes_nothing(  # its fields, and what is expected
    name: str, n: int, gpus: int, devices: list[str], spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = type(name, (), {"num_replicas_in_sync": n})()
    strategy.extended = SimpleNamespace(worker_devices=devices)
    module: Any = ModuleType("tensorflow")
    module.config = SimpleNamespace(list_logical_devices=lambda kind: ["a GPU"] * gpus)
    module.distribute = SimpleNamespace(has_strategy=lambda: True, get_strategy=lambda: strategy)
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    session = SimpleNamespace(backend=SimpleNamespace(backend=lambda: "tensorflow"))
    monkeypatch.setattr(own_process, "keras", session)
    monkeypatch.setattr(own_process, "why_none", lambda *, isolate: None)
    for variable in tf_replicas._TPU_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert tf_replicas.is_spread(strategy) == spread
    why = own_process.why_in_session({})
    assert why is None or "strategy, or a TPU, which one process has for itself" in why
    assert (why is None) == (not spread)
    monkeypatch.setenv("TPU_NAME", "local")
    assert own_process.why_in_session({}) is not None
