"""What is kept of a structure: found again, believed only where it fits, never in the way."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from paceline.program import compilation_cache
from paceline.program.canonical import Constant
from paceline.program.formulas.constant_formulas import (
    GroupFormulas,
    StoredFormulas,
    formulas_key,
    load_formulas,
    store_formulas,
)

AVAL = jax.ShapeDtypeStruct((), np.dtype("float32"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compilation_cache, "cache_folder", lambda: str(tmp_path))
    return tmp_path / "structures"


def constants(*values: float) -> tuple[Constant, ...]:
    return tuple(Constant(np.asarray(v, "float32"), AVAL) for v in values)


def one(group: str = "a") -> StoredFormulas:
    learned = GroupFormulas((group, None, 32, 32))
    for rate in (0.25, 0.5, float("inf")):
        learned.add((rate,), [constants(rate, 7.0), constants(2 * rate)])
    return StoredFormulas.of(learned)


def test_what_was_kept_comes_back_to_the_bit() -> None:
    store_formulas("k", [one("a"), one("b")])
    assert load_formulas("k") == [one("a"), one("b")]
    rows = dict(one().like([constants(1.0, 7.0), constants(9.0)]))
    assert [[float(c.value) for c in step] for step in rows[(0.25,)]] == [[0.25, 7.0], [0.5]]


def test_what_does_not_fit_is_not_believed() -> None:
    assert not list(one().like([constants(1.0), constants(9.0)]))
    double = (Constant(np.float64(1.0), jax.ShapeDtypeStruct((), np.dtype("float64"))),)
    assert not list(one().like([constants(1.0, 7.0), double]))


def test_nothing_is_found_where_nothing_or_nonsense_was_kept(folder: Path) -> None:
    assert load_formulas("k") == []
    store_formulas("k", [one()])
    for body in (b"", b"[]", b"x" * 100):
        (folder / "k.json").write_bytes(body)
        assert load_formulas("k") == []
    compilation_cache.DiskCache("structures", 9).write("k.json", b'[{"group": 3}]')
    assert load_formulas("k") == []


def test_keeping_no_group_forgets() -> None:
    store_formulas("k", [one()])
    store_formulas("k", [])
    assert load_formulas("k") == []


def test_the_key_follows_all_that_decides_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {formulas_key("s", (3, 4)), formulas_key("s", (3, 5)), formulas_key("t", (3, 4))}
    with jax.default_matmul_precision("highest"):
        keys.add(formulas_key("s", (3, 4)))
    monkeypatch.setattr("keras.__version__", "0.0")
    keys.add(formulas_key("s", (3, 4)))
    assert len(keys) == 5
