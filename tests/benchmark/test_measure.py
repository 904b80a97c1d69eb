"""Cells of a tiny model, measured; what they say is checked against what ran."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import toys
from paceline.benchmark.measure import cell as measure_module
from paceline.benchmark.measure.cell import layout_of, measure, nothing_cached
from paceline.benchmark.measure.subject import BenchModel
from paceline.benchmark.records import CellConfig
from paceline.data.arrays import prepare
from paceline.executor.training.memory import LIMIT


def subject(build=lambda hp: toys.softmax(), n=40):
    return BenchModel(build, {}, prepare(*toys.data(n)), None)


@pytest.fixture(scope="module")
def measurements():
    """Three ways of one model, and where its programs came from."""
    found, model = {}, subject()
    with nothing_cached():
        for config in (
            CellConfig(8),
            CellConfig(8, 2, "vectorized"),
            CellConfig(8, 2, "looped", packs=2),
            CellConfig(8, 8, "vectorized", 1, 8),
            CellConfig(8, 1, "vectorized", 1, 1, 8),
        ):
            found[config] = measure(model, config, patience=0.02)
    return found


def test_every_way_is_measured(measurements):
    for config, measurement in measurements.items():
        assert (measurement.state, measurement.reason) == ("measured", None), config
        assert measurement.step > 0 and measurement.first > 0 and measurement.compile > 0
        assert measurement.low <= measurement.step <= measurement.high
        assert measurement.runs >= 3 and measurement.steps <= 5  # steps of an epoch
        assert measurement.fits is True
        assert measurement.memory > 40 * toys.FEATURES * 4  # the data are among it


def test_a_trials_arithmetic_is_the_same_in_every_way(measurements):
    flops = [
        measurement.flops
        for config, measurement in measurements.items()
        if config.data_devices == 1
    ]
    # The products alone: forward, and the kernel's gradient; the rest is optimizer and loss.
    assert min(flops) > 2 * 2 * 8 * toys.FEATURES * toys.CLASSES
    assert max(flops) < 1.25 * min(flops)  # XLA fuses each program in its own way


def test_what_is_compiled_is_compiled_afresh(monkeypatch):
    programs, compiled = [], measure_module._compile

    def kept(*arguments):
        programs.append(compiled(*arguments))
        return programs[-1]

    monkeypatch.setattr(measure_module, "_compile", kept)
    with nothing_cached():
        for _ in range(2):  # the second time it would be in the cache
            measure(subject(), CellConfig(8), patience=0.01)
    origins = [each.from_cache for p in programs for role in p.roles() for each in role]
    assert origins == [False, False]
    assert jax.config.jax_enable_compilation_cache


@pytest.mark.parametrize("config", [CellConfig(8), CellConfig(8, 2, "vectorized", packs=2)])
def test_so_many_steps_are_done_in_every_slot(config):
    traced = (model := subject()).traced(8)
    program = measure_module._compile(traced, config, layout_of(config))
    with measure_module._TimedPacks(program, traced, model.on_device(None), config, 0) as threads:
        threads.run(1)
        threads.run(3)
        iterations = [np.asarray(state[2][0]) for state in threads._states]
    assert np.all(np.asarray(iterations) == 4)  # Adam counts its steps


def test_a_failure_stays_in_its_cell():
    def build(hp):
        model = toys.softmax()
        step = model.train_step

        def own(state, data):
            if data[0].shape[0] == 16:
                raise ValueError("16 is too many\nfor me")
            return step(state, data)

        model.train_step = own
        return model

    model = subject(build)
    measurement = measure(model, CellConfig(16), patience=0.01)
    assert (measurement.state, measurement.reason) == ("failed", "ValueError: 16 is too many")
    assert measure(model, CellConfig(8), patience=0.01).state == "measured"


def test_what_cannot_be_packed_says_why():
    measurement = measure(subject(lambda hp: toys.softmax(run_eagerly=True)), CellConfig(8))
    assert measurement.state == "failed"
    assert measurement.reason == "it cannot be packed: it is compiled with run_eagerly=True"


def test_what_does_not_fit_is_not_run(monkeypatch):
    monkeypatch.setenv(LIMIT, "2000")
    monkeypatch.setattr(measure_module, "_TimedPacks", None)  # nothing may be placed
    measurement = measure(subject(), CellConfig(8))
    assert (measurement.state, measurement.fits) == ("failed", False)
    assert measurement.memory > 2000
    assert measurement.reason.endswith("on the device; only 2 kB are free")


def test_running_out_of_memory_is_no_fit(monkeypatch):
    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no more")

    monkeypatch.setattr(measure_module, "_compile", fail)
    measurement = measure(subject(), CellConfig(8))
    assert (measurement.state, measurement.fits) == ("failed", False)
