"""`make test-all`: every suite runs, whatever became of the others, and one summary says how."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def test_all(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("test_all")


@pytest.fixture
def project(fresh_folder, monkeypatch) -> Path:
    """A folder with a Makefile of three suites, the second of which fails."""
    targets = {
        "one": ["echo '==== 3 passed, 1 skipped in 0.5s (0:00:01) ===='"],
        "two": ["echo '==== 1 failed in 2s ===='", "exit 3"],
        "three": ["touch was-run"],
    }
    rules = (f"{name}:\n" + "".join(f"\t@{line}\n" for line in of) for name, of in targets.items())
    Path("Makefile").write_text("\n".join(rules))
    monkeypatch.delenv("MAKEFLAGS", raising=False)  # of the make that runs this test
    return fresh_folder


def test_what_fails_keeps_nothing_from_running(test_all, project, capfd) -> None:
    assert test_all.main(["one", "two", "three"]) == 1
    assert (project / "was-run").exists()
    said = capfd.readouterr().out
    summary = [line.split() for line in said.partition("--- all suites\n")[2].splitlines()]
    assert [line[:2] for line in summary] == [
        ["one", "passed"],
        ["two", "FAILED"],
        ["three", "passed"],
    ]
    assert " ".join(summary[0][4:]) == "3 passed, 1 skipped"
    assert " ".join(summary[1][4:]) == "1 failed"
    assert test_all.main(["one", "three"]) == 0


def test_after_ctrl_c_the_rest_is_not_run(test_all) -> None:
    def run(suite: str) -> Any:
        if suite == "two":
            raise KeyboardInterrupt
        return test_all.Outcome(suite, 0)

    outcomes = test_all.run_all(["one", "two", "three"], run)
    assert [outcome.status for outcome in outcomes] == [0, None, None]
    assert "not run" in test_all.summary(outcomes)


def test_every_target_of_tests_is_a_suite(test_all) -> None:
    """A target that is added to the Makefile is added to `make test-all` as well."""
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").splitlines()
    named = {line.partition(":")[0] for line in lines if line.startswith("test")}
    # test-docs is a part of test and test-slow; test-chaos-ray was never run whole.
    apart = {"test-docs", "test-chaos-ray"}
    assert set(test_all.SUITES) == named - apart - {"test-all"} | {"lint", "docs"}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (but,) = re.findall(r"^\| `make test-all` \| all of these in turn(.*?);", text, re.MULTILINE)
    assert set(re.findall(r"`(test-[\w-]+)`", but)) == apart | {"test-slow"}
    rows = set(re.findall(r"^\| `make ([\w-]+)` \|", text, re.MULTILINE))
    assert rows == {*test_all.SUITES, "test-all"} | apart


def make(*words: str) -> str:
    """What make says, but for a make that runs this test."""
    variables = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    command = ["make", "--no-print-directory", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=variables, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_each_benchmark_has_a_target_and_the_list_says_so() -> None:
    files = [
        path.stem
        for path in sorted((ROOT / "benchmarks").glob("*.py"))
        if "\ndef main(" in path.read_text(encoding="utf-8")
    ]
    assert {"asking", "large_studies", "talos_scan"} <= set(files)
    own = re.findall(
        r"^bench[\w-]*: .*\n(?:\t.*\n)*?\t\S+ benchmarks/(\w+)\.py",
        (ROOT / "Makefile").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert {"search_speed", "gpu", "cluster_nodes"} <= set(own) <= set(files)
    others = [name for name in files if name not in own]
    ran = make("--dry-run", *(f"bench-{name.replace('_', '-')}" for name in others))
    assert re.findall(r"^\S+ benchmarks/(\w+)\.py", ran, re.MULTILINE) == others
    assert "make bench-%" in make("help")


def test_the_files_that_targets_run_are_there():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w/.-])(?:tests|tools|benchmarks)/[\w/.-]*\w", text))
    assert "tests/chaos_ray.py" in named
    # A pattern stands for every benchmark.
    missing = {name for name in named if "%" not in name and not (ROOT / name).exists()}
    assert not missing
