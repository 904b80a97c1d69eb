"""A file is there whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline.program import files
from paceline.program.files import (
    replace_durably,
    temporary_beside,
    write_atomically,
    written_atomically,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_replaced(fresh_folder):
    path = fresh_folder / "file.json"
    for data in (b"old", b"new"):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert names(fresh_folder) == ["file.json"]


@pytest.mark.parametrize("error", [ValueError("half"), KeyboardInterrupt("half")])
def test_an_error_in_the_middle_leaves_the_old_file_alone(fresh_folder, error):
    path = fresh_folder / "model.weights.h5"
    path.write_bytes(b"old")

    def write() -> None:
        with written_atomically(path) as temporary:
            assert temporary.name.endswith(".weights.h5")
            temporary.write_bytes(b"ne")
            raise error

    with pytest.raises(type(error), match="half"):
        write()
    assert path.read_bytes() == b"old"
    assert names(fresh_folder) == ["model.weights.h5"]


def test_a_file_that_cannot_take_its_place_leaves_nothing(fresh_folder):
    path = fresh_folder / "taken"
    path.mkdir()
    with pytest.raises(OSError, match="taken"):
        write_atomically(path, b"new")
    assert names(fresh_folder) == ["taken"]


def test_a_process_killed_in_the_middle_leaves_the_old_file_alone(fresh_folder):
    path = fresh_folder / "file"
    path.write_bytes(b"old")
    program = (
        "import os, pathlib, signal, sys\n"
        "from paceline.program.files import written_atomically\n"
        "with written_atomically(pathlib.Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_bytes(b'ne')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (left,) = set(names(fresh_folder)) - {"file"}
    assert left.startswith(files.TEMPORARY)


def test_writers_at_once_never_mix_their_data(fresh_folder):
    path = fresh_folder / "file"
    blocks = [bytes([number]) * 300_000 for number in range(4)]
    write_atomically(path, blocks[0])

    def write(block: bytes) -> int:
        found = 0
        for _ in range(20):
            write_atomically(path, block)
            found += path.read_bytes() in blocks
        return found

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write, blocks)) == [20] * 4
    assert names(fresh_folder) == ["file"]


def test_no_two_temporary_files_have_one_name(fresh_folder):
    path = fresh_folder / "file"
    with temporary_beside(path) as first, temporary_beside(path) as second:
        assert first != second
        assert first.parent == second.parent == fresh_folder


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="names of open files are read from /proc"
)
def test_a_file_and_its_folder_are_on_the_disk_before_it_counts(fresh_folder, monkeypatch):
    done: list[str] = []
    replace = os.replace
    monkeypatch.setattr(
        os, "fsync", lambda number: done.append(os.readlink(f"/proc/self/fd/{number}"))
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
    (fresh_folder / "new").write_bytes(b"new")
    replace_durably(fresh_folder / "new", fresh_folder / "file")
    assert done == [str(fresh_folder / "new"), "replace", str(fresh_folder)]
