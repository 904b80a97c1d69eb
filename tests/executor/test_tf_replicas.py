"""What TensorFlow is told of GPUs, by a module that stands for it: there is none in these tests."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paceline.executor import tf_replicas

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
