"""``paceline devices``."""

from __future__ import annotations

import types

import jax
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


def test_accelerators_are_listed_and_all_used(paceline, monkeypatch):
    devices = [accelerator(number, {"bytes_limit": 2**30}) for number in range(2)]
    monkeypatch.setattr("jax.local_devices", lambda: devices)
    monkeypatch.setattr("jax.default_backend", lambda: "tpu")
    assert paceline("devices", "--json").json["would_use"] == ["tpu:0", "tpu:1"]
    headline, first, second, versions, use = paceline("devices").out.splitlines()
    assert headline == "2 tpu devices (TPU v5 lite), 1.0 GiB each"
    assert first.split() == ["tpu:0", "TPU", "v5", "lite", "1.0", "GiB"]
    assert second.split()[0] == "tpu:1"
    assert versions.startswith(f"jax {jax.__version__}, ")
    assert use == (
        "A search would use all 2, tpu:0 to tpu:1, with up to 32 slots on each: 64 trials at "
        "once, fewer if memory is short. If there are fewer trials than devices, their batches "
        "are split."
    )


def test_one_accelerator_has_one_pack(paceline, monkeypatch):
    monkeypatch.setattr("jax.local_devices", lambda: [accelerator(0, None)])
    monkeypatch.setattr("jax.default_backend", lambda: "tpu")
    assert "A search would use tpu:0, with a pack of up to 32 slots," in paceline("devices").out


def test_a_cpu_says_its_cores_and_threads(paceline, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    out = paceline("devices").out
    assert ", 4 cores, " in out
    assert "threads, with a pack of up to 8 slots in each: at most 32 trials at once" in out


def test_where_no_device_answers_it_is_wrong_input(paceline, monkeypatch):
    def fail(**_):
        raise RuntimeError("Unable to initialize backend 'tpu'")

    monkeypatch.setattr("jax.local_devices", fail)
    done = paceline("devices")
    assert done.code == 2
    assert "does not answer (Unable to initialize backend 'tpu'), and no other device does" in (
        done.err
    )
