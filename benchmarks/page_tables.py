"""Writes the tables of whole searches into README.md and the guides, from their results.

    python benchmarks/page_tables.py [--check]

``make bench`` runs it after ``search_speed.py``. In the rows of ``ROWS`` the seconds are those of
the results. Below each table stands a paragraph with the device, the versions and the commit,
between two comments. The page on clusters has its whole tables there. Printed is what has moved by
more than a tenth since the results that git has.
With --check nothing is written: exits with 1 where a page differs from its results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quality_per_second import median, values_of

ROOT = Path(__file__).resolve().parents[1]
README, SPEED = "README.md", "docs/explanation/speed.md"
CLUSTER = "docs/explanation/clusters.md"
OPTUNA = "docs/migrate/optuna.md"
#: The comments between which a page says what was measured: the result's name belongs in the first.
_BEGIN, _END = "<!-- measured: {} -->", "<!-- end -->"
#: A change of a figure that is told.
MOVED = 0.1


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        page: The file that has the table.
        begin: How the row begins, which is said once on the page.
        result: The file in results/.
        work: The work in it.
        sides: The sides whose seconds stand in the row, in their order.
        ratio: Whether KerasTuner's seconds by Paceline's stand at the row's end.
    """

    page: str
    begin: str
    result: str
    work: str
    sides: tuple[str, ...]
    ratio: bool = False

    def cells(self, results: dict[str, Any]) -> list[str]:
        """Return what the row says of its result."""
        entry = results[self.result]["works"][self.work]
        if "times" in entry:  # a first run of a user's script, as it is and with one line changed
            seconds = [f"{entry[side]['seconds']:.1f}" for side in self.sides]
            return [*seconds, f"{entry['times']:.1f}"]
        found = [pair(entry["seconds"][side]) for side in self.sides]
        return [*found, pair(entry["ratios"]["keras_tuner"])] if self.ratio else found


_ONE, _TWO = ("paceline", "keras_tuner"), ("paceline", "keras_tuner", "optuna")
_SCRIPT = ("paceline", "original")
ROWS = (
    Row(README, "digits, dense network, 64", "search_speed", "digits64", _ONE, ratio=True),
    Row(README, "digits, 8 structures", "search_speed", "structures", _ONE, ratio=True),
    Row(README, "8,000 sentences", "search_speed", "gru", _ONE, ratio=True),
    Row(README, "Fashion-MNIST, 2,048", "search_speed", "fashion", _ONE, ratio=True),
    Row(README, "Optuna on JAX", "any_fits", "optuna", _SCRIPT, ratio=True),
    Row(README, "scikit-learn's `GridSearchCV`", "any_fits_sklearn", "grid", _SCRIPT, ratio=True),
    Row(README, "a loop on JAX", "any_fits", "loop", _SCRIPT, ratio=True),
    Row(README, "KerasTuner on TensorFlow", "sessions", "digits64", _SCRIPT, ratio=True),
    Row(SPEED, "digits, dense 64-64-10", "search_speed", "digits16", _TWO),
    Row(SPEED, "Hyperband over units", "sessions", "tutorial", _SCRIPT, ratio=True),
    Row(SPEED, "a random search over digits", "sessions", "digits64", _SCRIPT, ratio=True),
    Row(SPEED, "the same, 64 trials", "search_speed", "digits64", _TWO),
    Row(SPEED, "digits over 8 structures (widths", "search_speed", "structures", _ONE),
    Row(SPEED, "MNIST, dense 784", "search_speed", "mnist", _TWO),
    Row(SPEED, "language of a sentence", "search_speed", "gru", _TWO),
    Row(SPEED, "Fashion-MNIST CNN", "search_speed", "fashion", _TWO),
    Row(SPEED, "MNIST, 12,000 images", "search_speed_structural", "intro", _ONE, ratio=True),
    Row(
        SPEED,
        "MNIST as in the first row, 64",
        "search_speed_structural",
        "intro64",
        _ONE,
        ratio=True,
    ),
    Row(
        SPEED,
        "MNIST as in the first row, but",
        "search_speed_structural",
        "layers",
        _ONE,
        ratio=True,
    ),
    Row(SPEED, "digits over 8 structures, 64", "search_speed_structural", "structures", _ONE, True),
    Row(SPEED, "digits, units 8..128", "search_speed_structural", "narrow", _ONE, ratio=True),
    Row(SPEED, "Fashion-MNIST, filters", "search_speed_structural", "conv_widths", _ONE, True),
)


