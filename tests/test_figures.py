"""The figures of README.md and of the guides are those of the results that they name."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from measured import Printed, rates, result, share

ROOT = Path(__file__).resolve().parents[1]
SPEED, EXAMPLES = "docs/explanation/speed.md", "docs/tutorials/examples.md"


def text(page: str) -> str:
    """A page as one line for each paragraph or row, so that phrases are found across lines."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return "".join(
        f"\n{line}" if line.startswith(("|", "- ")) or not line else f" {line.strip()}"
        for line in lines
    )


def cells(page: str, begin: str) -> list[str]:
    """The cells of the one row of a page's tables that begins so, but for the first."""
    (row,) = (line for line in text(page).splitlines() if line.startswith(f"| {begin}"))
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def pair(seconds: dict[str, float]) -> str:
    return f"{seconds['cold']:.1f} / {seconds['warm']:.1f}"


def test_the_tables_of_whole_searches_are_those_of_their_results(benchmark_module) -> None:
    pages = benchmark_module("page_tables")
    results = pages.results_of()
    for page in ("README.md", SPEED):
        text = (ROOT / page).read_text(encoding="utf-8")
        folder = "../" * page.count("/") + "benchmarks/results"
        assert pages.rewritten(page, text, results).replace("{results}", folder) == text, page
        other = {name: slower(found) for name, found in results.items()}
        changed = pages.rewritten(page, text, other)
        n_rows = sum(row.page == page for row in pages.ROWS)
        pairs = zip(text.split("\n"), changed.split("\n"), strict=True)
        assert sum(a != b for a, b in pairs if a.startswith("| ")) == n_rows


def slower(report: dict[str, Any]) -> dict[str, Any]:
    """A result with other seconds and ratios."""
    found = json.loads(json.dumps(report))
    for entry in found["works"].values():
        if "times" in entry:
            entry["times"] = 2 * entry["times"] + 1
        if "ratios" not in entry:
            continue
        for figures in (*entry["seconds"].values(), *entry["ratios"].values()):
            figures |= {state: 2 * value + 1 for state, value in figures.items()}
    return found


def test_a_table_says_that_files_differed_from_its_commit(benchmark_module) -> None:
    pages = benchmark_module("page_tables")
    report = pages.result_of("search_speed")
    report["machine"]["commit"] = "0123abc+"
    assert "at commit 0123abc, with changed files: [a.json]" in pages.measured("a", report)


def test_what_moved_by_a_tenth_is_told(benchmark_module) -> None:
    pages = benchmark_module("page_tables")
    before, now = ({"works": {"digits": {"seconds": {"paceline": s}}}} for s in _SECONDS)
    assert pages.moved("speed", before, now) == [
        "speed, digits, paceline, cold: 10.0 s -> 12.0 s (+20%)"
    ]


@pytest.mark.parametrize(
    ("page", "name"),
    [("CLUSTER", "cluster"), ("CLUSTER", "cluster_nodes"), ("OPTUNA", "public_objectives")],
)
def test_a_whole_table_is_that_of_its_result(benchmark_module, page, name) -> None:
    pages = benchmark_module("page_tables")
    page = getattr(pages, page)
    text = (ROOT / page).read_text(encoding="utf-8")
    made = pages.with_table(page, text, name, pages.result_of(name))
    assert made.replace("{results}", "../../benchmarks/results") == text


def test_the_table_of_clusters_follows_its_result(benchmark_module) -> None:
    pages = benchmark_module("page_tables")
    text = (ROOT / pages.CLUSTER).read_text(encoding="utf-8")
    report = pages.result_of("cluster")
    folder = "../../benchmarks/results"
    assert {row["machines"] for row in report["rows"]} == {8, 32, 128, 512}
    first = report["rows"][0]
    first["ms"] *= 100
    changed = pages.with_table(pages.CLUSTER, text, "cluster", report).replace("{results}", folder)
    pairs = zip(text.split("\n"), changed.split("\n"), strict=True)
    assert sum(a != b for a, b in pairs if a.startswith("| ")) == 1
    share = first["machines"] * first["slots"] / first["epoch"] * first["ms"] / 1000
    cell = f"| 8 | {f'{100 * share:.0f} %' if share < 1 else 'too much'} |"
    assert cell in changed


def test_a_page_without_the_comments_of_its_table_is_an_error(benchmark_module) -> None:
    pages = benchmark_module("page_tables")
    with pytest.raises(ValueError, match=r"clusters.md: no <!-- measured: cluster -->"):
        pages.with_table(pages.CLUSTER, "no table", "cluster", pages.result_of("cluster"))


