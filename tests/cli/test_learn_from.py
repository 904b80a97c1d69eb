"""Learning from earlier studies, on the command line and as the guide shows it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import toys
from commands import command

ROOT = Path(__file__).resolve().parents[2]
SEARCH = ("search", "model.py", "--epochs", "1", "--quiet", "--seed", "3")


@pytest.fixture(autouse=True)
def model() -> None:
    Path("model.py").write_text(toys.MODEL_FILE)


def tried(study: str, capsys: Any) -> list[dict[str, Any]]:
    """The hyperparameters of a study's trials, by number."""
    capsys.readouterr()
    assert command("trials", study, "--sort", "number", "--json") == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    return [row["hparams"] for row in sorted(rows, key=lambda row: row["number"])]


@pytest.mark.slow
def test_a_search_learns_and_resume_goes_on_without_the_earlier_studies(capsys) -> None:
    for study, seed in (("first", "1"), ("second", "2")):
        assert command(*SEARCH, "--seed", seed, "--trials", "11", "--study", study) == 0
    learn = ("--warm-start-from", "first", "--warm-start-from", "runs/second", "--trials")
    capsys.readouterr()
    assert command(*SEARCH, *learn, "3", "--study", "beside") == 0
    said = "".join(capsys.readouterr())
    assert "warm-starting from 11 trials of study 'first'" in said
    assert "warm-starting from 11 trials of study 'second'" in said
    assert command("resume", "beside", "--trials", "6", "--quiet") == 0
    assert command(*SEARCH, *learn, "3", "--study", "alone") == 0
    shutil.rmtree("runs/first")
    shutil.rmtree("runs/second")
    assert command("resume", "alone", "--trials", "6", "--quiet") == 0
    beside = tried("beside", capsys)
    assert len(beside) == 6  # those of earlier studies do not count
    assert tried("alone", capsys) == beside
    assert command(*SEARCH, "--trials", "3", "--study", "cold") == 0
    assert tried("cold", capsys) != beside[:3]
    assert command("report", "alone", "-o", "alone.html") == 0
    page = Path("alone.html").read_text(encoding="utf-8")
    assert page.count("Warm-started from 11 trials of study") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--warm-start-from", "gone"), "warm_start_from: there is no study 'gone' in"),
        (
            ("--warm-start-from", "../gone"),
            "'../gone' is not a study's folder, a journal or the name of",
        ),
        (("--warm-start-from", "s"), "'s' is this search's own study"),
        (("--warm-start-from", ""), "must be a study's name"),
        (("--warm-start-from", "s", "--sampler", "random"), "cannot use earlier studies"),
    ],
)
def test_what_cannot_be_learnt_from_is_said_and_nothing_is_written(words, said, capsys) -> None:
    assert command(*SEARCH, "--trials", "1", "--study", "s", *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not Path("runs/s/journal.log").exists()


def test_help_names_the_option_and_the_sampler(capsys) -> None:
    assert command("search", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--warm-start-from" in text and "cmaes" in text


@pytest.mark.slow
def test_the_example_of_the_guide(capsys) -> None:
    page = (ROOT / "docs/guides/searching.md").read_text(encoding="utf-8")
    section = page.partition("## Learning from earlier studies")[2]
    found: dict[str, Any] = {}
    exec(section.partition("```python\n")[2].partition("```")[0], found)
    assert len(found["tuner"].results()) == 8
    assert set(found["tuner"].best_hparams) == {"dropout", "lr"}
    assert "warm-starting from 16 trials of study 'half'" in capsys.readouterr().err