def pair(seconds: dict[str, float]) -> str:
    """Return two figures as the tables have them: cold / warm."""
    return f"{seconds['cold']:.1f} / {seconds['warm']:.1f}"


def rewritten(page: str, text: str, results: dict[str, Any]) -> str:
    """Return a page with the figures of its results.

    Args:
        page: Its name, as rows have it.
        text: The page.
        results: Name -> what results/NAME.json holds.

    Raises:
        ValueError: A row is not there, or is there twice, or has another number of cells.
    """
    lines = text.split("\n")
    for row in (row for row in ROWS if row.page == page):
        at = [i for i, line in enumerate(lines) if line.startswith(f"| {row.begin}")]
        if len(at) != 1:
            raise ValueError(f"{page}: {len(at)} rows begin with {row.begin!r}, not one")
        name, *cells = lines[at[0]].strip().strip("|").split("|")
        figures = row.cells(results)
        if len(cells) < len(figures):
            raise ValueError(f"{page}: the row {row.begin!r} has {len(cells)} cells")
        # The ratio is in the last column; a side that was not run leaves its cell empty.
        others = [""] * (len(cells) - len(figures))
        cells = [*figures[:-1], *others, figures[-1]] if row.ratio else [*figures, *others]
        said = " | ".join(cell for cell in [name.strip(), *cells])
        lines[at[0]] = f"| {said} |".replace("|  |", "| |")
    text = "\n".join(lines)
    for name in dict.fromkeys(row.result for row in ROWS if row.page == page):
        if _BEGIN.format(name) in text:
            text = between(page, text, name, measured(name, results[name]))
    if _BEGIN.format("scripts") in text:
        scripts = [row.result for row in ROWS if row.page == page and row.sides == _SCRIPT]
        text = between(page, text, "scripts", of_scripts({name: results[name] for name in scripts}))
    return text


def between(page: str, text: str, name: str, said: str) -> str:
    """Return a page with something else between the two comments of a result.

    Raises:
        ValueError: The page has no such comments.
    """
    begin = _BEGIN.format(name)
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(_END)
    if not found or not ended:
        raise ValueError(f"{page}: no {begin} with {_END} after it")
    return f"{before}{begin}\n{said}\n{_END}{after}"


def measured(name: str, report: dict[str, Any]) -> str:
    """Return where and with what a result was measured, as one line of Markdown."""
    found, works = report["machine"], report["works"].values()
    sides = [states for each in works for states in each["runs"].values()]
    rounds = {len(runs) for states in sides for runs in states.values() if runs}
    versions = found["versions"]
    runs = "comes from one run" if rounds == {1} else f"is the median of {max(rounds)} runs"
    return (
        f"Each number {runs}. Measured on {found['cores']} cores of {article(found['cpu'])} "
        f"with Keras {versions['keras']} and JAX {versions['jax']}, at commit {commit_of(found)}: "
        f"[{name}.json]({{results}}/{name}.json)."
    )


def of_scripts(reports: dict[str, dict[str, Any]]) -> str:
    """Return the results of users' scripts, as one line of Markdown."""
    files = (
        f"[{name}.json]({{results}}/{name}.json) at {commit_of(report['machine'])}"
        for name, report in reports.items()
    )
    said = f"Each script ran once: {', '.join(files)}."
    return f"{said} “Changed files” weren't committed." if "changed files" in said else said


def commit_of(facts: dict[str, Any]) -> str:
    """Return the commit as pages have it."""
    return commit_named(facts["commit"])


def commit_named(commit: str) -> str:
    """Return a commit as pages have it; its ``+`` says that files differed from it."""
    return f"{commit.rstrip('+')}, with changed files" if commit.endswith("+") else commit


def article(cpu: str) -> str:
    """Return a processor's name with its article."""
    return f"an {cpu}" if cpu[:1] in "AEIOU" else f"a {cpu}"


