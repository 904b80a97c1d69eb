"""A study's folder is one search's at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from paceline.study.storage.folder import study_lock


def test_the_folder_is_the_first_searchs(tmp_path: Path) -> None:
    with study_lock(tmp_path / "s") as first, study_lock(tmp_path / "s") as second:
        assert (first, second) == (True, False)
        with study_lock(tmp_path / "other") as other:
            assert other
    with study_lock(tmp_path / "s") as again:
        assert again


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from paceline.study.storage.folder import study_lock\n"
        "lock = study_lock(Path(sys.argv[1])); lock.__enter__(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], check=False)
    assert (tmp_path / "s" / ".lock").exists()
    with study_lock(tmp_path / "s") as free:
        assert free


def test_where_no_folder_can_be_made_the_storage_tells(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a file")
    with study_lock(tmp_path / "s") as free:
        assert free
