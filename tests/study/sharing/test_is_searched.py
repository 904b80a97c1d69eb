"""Whether a study is searched, as its heartbeats and lock files tell without a wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import filelock
import pytest

from paceline.study.sharing.heartbeat import (
    BEAT,
    DEAD,
    PLACE,
    boot,
    is_searched,
    lock_name,
    make_place,
)

HERE, THERE = "0" * 16, "1" * 16


def beats(folder: Path, *, here: str = "alone", there: str | None = None) -> dict[str, Any]:
    """Heartbeats of a worker in the folder, and of one of another machine, by their modes."""
    make_place(folder)
    place = {"boot": boot(), "folder": str(folder.absolute())}
    place["place"] = (folder / PLACE).read_text()
    found = {BEAT + HERE: {"beat": 3, "mode": here, **place}}
    if there is not None:  # what is stored first is read first
        found = {BEAT + THERE: {"beat": 7, "mode": there, "boot": "b", "folder": "/f"}, **found}
    return found


@pytest.mark.parametrize("there", [None, "left", "alone"])
def test_a_worker_of_this_machine_holds_its_file(tmp_path, there) -> None:
    """Whatever is known of workers of other machines."""
    attrs = beats(tmp_path, there=there)
    with filelock.FileLock(tmp_path / lock_name(HERE)):
        assert is_searched(attrs, tmp_path) is True
    (tmp_path / lock_name(HERE)).touch()
    assert is_searched(attrs, tmp_path) is (None if there == "alone" else False)
    assert (tmp_path / lock_name(HERE)).exists(), "who only looks removes nothing"


def test_who_has_left_or_is_declared_dead_works_no_more(tmp_path) -> None:
    assert is_searched(beats(tmp_path, here="left"), tmp_path) is False
    dead = {**beats(tmp_path, here="left", there="shared"), DEAD + THERE: {"by": HERE}}
    assert is_searched(dead, tmp_path) is False


def test_without_heartbeats_it_is_not_known(tmp_path) -> None:
    assert is_searched({}, tmp_path) is None
    assert is_searched({BEAT + HERE: "no heartbeat"}, tmp_path) is None


@pytest.mark.parametrize("theirs", ["0123456789abcdef", None, "none"])
def test_a_container_of_this_host_is_another_place(tmp_path, theirs: str | None) -> None:
    """It has the boot id of the host, and the same path with files of its own."""
    attrs = beats(tmp_path)
    record = attrs[BEAT + HERE]
    assert is_searched(attrs, tmp_path) is False
    if theirs == "none":  # of an earlier version
        del record["place"]
    else:
        record["place"] = theirs
    assert is_searched(attrs, tmp_path) is None


@pytest.mark.parametrize("content", ["", "0123456789ABCDEF", "../../etc/passwd", None])
def test_a_place_that_is_none_is_nobodys(tmp_path, content: str | None) -> None:
    attrs = beats(tmp_path)
    (tmp_path / PLACE).unlink()
    if content is not None:
        (tmp_path / PLACE).write_text(content)
    attrs[BEAT + HERE]["place"] = content
    assert is_searched(attrs, tmp_path) is None
    assert (tmp_path / PLACE).exists() == (content is not None), "who only looks writes nothing"
