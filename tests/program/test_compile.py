"""Lowered programs on disk: found again, checked, and never taken for another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paceline.program import compilation_cache, compile
from paceline.program.canonical import canonicalise
from paceline.program.compilation_cache import DiskCache
from paceline.program.step_template import StepTemplate
from paceline.program.trace import Step

SHAPES = (jax.ShapeDtypeStruct((3,), np.float32),)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compilation_cache, "cache_folder", lambda: str(tmp_path))
    return tmp_path / "modules"


def scaled_by(factor: float, lifted: tuple[int, ...] = ()) -> StepTemplate:
    closed = jax.make_jaxpr(lambda x: jnp.tanh(x) * jnp.float32(factor))(*SHAPES)
    return StepTemplate(Step(closed, canonicalise(closed), ("loss",)), None, lifted=lifted)


def test_second_time_the_function_is_not_traced(folder: Path) -> None:
    calls = []

    def double(x):
        calls.append(1)
        return 2 * x

    first = compile.lower(double, SHAPES, (), "k")
    assert calls == [1]
    second = compile.lower(double, SHAPES, (), "k")
    assert calls == [1]
    x = np.arange(3, dtype=np.float32)
    for lowered in (first, second):
        np.testing.assert_array_equal(lowered.compile()(x), 2 * x)


def test_a_damaged_file_is_lowered_again(folder: Path) -> None:
    compile.lower(lambda x: 2 * x, SHAPES, (), "k")
    path = folder / "k.stablehlo"
    body = path.read_bytes()
    path.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    lowered = compile.lower(lambda x: 2 * x, SHAPES, (), "k")
    np.testing.assert_array_equal(lowered.compile()(np.ones(3, np.float32)), [2, 2, 2])
    assert compile._read_lowered("k") is not None, "the damaged file was replaced by a good one"


def test_without_a_cache_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation_cache, "cache_folder", lambda: None)
    lowered = compile.lower(lambda x: 2 * x, SHAPES, (), "k")
    np.testing.assert_array_equal(lowered.compile()(np.ones(3, np.float32)), [2, 2, 2])
    assert not list(tmp_path.rglob("*.stablehlo"))


def test_options_that_this_xla_refuses_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "_CPU", {"xla_cpu_no_such_thing": True})
    made = compile.compile_in_background(lambda x: 2 * x, SHAPES).result()
    np.testing.assert_array_equal(made.call(np.ones(3, np.float32)), [2, 2, 2])


def test_an_error_that_would_not_come_again_is_no_reason_for_other_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    class Lowered:
        def compile(self, compiler_options: Any) -> Any:
            tried.append(compiler_options)
            raise OSError("no space left on device")

    monkeypatch.setattr(compile, "lower", lambda *_: Lowered())
    with pytest.raises(OSError, match="no space"):
        compile.compile_in_background(lambda x: 2 * x, SHAPES).result()
    assert tried == [compile._CPU]


def test_only_the_newest_files_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile, "_LOWERED", DiskCache("modules", kept=2))
    for key in "abc":
        compile.lower(lambda x: 2 * x, SHAPES, (), key)
    assert len(list(folder.glob("*.stablehlo"))) == 2


def test_key_tells_constants_apart_unless_they_are_inputs() -> None:
    index = len(scaled_by(2.0).full.canonical.constants) - 1
    assert compile.program_key("p", [scaled_by(2.0)]) != compile.program_key("p", [scaled_by(3.0)])
    same = [compile.program_key("p", [scaled_by(factor, (index,))]) for factor in (2.0, 3.0)]
    assert same[0] == same[1]
    assert same[0] != compile.program_key("p", [scaled_by(2.0)])
    assert same[0] != compile.program_key("q", [scaled_by(2.0, (index,))])
    assert compile.program_key("p", [scaled_by(2.0)], 4) != compile.program_key(
        "p", [scaled_by(2.0)], 8
    )


def test_key_follows_settings_of_jax() -> None:
    key = compile.program_key("p", [scaled_by(2.0)])
    with jax.default_matmul_precision("highest"):
        assert compile.program_key("p", [scaled_by(2.0)]) != key
