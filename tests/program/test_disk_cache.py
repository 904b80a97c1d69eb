"""Files beside the compilation cache, and the digest of the code that they depend on."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest

from paceline.pack.plan import VectorizedProgram
from paceline.program import compilation_cache
from paceline.program.canonical import Canonical
from paceline.program.compilation_cache import DiskCache, digest_of_packages, source_digest
from paceline.program.rewrites.splice import splice


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``rules_of_a_test`` with a module and a subpackage; nothing of it is imported."""
    folder = tmp_path / "rules_of_a_test"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('executed')\n")
    (folder / "rule.py").write_text("A = 1\n")
    (folder / "inner" / "__init__.py").write_text("")
    (folder / "inner" / "rule.py").write_text("B = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return folder


@pytest.mark.parametrize("changed", ["rule.py", "inner/rule.py"])
def test_a_change_of_any_file_changes_the_digest(package, changed):
    before = digest_of_packages([package.name])
    assert digest_of_packages([package.name]) == before
    (package / changed).write_text("A = 2\n")
    assert digest_of_packages([package.name]) != before


def test_a_package_without_files_is_refused_by_name(package):
    shutil.rmtree(package)
    package.mkdir()
    importlib.invalidate_caches()
    with pytest.raises(
        RuntimeError, match=r"package 'rules_of_a_test' has no Python files .*rules"
    ):
        digest_of_packages([package.name])


@pytest.mark.parametrize("name", ["paceline.nowhere", "paceline.nowhere.rules", "paceline.errors"])
def test_what_is_no_package_is_refused_by_name(name):
    with pytest.raises(RuntimeError, match=f"package '{name}' has no Python files"):
        digest_of_packages(["paceline.program", name])


@pytest.mark.parametrize("made_by", [VectorizedProgram, Canonical, splice, DiskCache])
def test_the_digest_of_the_source_covers_what_makes_programs(made_by):
    packages = compilation_cache._PACKAGES
    assert any(made_by.__module__.startswith(f"{package}.") for package in packages)
    assert source_digest() == digest_of_packages(packages)
