"""The figures of README.md and docs/guides/speed.md are those of the results that they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
README, SPEED = "README.md", "docs/guides/speed.md"
KERAS_TUNER, BOTH = ("keras_tuner",), ("keras_tuner", "optuna")

#: Page, how the row begins, result, work in it, and the sides beside Paceline.
ROWS = [
    (README, "digits, dense network, 64", "search_speed", "digits64", KERAS_TUNER),
    (README, "digits, 8 structures", "search_speed", "structures", KERAS_TUNER),
    (README, "8,000 sentences", "search_speed", "gru", KERAS_TUNER),
    (README, "Fashion-MNIST, 2,048", "search_speed", "fashion", KERAS_TUNER),
    (SPEED, "digits, dense 64-64-10", "search_speed", "digits16", BOTH),
    (SPEED, "the same, 64 trials", "search_speed", "digits64", BOTH),
    (SPEED, "digits over 8 structures (widths", "search_speed", "structures", KERAS_TUNER),
    (SPEED, "MNIST, dense 784", "search_speed", "mnist", BOTH),
    (SPEED, "language of a sentence", "search_speed", "gru", BOTH),
    (SPEED, "Fashion-MNIST CNN", "search_speed", "fashion", BOTH),
    (SPEED, "MNIST, 12,000 images", "search_speed_structural", "intro", KERAS_TUNER),
    (SPEED, "the same with 1 to 3", "search_speed_structural", "layers", KERAS_TUNER),
    (SPEED, "digits over 8 structures, 64", "search_speed_structural", "structures", KERAS_TUNER),
    (SPEED, "digits, units 8..128", "search_speed_structural", "narrow", KERAS_TUNER),
]


def result(name: str) -> Any:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def text(page: str) -> str:
    """A page as one line for each paragraph or row, so that phrases are found across lines."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return "".join(
        f"\n{line}" if line.startswith(("|", "- ")) or not line else f" {line}" for line in lines
    )


def cells(page: str, begin: str) -> list[str]:
    """The cells of the one row of a page's tables that begins so, but for the first."""
    (row,) = (line for line in text(page).splitlines() if line.startswith(f"| {begin}"))
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def pair(seconds: dict[str, float]) -> str:
    return f"{seconds['cold']:.1f} / {seconds['warm']:.1f}"


@pytest.mark.parametrize(("page", "begin", "name", "work", "sides"), ROWS)
def test_a_row_has_the_seconds_of_its_result(page, begin, name, work, sides):
    entry = result(name)["works"][work]
    expected = [pair(entry["seconds"][side]) for side in ("paceline", *sides)]
    if name == "search_speed_structural":
        expected.append(pair(entry["ratios"]["keras_tuner"]))
    assert [cell for cell in cells(page, begin) if cell] == expected


@pytest.mark.parametrize("name", ["language_lstm", "cifar10_cnn", "translation"])
def test_a_row_of_the_examples_has_the_faster_peer(name):
    entry = result(f"examples_{name}")
    seconds, peers = entry["seconds"], entry["ratios"].values()
    least = {state: min(peer[state] for peer in peers) for state in ("cold", "warm")}
    assert cells(SPEED, f"[`{name}.py`]") == [
        pair(seconds["paceline"]),
        pair(seconds["keras_tuner"]),
        f"{seconds['keras_tuner_tf']['cold']:.1f}",
        pair(least),
    ]


def test_a_row_of_code_for_other_tools_has_the_seconds_of_its_result():
    runs = result("keras_tuner_import")["runs"]
    own, peer = (runs[side]["cold"][0]["seconds"] for side in ("paceline", "keras_tuner"))
    assert cells(SPEED, "KerasTuner's introduction") == [
        f"{own:.1f}",
        f"{peer:.1f}, KerasTuner on JAX",
    ]
    for begin, name in (("Talos: Fashion", "fashion"), ("Talos: digits", "digits")):
        seconds = result(f"talos_scan_{name}")["entries"][name]["seconds"]
        ours, theirs = cells(SPEED, begin)
        assert ours == f"{seconds['paceline']:.1f}"
        assert theirs.startswith(f"{seconds['talos']:.1f}, Talos")


def phrases() -> list[str]:
    """Phrases of the guide on speed, with the figures of their results."""
    fashion = result("search_speed_fashion")["works"]["fashion"]["seconds"]
    again = result("search_speed_structures")["works"]["structures"]["seconds"]
    fit, packs = result("fit_jax")["fit"], result("fit_jax")["packs"]
    storage = {row["storage"]: row["share"] for row in result("storage")["rows"]}
    (checkpoints,) = result("checkpoints")["rows"]
    streams = result("streams")["works"]["mnist"]["seconds"]
    return [
        f"Paceline {pair(fashion['paceline'])} s, "
        f"KerasTuner on JAX {pair(fashion['keras_tuner'])} s",
        f"on a CPU, {pair(fashion['keras_tuner_tf'])} s",
        f"gave {pair(again['paceline'])} s against {pair(again['keras_tuner'])} s",
        f"takes {fit['ratio'] - 1:.0%}".replace("%", " %") + " longer",
        f"adds {packs['ms_per_trial_epoch']:.1f} ms",
        f"is {storage['journal']:.1%} with a journal, {storage['sqlite']:.1%} with SQLite and "
        f"{storage['postgresql']:.1%} with PostgreSQL".replace("%", " %"),
        f"A search of {checkpoints['wall']:.0f} s waits {checkpoints['waited']:.2f} s",
        f"{streams['streamed']:.1f} s of training instead of {streams['resident']:.1f} s",
    ]


def test_sentences_have_the_figures_of_their_results():
    page = text(SPEED)
    assert [phrase for phrase in phrases() if phrase not in page] == []
