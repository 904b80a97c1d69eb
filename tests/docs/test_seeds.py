"""The pages on where Paceline began show the figures of the results that they name."""

from __future__ import annotations

import pytest

from measured import rates, result, share
from pages import text_of


def scan() -> list[str]:
    seconds = result("talos_scan_fashion")["entries"]["fashion"]["seconds"]
    run = result("talos_scan_fashion")["entries"]["fashion"]["runs"]["paceline"][0]
    assert (run["rounds"], run["epochs"]) == (8, 16)  # 8 permutations x 2 epochs
    times = 70_000 * 8 * 10 / (2_048 * run["epochs"])
    return [
        f"| {seconds['talos']:.1f} s |",
        f"| {seconds['paceline']:.1f} s |",
        f"{times:.0f} times as many",
    ]


def devices() -> list[str]:
    (run,) = result("compare_devices")["runs"]
    phrases = []
    for size in (32, 128, 1024):
        alone, two = rates(size)
        (curve,) = (c for c in run["curves"] if c["batch_size"] == size)
        phrases.append(f"| {size:,} | {alone} | {two} | {curve['values'][0]:.3f} |")
    first = run["first_epoch"]
    more = first["first"] - first["later"]
    python = first["trace"] + first["lower"]
    return [
        *phrases,
        f"there it took {first['first']:.1f} s where a later one took {first['later']:.1f} s",
        f"Of the {more:.1f} s more, {share(first['compile'] / more)}",
        f"and {share(python / more)} Python",
    ]


def steps() -> list[str]:
    seconds = result("search_speed")["works"]["mnist"]["seconds"]
    return [
        f"| {seconds[side]['cold']:.1f} / {seconds[side]['warm']:.1f} s |"
        for side in ("paceline", "keras_tuner")
    ]


def translation() -> list[str]:
    run = result("example_run_translation")
    return [f"{run['seconds']:.0f} s; {share(run['value'], 1)} of", "19,449 pairs"]


@pytest.mark.parametrize(
    ("page", "phrases"),
    [
        ("talos_scan", scan),
        ("devices_and_batches", devices),
        ("four_steps", steps),
        ("translation", translation),
    ],
)
def test_a_page_has_the_figures_of_its_results(page, phrases):
    text = " ".join(text_of(f"docs/seeds/{page}.md").split())
    assert [phrase for phrase in phrases() if phrase not in text] == []
