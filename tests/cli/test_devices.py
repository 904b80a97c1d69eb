"""``paceline devices``."""

from __future__ import annotations

import types

import pytest


def test_the_devices_of_this_machine(paceline):
    found = paceline("devices", "--json").json
    assert list(found) == ["platform", "kind", "count", "memory_bytes", "would_use"]
    assert found["count"] >= 1
    assert found["would_use"] == [f"{found['platform']}:0"]
    if found["platform"] == "cpu":
        assert found["memory_bytes"] > 2**28


def test_devices_for_people(paceline):
    done = paceline("devices")
    assert done.code == 0
    assert "device" in done.out
    assert "A search would use " in done.out


def accelerator(number: int, statistics: dict | None) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        platform="tpu",
        id=number,
        device_kind="TPU v5 lite",
        memory_stats=lambda: statistics,
    )


@pytest.mark.parametrize(
    ("statistics", "memory"), [({"bytes_limit": 16 * 2**30}, 16 * 2**30), (None, None), ({}, None)]
)
def test_an_accelerator_says_its_memory(paceline, monkeypatch, statistics, memory):
    devices = [accelerator(number, statistics) for number in range(8)]
    monkeypatch.setattr("jax.local_devices", lambda: devices)
    found = paceline("devices", "--json").json
    assert (found["kind"], found["count"], found["memory_bytes"]) == ("TPU v5 lite", 8, memory)
    text = paceline("devices").out
    assert text.startswith("8 tpu devices (TPU v5 lite)")
    assert ("16.0 GiB each" in text) is (memory is not None)


def test_no_device_is_wrong_input(paceline, monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'tpu'")

    monkeypatch.setattr("jax.local_devices", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    done = paceline("devices")
    assert done.code == 2
    assert "JAX finds no device" in done.err
    assert "JAX_PLATFORMS is 'tpu'; unset it" in done.err