def cluster_table(report: dict[str, Any]) -> str:
    """Return the table of cluster.json: the share of a core that the search itself takes."""
    rows = report["rows"]
    epochs = sorted({row["epoch"] for row in rows})
    columns = [(judged, epoch) for judged in (False, True) for epoch in epochs]
    names = [f"{_seconds(epoch)}{', pruner' if judged else ''}" for judged, epoch in columns]
    lines = [f"| workers | {' | '.join(names)} |", "|---" * (len(columns) + 1) + "|"]
    for machines in sorted({row["machines"] for row in rows}):
        cells = []
        for judged, epoch in columns:
            (row,) = (
                row
                for row in rows
                if (row["judged"], row["machines"], row["epoch"]) == (judged, machines, epoch)
            )
            share = machines * row["slots"] / epoch * row["ms"] / 1000
            cells.append(f"{100 * share:.0f} %" if share < 1 else "too much")
        lines.append(f"| {machines} | {' | '.join(cells)} |")
    facts = report["machine"]
    worst = max(row["ms"] for row in rows)
    slots = rows[0]["slots"]
    lines += [
        "",
        f"A report takes {worst:.3f} ms of a core at most. {slots} trials train on each worker. "
        f"Measured on {article(facts['cpu'])} at commit {commit_of(facts)}: "
        "[cluster.json]({results}/cluster.json).",
    ]
    return "\n".join(lines)


def nodes_table(report: dict[str, Any]) -> str:
    """Return the table of cluster_nodes.json: what a second node brings."""
    lines = ["| nodes of one core | trial-epochs a second | the same, a core |", "|---|---|---|"]
    for row in report["rows"]:
        lines.append(f"| {row['nodes']} | {row['rate']:.2f} | {row['rate_of_a_core']:.2f} |")
    facts, two = report["machine"], report["rows"][-1]["cores"]
    lines += [
        "",
        f"Two nodes train {report['ratio']:.2f} times what one trains. The search, Ray's head "
        f"and the nodes also take {two['search'] + two['head'] + two['nodes']:.2f} of the two "
        f"cores. Measured on {article(facts['cpu'])} at commit {commit_of(facts)}: "
        "[cluster_nodes.json]({results}/cluster_nodes.json).",
    ]
    return "\n".join(lines)


#: Plan of a trial -> what the page calls it.
_PLANS = {"vectorized": "side by side", "looped": "in turns", "sequential": "one after another"}

_BUSY = (
    " Other work disturbed the rows with “CPU s”, which have processor seconds. Compare these "
    "times only within their row."
)


