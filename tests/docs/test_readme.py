"""README.md is a front door: short, with a line of installation for each device."""

from __future__ import annotations

import re
import tomllib

from pages import ROOT, commands, text_of

#: Up to the table of guides. Two screens of a code host have some 70 lines of its text, and who
#: looks around for two minutes reads 650 words; what is beyond belongs into a guide.
LINES, WORDS = 70, 650
FRONT, _, REST = text_of("README.md").partition("\n## Where to read on\n")


def test_the_front_of_the_readme_is_two_screens():
    assert len(FRONT.splitlines()) <= LINES
    assert len(FRONT.split()) <= WORDS
    # Behind it, one row for each thing that people want to do, and the license.
    assert [line for line in REST.splitlines() if line and not line.startswith("|")] == [
        "Apache-2.0."
    ]


def test_there_is_a_line_of_installation_for_each_device_and_its_extras_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    installs = [
        words[2] for _, words, whole in commands("README.md") if whole and words[0] == "pip"
    ]
    assert installs[:3] == [".", ".[cuda]", ".[tpu]"]
    ((told, example),) = re.findall(r"# with extras: (.+)\n.*\.\[(.+)\]", FRONT)
    # With the two above, all that there are, but for what only the names of Talos need.
    assert {*told.split(", "), "cuda", "tpu"} == extras - {"plots"}
    assert set(example.split(",")) <= extras
