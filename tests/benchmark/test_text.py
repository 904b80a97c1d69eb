"""A benchmark as text."""

from __future__ import annotations

import pytest

import bench_records
from bench_records import measurement, run
from paceline.benchmark.presentation.advice import advise
from paceline.benchmark.presentation.document import COLUMNS, document
from paceline.benchmark.presentation.text import text_of
from paceline.benchmark.records import CellConfig, Curve, Device, Measurement

RUN = run(
    measurement(
        32, 1000.0, build=0.02, trace=0.1, first=0.5, flops=1e6, peak_share=0.05, memory=2e6
    ),
    measurement(32, 8000.0, 8, "vectorized", packs=2, usual=True, spread=0.03, fits=True),
    measurement(1024, 9000.0, 4, "looped"),
    Measurement(CellConfig(64), "failed", "ValueError: no"),
    Measurement(CellConfig(64, 4, "vectorized"), "skipped", "the measuring time is used up"),
    Measurement(CellConfig(128, 4, "vectorized"), "skipped", "the measuring time is used up"),
    device=Device("cpu", "A chip", cores=4, memory=2**34, peak_flops=5.9e10, peak_bytes=2e9),
    first_epoch=bench_records.FIRST_EPOCH,
    notes=["the data are small"],
)


def text(*runs, width=200):
    return text_of(document(runs, advise(runs)), width)


def rows(found):
    return [line.split() for line in found.splitlines() if line[:1] in "*0123456789 " and line]


def test_it_says_what_was_measured_where_and_when():
    found = " ".join(text(RUN).split())
    assert "net.py (lr 0.01): 10,000 training examples, Keras on jax, float32" in found
    assert "cpu: A chip, 4 cores, 16.0 GiB; jax 0.10.2, keras 3.15.1; 2026-11-21 20:00" in found
    assert "59.0 GFLOP/s in a large matrix product, 2.00 GB/s in a large copy" in found
    assert "Note: the data are small" in found


def test_the_winner_is_marked():
    marked = [line for line in text(RUN).splitlines() if line.startswith("*") and "looped" in line]
    assert len(marked) == 1
    assert marked[0].split()[:4] == ["*", "1,024", "4", "looped"]


def test_a_row_has_its_numbers():
    (row,) = [line.split() for line in text(RUN).splitlines() if "2x8" in line]
    assert row[:3] == ["32", "2x8", "vectorized"]
    assert row[row.index("ms") - 1 : row.index("ms") + 3] == ["64.0", "ms", "3%", "8,000"]
    (row,) = [line for line in text(RUN).splitlines() if " sequential" in line and "1,000" in line]
    assert "20.0 ms" in row and "0.10 s" in row and "0.50 s" in row and "2.00 MB" in row


def test_what_was_not_measured_is_there_with_its_reason():
    found = " ".join(text(RUN).split())
    assert "Failed: sequential, one trial (batch 64): ValueError: no." in found
    assert (
        "Not measured: vectorized, 4 trials at once (batch 64, 128): the measuring time is used up."
        in found
    )


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (60, "fits, build, trace, first step, a trial's epoch, memory, peak, ±"),
        (80, "fits, build, trace, first step, a trial's epoch"),
        (100, "fits, build, trace"),
        (200, ""),
        (None, ""),
    ],
)
def test_lines_fit(width, left_out):
    found = text(RUN, RUN, width=width)
    assert max(map(len, found.splitlines())) <= (width or 120)
    words = " ".join(found.split())
    assert (f"Left out: {left_out}. Use -o" in words) is bool(left_out)
    titles = {column for column, _ in COLUMNS} - set(left_out.split(", "))
    head, rule = found[: found.index("──")], "─" * 40
    assert rule in found
    assert all(word in head.split() for title in titles for word in title.split())


def test_what_does_not_fit_into_memory_is_never_left_out():
    found = text(run(measurement(32, 1000.0, fits=False)), width=80)
    assert "fits" in found and "Left out: build" in " ".join(found.split())


def test_the_first_epoch_is_explained():
    assert "75%  compiling: XLA compiles 2 programs" in text(RUN)


def test_an_interrupted_run_says_so():
    assert "Interrupted: these are the measurements" in text(
        run(measurement(32, 1.0), interrupted=True)
    )


def test_advice_comes_last():
    assert text(RUN).splitlines()[-1].startswith(("- ", "  "))


def test_a_run_without_a_cell_has_no_table():
    assert "batch  trials" not in text(run())


def test_a_curve_that_is_missing_says_why():
    late = [
        Curve(size, "", "maximize", reason="the measuring time is used up") for size in (128, 512)
    ]
    found = " ".join(text(run(measurement(32, 1.0), curves=late)).split())
    assert "Accuracy at batch 128, 512: the measuring time is used up." in found