def objectives_table(report: dict[str, Any]) -> str:
    """Return the table of public_objectives.json: scripts as they are, and with one import."""
    lines = [
        "| script | trials | seconds with Optuna | with Paceline | times as fast | best value with "
        "Optuna | with Paceline | how models train |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in report["entries"].items():
        one, other = row["paceline"], row["original"]
        fits = dict.fromkeys(_PLANS.get(plan, "Keras' `fit`") for plan in one["plans"])
        alone = any("one at a time" in note for note in one["notes"])
        how = "one at a time" if alone else ", ".join(fits)
        about, seconds, unit = row["about"].rstrip("."), "seconds", ""
        if row["busy"]:
            seconds, unit = "seconds_of_cores", " CPU s"
        lines.append(
            f"| `{name}`: {about} | {row['n_trials']} | {other[seconds]:.1f}{unit} | "
            f"{one[seconds]:.1f}{unit} | {row['ratio']:.1f} | {other['best']:.3g} | "
            f"{one['best']:.3g} | {how} |"
        )
    facts = report["machine"]
    lines += [
        "",
        "Each script ran once with Optuna and once with Paceline, on JAX, without compiled "
        "programs on disk. The times include imports and compiling. Measured on "
        f"{facts['cores']} cores of {article(facts['cpu'])} at commit {commit_of(facts)}: "
        "[public_objectives.json]({results}/public_objectives.json)."
        + (f" At the same time, {facts['beside']} was running." if "beside" in facts else "")
        + (_BUSY if any(row["busy"] for row in report["entries"].values()) else ""),
    ]
    return "\n".join(lines)


#: Works of quality_per_second.json and what the page calls them; likewise its sides.
_QUALITY_WORKS = {
    "layers": "Fashion-MNIST, 12,000 images: dense, 1 to 3 layers of own widths, 2 activations",
    "images": "Fashion-MNIST, 6,000 images: a small CNN",
    "sentences": "the language of a sentence: embedding and GRU, several sizes",
    "table": "a made-up table with categories: embeddings, 1 to 3 layers of own widths",
    "digits": "digits: dense, only numbers searched",
}
_QUALITY_SIDES = {
    "paceline": "Paceline",
    "optuna": "Optuna",
    "optuna_halving": "Optuna, halving",
    "hyperband": "KerasTuner Hyperband",
    "bayesian": "KerasTuner Bayesian",
}


def quality_table(report: dict[str, Any]) -> str:
    """Return the tables of quality_per_second.json: how good the best models are, by time."""
    entries, facts = report["entries"], report["machine"]
    found = values_of(entries)
    after = sorted({seconds for _, seconds, _ in found})
    sides = [side for side in _QUALITY_SIDES if any(side == each for _, _, each in found)]

    def rows(times: list[int], which: int) -> list[str]:
        return [
            f"| {about} | " + " | ".join(cell(work, side, times, which) for side in sides) + " |"
            for work, about in _QUALITY_WORKS.items()
        ]

    def cell(work: str, side: str, times: list[int], which: int) -> str:
        return " / ".join(f"{median(found[work, time, side], which):.3f}" for time in times)

    names = f"{' | '.join(_QUALITY_SIDES[side] for side in sides)} |"
    line = "|---" * (len(sides) + 1) + "|"
    seeds = {len(values) for values in found.values()}
    of_seeds = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{min(seeds)}"
    commits = dict.fromkeys(commit_named(entry["commit"]) for entry in entries.values())
    return "\n".join(
        [
            f"| validation accuracy after {' / '.join(map(str, after))} s | {names}",
            line,
            *rows(after, 0),
            "",
            f"| test accuracy of the model after {after[-1]} s | {names}",
            line,
            *rows(after[-1:], 1),
            "",
            f"Each number is the median of {of_seeds} seeds. Measured on {facts['cores']} cores of "
            f"{article(facts['cpu'])} with Keras {facts['versions']['keras']} and JAX "
            f"{facts['versions']['jax']}, at commit {', '.join(commits)}: "
            "[quality_per_second.json]({results}/quality_per_second.json).",
        ]
    )


def _seconds(epoch: float) -> str:
    return f"{epoch:g} s" if epoch >= 1 else f"{1000 * epoch:g} ms"


#: Page -> the results whose tables stand there between two comments, and what makes each.
TABLES = {
    CLUSTER: {"cluster": cluster_table, "cluster_nodes": nodes_table},
    OPTUNA: {"public_objectives": objectives_table},
    SPEED: {"quality_per_second": quality_table},
}


def with_table(page: str, text: str, name: str, report: dict[str, Any]) -> str:
    """Return a page of TABLES with the table of one of its results.

    Raises:
        ValueError: The page has no comments to write it between.
    """
    return between(page, text, name, f"\n{TABLES[page][name](report)}\n")


def result_of(name: str) -> dict[str, Any]:
    """Return what results/NAME.json holds."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def moved(name: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return which seconds of a result differ by more than a tenth, a line each."""
    lines = []
    for work, entry in now["works"].items():
        old = before["works"].get(work, {}).get("seconds", {})
        for side, states in entry.get("seconds", {}).items():
            for state, seconds in states.items():
                was = old.get(side, {}).get(state)
                if was and abs(seconds / was - 1) > MOVED:
                    lines.append(
                        f"{name}, {work}, {side}, {state}: {was:.1f} s -> {seconds:.1f} s "
                        f"({seconds / was - 1:+.0%})"
                    )
    return lines


def results_of() -> dict[str, Any]:
    """Return name -> result, of all that rows name."""
    return {name: result_of(name) for name in dict.fromkeys(row.result for row in ROWS)}


def in_git(name: str) -> dict[str, Any] | None:
    """Return a result as the last commit has it; None where there is none."""
    done = subprocess.run(
        ["git", "show", f"HEAD:benchmarks/results/{name}.json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout) if done.returncode == 0 else None


def main() -> int:
    """Write or check the pages; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say where a page differs")
    arguments = parser.parse_args()
    results, differ = results_of(), False
    for page in dict.fromkeys([*(row.page for row in ROWS), *TABLES]):
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        folder = "../" * page.count("/") + "benchmarks/results"
        new = rewritten(page, text, results)
        for name in TABLES.get(page, {}):
            new = with_table(page, new, name, result_of(name))
        new = new.replace("{results}", folder)
        if new != text:
            differ = True
            print(f"{page}: {'differs from its results' if arguments.check else 'written'}")
            if not arguments.check:
                path.write_text(new, encoding="utf-8")
    for name, now in results.items():
        before = in_git(name)
        for line in moved(name, before, now) if before is not None else ():
            print(f"moved: {line}")
    return 1 if arguments.check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