_SECONDS = ({"cold": 10.0, "warm": 5.0}, {"cold": 12.0, "warm": 5.4, "other": 3.0})


def test_a_page_without_its_row_is_an_error(benchmark_module) -> None:
    pages = benchmark_module("page_tables")
    with pytest.raises(ValueError, match=r"README.md: 0 rows begin with 'digits, dense"):
        pages.rewritten("README.md", "no table", pages.results_of())


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
    few = result("keras_tuner_import_12000")["runs"]
    own, peer = (
        statistics.median(run["seconds"] for run in few[side]["cold"])
        for side in ("paceline", "keras_tuner")
    )
    assert cells(SPEED, "the same with 12,000 images") == [
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
    fit, packs = result("fit_jax")["fit"], result("fit_jax")["packs"]
    storage = {row["storage"]: row["share"] for row in result("storage")["rows"]}
    (checkpoints,) = result("checkpoints")["rows"]
    streams = result("streams")["works"]["mnist"]["seconds"]
    bound = result("warm_bound")["works"]
    return [
        f"needs {bound['layers']['bound']:.1f} s for the 24 trials of 1 to 3 layers",
        f"and {bound['intro']['bound']:.1f} s for the 16 trials of the first row",
        f"Paceline {pair(fashion['paceline'])} s, "
        f"KerasTuner on JAX {pair(fashion['keras_tuner'])} s",
        f"KerasTuner on TensorFlow {pair(fashion['keras_tuner_tf'])} s",
        f"takes {share(fit['ratio'] - 1)} longer",
        f"adds {packs['ms_per_trial_epoch']:.1f} ms",
        f"is {share(storage['journal'], 1)} with a journal, {share(storage['sqlite'], 1)} with "
        f"SQLite and {share(storage['postgresql'], 1)} with PostgreSQL",
        f"A search of {checkpoints['wall']:.0f} s waits {checkpoints['waited']:.2f} s",
        f"{streams['streamed']:.1f} s in chunks instead of {streams['resident']:.1f} s",
    ]


def test_sentences_have_the_figures_of_their_results():
    page = text(SPEED)
    assert [phrase for phrase in phrases() if phrase not in page] == []


def test_a_page_that_repeats_a_row_of_the_table_has_its_figures() -> None:
    report = result("search_speed")
    seconds, page = report["works"]["mnist"]["seconds"], "docs/seeds/four_steps.md"
    assert cells(page, "Paceline | two cores")[-1] == f"{pair(seconds['paceline'])} s"
    assert cells(page, "KerasTuner on JAX | the same")[-1] == f"{pair(seconds['keras_tuner'])} s"
    assert f"at commit {report['machine']['commit']}; `make bench` repeats it" in text(page)


#: What a duration is called, in half minutes.
MINUTES = {1: "half a minute", 12: "six minutes", 13: "six and a half minutes"}


def told(name: str, learned: str) -> str:
    """What the guide says of an example: its command, how long it takes, its best model."""
    run = result(f"example_run_{name}")
    command = run["command"].replace(" --seed 0 --sampler random --quiet --json", "")
    sizes = " (4 trials x 10 epochs)" if name == "translation" else ""
    return f"`{command}`{sizes} takes {MINUTES[round(run['seconds'] / 30)]}. {learned}"


def test_what_the_examples_come_to_is_what_their_runs_gave() -> None:
    language, images, translation = (
        result(f"example_run_{name}") for name in ("language_lstm", "cifar10_cnn", "translation")
    )
    page = text(EXAMPLES)
    for phrase in (
        told(
            "language_lstm",
            "The best model, trained on 8,000 sentences, recognizes the language of "
            f"{share(language['value'], 1)} of 2,000 new",
        ),
        told(
            "cifar10_cnn",
            "The best model, trained on 12,000 images, classifies "
            f"{share(images['value'])} of 2,000 new",
        ),
        told(
            "translation",
            "The best model, trained on 19,449 pairs of sentences, gets "
            f"{share(translation['value'])} of the words",
        ),
        f"Always guessing the most frequent words gets {share(translation['guessing'])} right",
    ):
        assert phrase in page
    assert translation["printed"][0] == "19,449 pairs to train on, 2,000 to validate on"
    ((sentence, translated),) = re.findall(r'some of them wrongly: "(.+?)" -> "(.+?)"', page)
    assert any(line.startswith(f"{sentence}  ->  {translated}") for line in translation["printed"])


def test_the_counts_of_the_tests_of_keras_tuner_are_the_sums_of_their_table() -> None:
    page = text("docs/reference/keras_tuner.md")
    *files, total = re.findall(r"^\| (\S+) \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    assert len(files) > 20 and all(name.endswith("_test.py") for name, *_ in files)
    theirs, ours = (sum(int(row[side]) for row in files) for side in (1, 2))
    assert total == ("all", str(theirs), str(ours))
    assert f"{theirs} pass on KerasTuner" in page and f"Here {ours} of them pass" in page


def test_what_the_guide_of_bench_says_of_its_example_is_what_was_measured() -> None:
    page = text("docs/guides/bench.md")
    small, large = rates(32), rates(128)
    assert f"At batch size 32, one trial processes {small[0]} examples a second, and two" in page
    assert f"process {small[1]} together. At batch size 128, they" in page
    assert f"they process {large[0]} and {large[1]}." in page


def test_the_figures_of_a_card_are_those_that_were_printed() -> None:
    runs, later, last = map(Printed, ("gpu_2026-11-26", "gpu_2026-11-26_later", "gpu_2026-11-27"))
    figure, ours = runs.figure, "paceline       cold"
    scan = last.seconds("scan (", ours)
    first = runs.seconds("scan, trials 0 to 0", "keras_tuner")
    eighth = last.seconds("scan, trials 7 to 7", "keras_tuner")
    six = [
        float(took)
        for took in last.figure("scan (", "  its second to seventh", r": ([0-9., ]+) s").split(", ")
    ]
    eight = sum(six) + float(first.split()[0]) + float(eighth.split()[0])
    ratio = f"{eight / float(scan.split()[0]):.1f} times as long"
    (commit,) = re.findall(r"commit (\w+)", last.text)
    for phrase in (
        f"a first run of eight Fashion-MNIST CNNs takes {scan}. KerasTuner takes {eight:.0f} s",
        f", {ratio}",
    ):
        assert phrase in text("README.md")
    for phrase in (
        f"KerasTuner takes {eight:.0f} s for the eight trials, {ratio}",
        f"{first} for the first trial, {sum(six):.1f} s for the second to the seventh",
        f"and {eighth} for the eighth by itself",
        f"and `gpu_2026-11-27.txt` at commit {commit}",
    ):
        assert phrase in text(SPEED)
    assert f"over eight such networks takes {scan}" in text("docs/seeds/talos_scan.md")
    assert cells(SPEED, "a grid of 8 Fashion-MNIST CNNs") == [scan]
    assert cells(SPEED, "the same 8 in KerasTuner") == [f"{eight:.1f} s, timed in parts"]
    assert cells(SPEED, "24 dense models") == [last.seconds("layers", ours)]
    step, rate = r"([0-9.]+) ms per", r"([0-9,]+) examples/s"
    for row, model in (
        ("16 dense models", "dense float32"),
        ("8 of these CNNs |", "cnn"),
    ):
        per_step = float(figure("precision", model, step))
        said = float(figure("precision", model, rate).replace(",", ""))
        (found,) = cells(SPEED, row)
        ms, examples = re.fullmatch(
            r"([0-9.]+) ms: ([0-9.,]+)(?: million)? examples a second", found
        ).groups()
        assert float(ms) == pytest.approx(per_step, rel=0.01)
        scale = 1e6 if "million" in found else 1.0
        assert float(examples.replace(",", "")) * scale == pytest.approx(said, rel=0.01)
    steps = {
        slots: float(later.figure("One step", f"stacked, {slots}", step))
        for slots in ("bfloat16, 8", "float32, 2", "float32, 1")
    }
    half = float(later.figure("One step", "stacked, bfloat16", rate).replace(",", ""))
    (found,) = cells(SPEED, "8 of these CNNs in bfloat16")
    assert found.startswith(f"{steps['bfloat16, 8']:.2f} ms: 130,000")
    assert half == pytest.approx(130_000, rel=0.01)
    assert cells(SPEED, "2 of these CNNs") == [f"{steps['float32, 2']:.2f} ms"]
    assert cells(SPEED, "1 of the CNNs") == [f"{steps['float32, 1']:.2f} ms"]


def test_what_a_search_over_widths_compiled_on_a_card_is_what_was_printed() -> None:
    last, row = Printed("gpu_2026-11-27"), "paceline       cold"
    seconds = last.seconds("layers", row)
    pattern = r"(\d+) structures in (\d) programs: .* trace ([\d.]+),"
    ((structures, programs, traces),) = re.findall(pattern, last.text)
    assert programs == "3"
    assert (
        f"The 24 dense models have {structures} structures, which share three programs. "
        f"Tracing takes {traces} of the {seconds}."
    ) in text(SPEED)
