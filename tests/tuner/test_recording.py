"""The files that hold what the searches of a study did when."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from paceline.records import PackCreated, SlotStay, StepCompiled
from paceline.report.progress import (
    LATELY,
    LIVE,
    LivePack,
    LiveState,
    Progress,
    read_live,
    watch,
)
from paceline.study.timeline import TIMELINE, Forecast, SearchBegun, Spent, read_timelines
from paceline.tuner.search import recording as module
from paceline.tuner.search.recording import TimelineFile, is_watched, write_live

STAY = SlotStay(3, 0, 1, 0.5, 2.0, 4, "ab12", "vectorized")
PROGRESS = Progress("s", "training", 8, 3, 0, 0, 0, 0, 1.0, None, 2.0, "value", pace=(2.0, 0.5))
DONE = Spent(2.5, {"total": 2.5}, {"distinct": 1}, 0.5, finished=True)


def written(folder: Path, name: str = "1-a", at: float = 1.0) -> TimelineFile:
    file = TimelineFile(folder, name, SearchBegun(at, devices="cpu"))
    file.write([PackCreated(0, 2, 0.5), STAY, StepCompiled(0.1, 0.4), Forecast(0.6, 2.0), DONE])
    return file


def test_what_is_written_is_read(tmp_path) -> None:
    written(tmp_path)
    (search,) = read_timelines(tmp_path)
    assert search.begun == SearchBegun(1.0, devices="cpu")
    assert search.stays == [STAY]
    assert search.packs == [PackCreated(0, 2, 0.5)]
    assert search.compiled == [StepCompiled(0.1, 0.4)]
    assert search.forecasts == [Forecast(0.6, 2.0)]
    assert search.spent == DONE
    assert search.seconds == 2.5
    assert not search.cut


def test_searches_come_in_the_order_in_which_they_began(tmp_path) -> None:
    written(tmp_path, "10-b", at=10.0)
    written(tmp_path, "9-a", at=9.0)
    assert [search.begun.at for search in read_timelines(tmp_path)] == [9.0, 10.0]


def test_a_study_without_a_record_has_none(tmp_path) -> None:
    assert read_timelines(tmp_path / "nowhere") == []


def test_a_line_that_was_cut_off_costs_itself_alone(tmp_path) -> None:
    written(tmp_path)
    (path,) = (tmp_path / TIMELINE).iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    (search,) = read_timelines(tmp_path)
    assert search.stays == [STAY]
    assert search.spent is None
    assert search.cut


@pytest.mark.parametrize(
    "line",
    [
        b"not JSON",
        b"[]",
        b'{"kind":"stay","trial":-1,"pack":0,"slot":0,"began":0,"ended":1}',
        b'{"kind":"stay","trial":1,"pack":0,"slot":0,"began":-5,"ended":1}',
        b'{"kind":"stay","trial":1,"pack":0,"slot":0,"began":0,"ended":1e300}',
        b'{"kind":"nothing"}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_line_of_a_stranger_is_left_out(tmp_path, line) -> None:
    written(tmp_path)
    (path,) = (tmp_path / TIMELINE).iterdir()
    path.write_bytes(path.read_bytes() + line + b"\n" + msgspec.json.encode(STAY) + b"\n")
    (search,) = read_timelines(tmp_path)
    assert search.stays == [STAY, STAY]
    assert search.cut


def test_a_file_of_a_newer_version_or_without_a_beginning_is_left_out(tmp_path) -> None:
    folder = tmp_path / TIMELINE
    folder.mkdir()
    (folder / "1.jsonl").write_bytes(msgspec.json.encode(SearchBegun(1.0, format=99)))
    (folder / "2.jsonl").write_bytes(msgspec.json.encode(STAY))
    (folder / "3.jsonl").write_bytes(b"")
    (folder / "4.jsonl").mkdir()
    assert read_timelines(tmp_path) == []


def test_a_disk_that_cannot_be_written_raises_nothing(tmp_path) -> None:
    (tmp_path / TIMELINE).write_text("a file where the folder should be")
    file = written(tmp_path)
    assert file.error
    file.write([STAY])
    assert read_timelines(tmp_path) == []


def test_a_long_search_does_not_fill_the_disk(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 2000)
    file = TimelineFile(tmp_path, "1-a", SearchBegun(1.0))
    for _ in range(100):
        file.write([STAY])
    (path,) = (tmp_path / TIMELINE).iterdir()
    assert path.stat().st_size <= 2000
    assert "2,000 bytes" in str(file.error)


def test_nobody_watches_after_a_while(tmp_path) -> None:
    assert not is_watched(tmp_path)
    watch(tmp_path)
    assert is_watched(tmp_path)
    long_ago = time.time() - 2 * LATELY
    os.utime(tmp_path / ".watched", (long_ago, long_ago))
    assert not is_watched(tmp_path)


def test_a_state_that_is_written_is_read(tmp_path) -> None:
    state = LiveState(5.0, PROGRESS, packs=[LivePack("ab", "vectorized", [None])])
    write_live(tmp_path, state)
    assert read_live(tmp_path) == state
    assert not list(tmp_path.glob(f".{LIVE}*"))
    write_live(tmp_path / "gone", state)  # says nothing: a view is no reason to stop


def test_numbers_that_json_cannot_hold_are_not_known(tmp_path) -> None:
    lost = replace(PROGRESS, rate=float("inf"), best_value=float("nan"))
    write_live(tmp_path, LiveState(5.0, lost))
    assert read_live(tmp_path) == LiveState(5.0, PROGRESS)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path) -> None:
    (tmp_path / TIMELINE).mkdir()
    os.mkfifo(tmp_path / LIVE)
    os.mkfifo(tmp_path / TIMELINE / "1.jsonl")
    assert read_live(tmp_path) is None
    assert read_timelines(tmp_path) == []
