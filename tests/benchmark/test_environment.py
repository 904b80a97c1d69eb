"""What a device can do at best."""

from __future__ import annotations

import pytest

from paceline.benchmark.measure import environment


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setitem(environment._SIDE, "cpu", 128)
    monkeypatch.setitem(environment._BYTES, "cpu", 2**16)


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_a_product_has_so_many_operations(monkeypatch, precision):
    seen = []

    def fastest(function, argument):
        seen.append((argument.shape, str(argument.dtype)))
        assert function(argument).shape == argument.shape
        return 0.5

    monkeypatch.setattr(environment, "_fastest", fastest)
    assert environment.matmul_flops(precision) == 2 * 128**3 / 0.5
    assert seen == [((128, 128), "bfloat16" if "bfloat16" in precision else "float32")]


def test_a_copy_reads_and_writes(monkeypatch):
    monkeypatch.setattr(environment, "_fastest", lambda function, argument: argument.nbytes)
    assert environment.copy_bytes() == 2.0  # bytes for each byte of the array, in so many seconds


def test_the_fastest_repetition_counts():
    assert 0 < environment.copy_bytes() < float("inf")
