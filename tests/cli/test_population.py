"""A population on the command line: a search, and what reads its study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import toys

SEARCH = [
    "--pruner",
    "pbt:perturbation_interval=2,quantile_fraction=0.5",
    "--objective",
    "val_loss",
    "--sampler",
    "random",
]


@pytest.mark.slow
def test_a_population_from_its_search_to_a_line_that_is_trained_again(
    paceline, user_modules
) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    done = paceline("search", "model.py", *SEARCH, "--epochs", "5", "--trials", "4", "--json")
    assert done.code == 0, done.err
    assert done.json["n_trials"]["complete"] == 4
    assert done.json["n_trials"]["pruned"] == 4
    records = paceline("trials", "model", "--json").json
    copies = {
        each["number"]: each["continued_from"] for each in records if each.get("continued_from")
    }
    table = paceline("trials", "model", "--all").out.splitlines()
    at = table[0].index("continued_from") + len("continued_from")
    shown = {
        int(line[:5].strip(" *")): line[:at].split()[-1] for line in table[2 : 2 + len(records)]
    }
    assert len(copies) >= 3, "of four, one of which may continue trial 0"
    assert all(shown[number] == str(source) for number, source in copies.items())
    assert paceline("report", "model", "-o", "page.html").code == 0
    assert '<h2 id="lineage">Lineage</h2>' in Path("page.html").read_text(encoding="utf-8")
    again = paceline("reproduce", "model", str(max(copies)))
    assert again.code == 0 and "trained again" in again.out


@pytest.mark.slow
def test_resume_searches_with_a_further_population(paceline, user_modules) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    paceline("search", "model.py", *SEARCH, "--epochs", "5", "--trials", "4", "--json")
    before = paceline("trials", "model", "--json").json
    done = paceline("resume", "model", "--trials", "+4", "--json")
    assert done.code == 0, done.err
    after = paceline("trials", "model", "--json").json
    first = {each["number"]: json.dumps(each) for each in before}
    assert {each["number"]: json.dumps(each) for each in after[: len(before)]} == first
    new = after[len(before) :]
    assert sum(each["state"] == "complete" for each in new) == 4
    assert all((each.get("continued_from") or len(before)) >= len(before) for each in new)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--pruner", "pbt:0"],
            "PBT: perturbation_interval must be an integer of at least 1, got 0",
        ),
        (["--pruner", "pbt", "--epochs", "4"], "pbt perturbs trials every 5 epochs"),
        (["--pruner", "pbt:2", "--trials", "1"], "n_trials is the size of pbt's population"),
        (["--pruner", "pbt:2", "--objective", "val_loss", "--objective", "params"], "PBT"),
    ],
)
def test_what_cannot_be_a_population_is_one_error(paceline, user_modules, words, said) -> None:
    Path("model.py").write_text(toys.MODEL_FILE)
    done = paceline("search", "model.py", *words)
    assert done.code == 2 and said in done.err
    assert not Path("runs").exists() or not any(Path("runs").rglob("journal.log"))
