"""Hand-made records of benchmarks: no device is asked."""

from __future__ import annotations

from typing import Any

from paceline.benchmark.records import CellConfig, Device, FirstEpoch, Measurement, Run


def measurement(
    batch_size: int, rate: float, slots: int = 1, plan: str = "sequential", **more: Any
) -> Measurement:
    """A measured cell that does so many examples per second."""
    names = ("packs", "trial_devices", "data_devices", "usual")
    where = {name: more.pop(name) for name in names if name in more}
    config = CellConfig(batch_size, slots, plan, **where)
    step = batch_size * config.at_once / rate
    spread = more.pop("spread", 0.0)
    return Measurement(
        config,
        "measured",
        compile=more.pop("compile", 1.0),
        step=step,
        low=step * (1 - spread),
        high=step * (1 + spread),
        runs=10,
        steps=20,
        **more,
    )


def run(*measurements: Measurement, platform: str = "cpu", **more: Any) -> Run:
    """A run over 10,000 examples on a device of that platform."""
    device = more.pop("device", Device(platform, f"some {platform}", cores=4, memory=2**34))
    facts: dict[str, Any] = {
        "backend": "jax",
        "precision": "float32",
        "date": "2026-11-21T20:00:00+00:00",
        "versions": {"jax": "0.10.2", "keras": "3.15.1"},
        "model": {"name": "net.py", "hparams": {"lr": 0.01}},
        "n_examples": 10_000,
    }
    return Run(device=device, cells=list(measurements), **{**facts, **more})


FIRST_EPOCH = FirstEpoch(
    batch_size=32,
    steps=313,
    first=5.0,
    later=1.0,
    epochs=3,
    trace=0.4,
    lower=0.3,
    compile=3.0,
    programs=2,
    startup=0.25,
)
