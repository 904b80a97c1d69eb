"""README.md is a front door: short, with a line of installation for each device."""

from __future__ import annotations

import re
import tomllib

from pages import ROOT, commands, links, text_of

#: Lines of the whole page, and words before its links: what a visitor reads in three minutes.
LINES, WORDS = 120, 740
FRONT, _, REST = text_of("README.md").partition("\n## Where to read on\n")


def test_the_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= LINES
    assert len(FRONT.split()) <= WORDS


def test_the_links_stand_in_four_groups_of_one_line():
    groups = re.findall(r"^- \*\*(.+?)\*\*: \[", REST, re.MULTILINE)
    assert groups == ["Learn", "Do", "Look up", "Understand and contribute"]
    others = [line for line in REST.splitlines() if line and not line.startswith("- ")]
    assert others == ["Apache-2.0."]


def test_each_kind_of_page_is_linked():
    folders = {target.split("/")[1] for _, target in links("README.md") if target.count("/") > 1}
    assert {"tutorials", "guides", "migrate", "reference", "explanation"} <= folders


def test_demo_and_tests_are_lines_near_the_top():
    lines = text_of("README.md").splitlines()
    for command in ("make demo", "make test"):
        (at,) = (n for n, line in enumerate(lines) if line.startswith(f"{command} "))
        assert at < 40


def test_there_is_a_line_of_installation_for_each_device_and_its_extras_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    installs = [
        words[2] for _, words, whole in commands("README.md") if whole and words[0] == "pip"
    ]
    assert installs[:3] == [".", ".[cuda]", ".[tpu]"]
    ((told, example),) = re.findall(r"# with extras: (.+)\n.*\.\[(.+)\]", FRONT)
    # With the two above, all that there are.
    assert {*told.split(", "), "cuda", "tpu"} == extras
    assert set(example.split(",")) <= extras
