"""Lowered programs on disk: found again, checked, and never taken for another."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.program import disk_cache, lowered_cache
from paceline.program.canonical import canonicalise
from paceline.program.disk_cache import DiskCache
from paceline.program.step_template import StepTemplate
from paceline.program.trace import Step

SHAPES = (jax.ShapeDtypeStruct((3,), np.float32),)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(disk_cache, "cache_folder", lambda: str(tmp_path))
    return tmp_path / "modules"


def scaled_by(factor: float, lifted: tuple[int, ...] = ()) -> StepTemplate:
    closed = jax.make_jaxpr(lambda x: jnp.tanh(x) * jnp.float32(factor))(*SHAPES)
    return StepTemplate(Step(closed, canonicalise(closed), ("loss",)), None, lifted=lifted)


def test_second_time_the_function_is_not_traced(folder: Path) -> None:
    calls = []

    def double(x):
        calls.append(1)
        return 2 * x

    first = lowered_cache.lowered(double, SHAPES, (), "k")
    assert calls == [1]
    second = lowered_cache.lowered(double, SHAPES, (), "k")
    assert calls == [1]
    x = np.arange(3, dtype=np.float32)
    for lowered in (first, second):
        np.testing.assert_array_equal(lowered.compile()(x), 2 * x)


def test_a_damaged_file_is_lowered_again(folder: Path) -> None:
    lowered_cache.lowered(lambda x: 2 * x, SHAPES, (), "k")
    path = folder / "k.stablehlo"
    body = path.read_bytes()
    path.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    lowered = lowered_cache.lowered(lambda x: 2 * x, SHAPES, (), "k")
    np.testing.assert_array_equal(lowered.compile()(np.ones(3, np.float32)), [2, 2, 2])
    assert lowered_cache._read("k") is not None, "the damaged file was replaced by a good one"


def test_without_a_cache_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "cache_folder", lambda: None)
    lowered = lowered_cache.lowered(lambda x: 2 * x, SHAPES, (), "k")
    np.testing.assert_array_equal(lowered.compile()(np.ones(3, np.float32)), [2, 2, 2])
    assert not list(tmp_path.rglob("*.stablehlo"))


def test_only_the_newest_files_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered_cache, "_DRAWER", DiskCache("modules", kept=2))
    for key in "abc":
        lowered_cache.lowered(lambda x: 2 * x, SHAPES, (), key)
    assert len(list(folder.glob("*.stablehlo"))) == 2


def test_key_tells_constants_apart_unless_they_are_inputs() -> None:
    index = len(scaled_by(2.0).full.canonical.constants) - 1
    assert lowered_cache.key_of("p", [scaled_by(2.0)]) != lowered_cache.key_of(
        "p", [scaled_by(3.0)]
    )
    same = [lowered_cache.key_of("p", [scaled_by(factor, (index,))]) for factor in (2.0, 3.0)]
    assert same[0] == same[1]
    assert same[0] != lowered_cache.key_of("p", [scaled_by(2.0)])
    assert same[0] != lowered_cache.key_of("q", [scaled_by(2.0, (index,))])
    assert lowered_cache.key_of("p", [scaled_by(2.0)], 4) != lowered_cache.key_of(
        "p", [scaled_by(2.0)], 8
    )


def test_key_follows_settings_of_jax() -> None:
    key = lowered_cache.key_of("p", [scaled_by(2.0)])
    with jax.default_matmul_precision("highest"):
        assert lowered_cache.key_of("p", [scaled_by(2.0)]) != key
