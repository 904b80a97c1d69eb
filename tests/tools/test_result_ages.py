"""Results of benchmarks: what each depends on, and the commits that pages name beside them."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def result_ages(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("result_ages")


class Checkout:
    """A made-up repository of one benchmark, whose result depends on ``src/engine``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")
        self.write("benchmarks/depends.toml", '[results]\nspeed = ["src/engine", "bench.py"]\n')
        self.write("src/engine/a.py", "1")
        self.write("README.md", "fast\n")
        self.measured = self.commit()

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", *who, *arguments]
        done = subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def commit(self) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "a change")
        return self.git("rev-parse", "--short", "HEAD")

    def keep_result(self, commit: str) -> None:
        held = {"machine": {"commit": commit}}
        self.write("benchmarks/results/speed.json", json.dumps(held))


@pytest.fixture
def checkout(fresh_folder) -> Checkout:
    return Checkout(fresh_folder)


def test_a_result_is_old_once_what_it_depends_on_changes(result_ages, checkout):
    checkout.keep_result(checkout.measured)
    checkout.write("src/other/b.py", "1")
    checkout.commit()
    age = result_ages.Results.read(checkout.root).age("speed")
    assert (age.old, age.later) == (False, ())
    assert str(age).endswith("nothing that it depends on has changed since")

    checkout.write("src/engine/a.py", "2")
    changed = checkout.commit()
    age = result_ages.Results.read(checkout.root).age("speed")
    assert (age.old, age.later) == (True, (changed,))
    assert str(age).endswith(f"{checkout.measured}: 1 commits since, the last {changed}")


def test_a_result_of_changed_files_or_of_an_unknown_commit_is_old(result_ages, checkout):
    checkout.keep_result(f"{checkout.measured}+")
    age = result_ages.Results.read(checkout.root).age("speed")
    assert age.old and age.changed and age.commit == checkout.measured
    checkout.keep_result("0123abc")
    age = result_ages.Results.read(checkout.root).age("speed")
    assert age.old and age.later is None
    assert str(age).endswith("which is not in this history")


def test_a_page_names_the_commit_in_the_same_paragraph(result_ages, checkout):
    checkout.keep_result("0123abc")
    shown = "[a](benchmarks/results/speed.json)"
    results = result_ages.Results.read(checkout.root)
    checkout.write("README.md", f"{shown}\n\nAll of it is of 0123abc.\n")
    assert results.unlabelled() == [
        "README.md shows speed.json: write beside it that it is of 0123abc"
    ]
    checkout.write("README.md", f"{shown}, at 0123abc\n\n[card](benchmarks/results/gpu_a.json)\n")
    assert results.unlabelled() == []
    assert results.shown("README.md") == {"speed"}
    checkout.keep_result("0123abc+")
    assert results.unlabelled() == [
        "README.md shows speed.json: write beside it that it is of 0123abc, with changed files"
    ]
    checkout.write("README.md", f"{shown}, at 0123abc, with\nchanged files\n")
    assert results.unlabelled() == []
    checkout.write("README.md", "benchmarks/results/gone.json\n")
    assert results.unlabelled() == ["README.md names gone.json, which is not in benchmarks/results"]


def test_rows_of_a_table_stand_for_themselves(result_ages):
    assert list(result_ages.blocks("| a |\n| b |\n\n- c\n  d\n- e\n")) == [
        "| a |",
        "| b |",
        "- c\n  d",
        "- e\n",
    ]


def test_a_result_without_an_entry_or_a_commit_says_where_to_write_it(result_ages, checkout):
    with pytest.raises(SystemExit, match=r"correct \[results\] for speed: each file"):
        result_ages.Results.read(checkout.root)
    checkout.write("benchmarks/results/speed.json", "{}")
    results = result_ages.Results.read(checkout.root)
    with pytest.raises(SystemExit, match=r"stores no commit: name one in .*, \[commits\]"):
        results.measured("speed")
    results = result_ages.Results(checkout.root, results.depends, {"speed": "0123abc"}, {})
    assert results.measured("speed") == ("0123abc", False)


def test_our_results_have_entries_whose_paths_are_there_and_pages_name_their_commits(result_ages):
    results = result_ages.Results.read(ROOT)
    held = (*results.depends.values(), *results.pictures.values())
    named = {path for paths in held for path in paths}
    assert {path for path in named if not (ROOT / path).exists()} == set()
    assert set(results.commits) <= set(results.depends)
    assert all(results.measured(name) for name in results.depends)
    assert results.shown("README.md") != set()
    assert results.unlabelled() == []
