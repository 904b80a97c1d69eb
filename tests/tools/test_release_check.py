"""`make release-check`: what it waits for, and the texts of a release that it looks at."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.fixture
def release_check(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("release_check")


@pytest.fixture
def release(release_check) -> Any:
    return release_check.Release("0.1.0", "2026-11-25", "")


def git(*arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], check=True, capture_output=True)


def test_the_release_is_the_newest_section(release_check):
    text = "# C\n\n## [Unreleased]\n\n- new\n\n## [0.2.0] - 2027-01-01\n\n## [0.1.0] - 2026-11-25\n"
    release = release_check.Release.read(text)
    assert (release.version, release.date, release.unreleased) == ("0.2.0", "2027-01-01", "- new")
    with pytest.raises(SystemExit, match=r"no release; write a section: ## \[0.1.0\]"):
        release_check.Release.read("## [Unreleased]\n")


def test_a_number_that_differs_and_a_text_that_is_missing_are_waited_for(
    release_check, release, fresh_folder
):
    for name in release_check.TEXTS:
        (fresh_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (fresh_folder / name).touch()
    citation = fresh_folder / "CITATION.cff"
    citation.write_text("version: 0.1.0\ndate-released: 2026-11-25\n")
    assert not any(found.waits for found in release_check.texts(fresh_folder, release))

    citation.write_text("version: 0.0.9\n")
    (fresh_folder / "SECURITY.md").unlink()
    waits = [f.text for f in release_check.texts(fresh_folder, release) if f.waits]
    assert waits == [
        "CITATION.cff: version is 0.0.9; write 0.1.0",
        "CITATION.cff: date-released is missing; write 2026-11-25",
        "missing: SECURITY.md",
    ]
    unreleased = release_check.Release("0.1.0", "2026-11-25", "- a line")
    assert next(release_check.texts(fresh_folder, unreleased)).waits


def test_the_tree_is_clean_and_the_tag_is_this_commit_or_yet_to_come(
    release_check, release, fresh_folder
):
    def found() -> list[str]:
        return [str(finding) for finding in release_check.tree(fresh_folder, release)]

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "a")
    assert found() == ["ok     tree clean", "ok     v0.1.0 is not tagged yet"]
    git("tag", "v0.1.0")
    assert found()[1] == "ok     v0.1.0 is this commit"
    Path("new").touch()
    git("add", "new")
    assert found()[0] == "WAITS  1 files differ from the commit; commit them"
    git("commit", "--quiet", "-m", "b")
    assert found()[1].startswith("WAITS  v0.1.0 is another commit, ")


def test_a_picture_that_is_older_than_what_it_shows_is_waited_for(release_check, fresh_folder):
    def change(name: str, text: str) -> str:
        (fresh_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (fresh_folder / name).write_text(text)
        git("add", "--all")
        git("commit", "--quiet", "-m", "a")
        return release_check.git(fresh_folder, "rev-parse", "--short", "HEAD")

    def found() -> str:
        (_, picture) = release_check.figures(fresh_folder)
        return str(picture)

    git("init", "--quiet")
    depends = '[results]\n[pictures]\n"search.svg" = ["src/panel"]\n'
    change("benchmarks/depends.toml", depends)
    shown = change("src/panel/a.py", "1")
    change("search.svg", f"<svg><title>a search, at commit {shown}</title></svg>")
    at = f"README: search.svg, measured at {shown}"
    assert found() == f"ok     {at}: nothing that it depends on has changed since"
    later = change("src/panel/a.py", "2")
    assert found() == (
        f"WAITS  {at}: 1 commits since, the last {later}; make it again: python tools/picture.py"
    )
    change("search.svg", f"<svg><title>a search, at commit {later}+</title></svg>")
    assert found().startswith(f"WAITS  README: search.svg, measured at {later}, with changed files")
    change("search.svg", "<svg></svg>")
    with pytest.raises(SystemExit, match=r"search.svg: its title has no commit; python tools/pict"):
        found()


def test_the_picture_of_the_readme_is_one_that_the_release_looks_at(release_check):
    pictures = release_check.Results.read(ROOT).pictures
    shown = re.findall(r"!\[[^\]]*\]\((\S+\.svg)\)", (ROOT / "README.md").read_text("utf-8"))
    assert {*pictures, "docs/speed.svg"} == set(shown)  # the figure is that of its result
    assert release_check.Results.read(ROOT).picture_ages()[0].later is not None


def test_the_list_for_people_has_every_suite_with_its_minutes(release_check, release):
    lines = release_check.by_hand(ROOT, release)
    suites = [line for line in lines if re.match(r"    make \S+ +minutes: ", line)]
    assert len(suites) == len(release_check.SUITES)
    assert not any(line.endswith("?") for line in suites), "add it to CONTRIBUTING's table"
    assert any("git tag -a v0.1.0" in line for line in lines)


def test_the_list_for_people_says_which_pythons_the_wheel_is_not_tried_on(
    release_check, release, monkeypatch
):
    there = {"3.11": "python3.11"}
    monkeypatch.setattr(release_check.fresh_install, "find_python", there.get)
    skipped = "    make test-wheel skips Python 3.12, 3.13, 3.14 here: run it where there is one"
    assert skipped in release_check.by_hand(ROOT, release)
    there |= {"3.12": "python3.12", "3.13": "python3.13", "3.14": "python3.14"}
    assert not any("skips" in line for line in release_check.by_hand(ROOT, release))


def test_every_text_of_a_release_is_there(release_check):
    assert [name for name in release_check.TEXTS if not (ROOT / name).is_file()] == []


def test_the_citation_is_of_the_newest_release(release_check):
    release = release_check.Release.read((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    held = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    needed = {"cff-version", "message", "title", "authors", "version", "date-released", "license"}
    assert needed <= set(held)
    assert held["version"] == release.version
    assert str(held["date-released"]) == release.date


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_one_that_a_page_can_show(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem == "config":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)
    for field in fields:
        options = field["attributes"].get("options", [])
        assert all(isinstance(option, str) for option in options), "quote yes and no"


def test_there_are_forms_for_mistakes_wishes_and_questions():
    assert {"bug", "feature", "question", "config"} == {path.stem for path in FORMS}


def test_targets_that_texts_name_are_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    pages = (
        ROOT / "CONTRIBUTING.md",
        ROOT / "docs" / "reference" / "versions.md",
        ROOT / "README.md",
    )
    named = {
        name for page in pages for name in re.findall(r"make ([a-z-]+)", page.read_text("utf-8"))
    }
    assert {"build", "release-check", "test-newest"} <= named & targets
    assert {name for name in named - targets if "-" in name} == set()
