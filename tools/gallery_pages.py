"""Draws the figures of the gallery, and writes its pages' numbers, from the benchmark's result.

    python benchmarks/gallery.py && python tools/gallery_pages.py
    python tools/gallery_pages.py --pages      the pages only: without Plotly and a browser

A figure is the one of ``tuner.plot``, drawn as SVG by Kaleido, which needs Chromium. Its text and
grid have the colours of a light or dark page, whichever the reader's system has. Text, numbers and
ids are made shorter, so that a picture is small.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import page_tables  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "gallery.json"
FIGURES = ROOT / ".cache" / "gallery"
PICTURES = ROOT / "docs" / "pictures" / "gallery"
PAGES = ROOT / "docs" / "gallery"

#: Study -> what the table of all studies says of it: its page's title, its question, its model.
STUDIES = {
    "digits": (
        "Digits",
        "How wide and deep must the network be?",
        "dense, 1 to 3 layers, a width for each",
    ),
    "fashion_mnist": (
        "Clothes",
        "Which network learns most from 6,000 images?",
        "convolutions",
    ),
    "sentences": ("Languages", "Is a sentence English or French?", "a GRU over letters"),
    "diamonds": ("Diamonds", "What does a diamond cost?", "embeddings of categories, dense"),
    "co2": ("Carbon dioxide", "How much will there be in half a year?", "linear, or one layer"),
    "attention": ("Translation", "Does attention help?", "GRUs, with and without attention"),
}

#: Pixels of a picture.
WIDTH, HEIGHT = 760, 340
#: Colours of a figure -> names in STYLE.
INK, GRID, BACK = "#24292f", "#d8dee4", "#ffffff"
STYLE = (
    "svg{--ink:#24292f;--grid:#d8dee4;--back:#ffffff}"
    "@media (prefers-color-scheme: dark){svg{--ink:#c9d1d9;--grid:#30363d;--back:#0d1117}}"
)
_BLUE, _RED = "#4c8dd6", "#e45756"


def main() -> None:
    """Write pictures and pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", action="store_true", help="leave the pictures as they are")
    arguments = parser.parse_args()
    report = json.loads(RESULT.read_text(encoding="utf-8"))
    if not arguments.pages:
        PICTURES.mkdir(parents=True, exist_ok=True)
        for path in sorted(FIGURES.glob("*.json")):
            study = next(name for name in STUDIES if path.stem.startswith(f"{name}_"))
            if study in report["entries"]:
                draw(path, study, report)
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        path.write_text(rewritten(path.stem, text, report), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: written")


def draw(path: Path, study: str, report: dict[str, Any]) -> None:
    """Draw a figure that Plotly has written as JSON."""
    import plotly.io as pio

    pio.defaults.mathjax = None  # which would be loaded from the network
    figure = pio.from_json(path.read_text(encoding="utf-8"))
    entry = report["entries"][study]
    _lay_out(figure, entry["best"]["number"])
    made = figure.to_image(format="svg", width=WIDTH, height=HEIGHT).decode("utf-8")
    picture = PICTURES / f"{path.stem}.svg"
    picture.write_text(small(made, path.stem, title(study, report)), encoding="utf-8")
    print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1000:.0f} kB")


def _lay_out(figure: Any, best: int) -> None:
    """Give a figure the colours of the pages, and one line that stands out: the best trial."""
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK, "size": 12, "family": "system-ui, sans-serif"},
        margin={"l": 70, "r": 20, "t": 20, "b": 55},
        title=None,
        showlegend=False,
    )
    lines = {"gridcolor": GRID, "zeroline": False, "linecolor": GRID, "automargin": True}
    figure.update_xaxes(**lines, tickcolor=GRID, title_standoff=12)
    figure.update_yaxes(**lines)
    for trace in figure.data:
        if str(trace.name).startswith("trial "):
            is_best = trace.name == f"trial {best}"
            trace.line = {"width": 2.5 if is_best else 1.2, "color": _RED if is_best else _BLUE}
            trace.opacity = 1.0 if is_best else 0.6
            trace.marker = {"color": _RED if is_best else _BLUE, "size": 4}


def small(made: str, name: str, title: str) -> str:
    """Return a picture without needless parts, with its title and colours for light and dark."""
    for colour, variable in ((INK, "ink"), (GRID, "grid")):
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        made = made.replace(f"rgb({red}, {green}, {blue})", f"var(--{variable})")
    ids = sorted(set(re.findall(r'id="(?:clip|defs-|topdefs-|legend)([0-9a-f]{6})', made)))
    for at, found in enumerate(ids):
        made = made.replace(found, f"{name}{at}")
    made = re.sub(r" data-[a-z-]+=\"[^\"]*\"", "", made)
    # A tenth of a pixel is enough.
    made = re.sub(r"<[^>]+>", lambda tag: re.sub(r"\d+\.\d{2,}", _rounded, tag[0]), made)
    for needless in (" fill-opacity: 1;", " stroke-opacity: 1;", " white-space: pre;"):
        made = made.replace(needless, "")
    for _ in range(4):
        made = re.sub(r"<g(?: [^<>]*?)?(?:/>|></g>)", "", made)
    made = re.sub(r'<svg class="main-svg"[^>]*>(?:<rect [^>]*/>)?', "", made, count=1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" style="fill: var(--back)"/>\n{made}\n'
    )


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def title(study: str, report: dict[str, Any]) -> str:
    """Return what a picture says of itself."""
    entry = report["entries"][study]
    return (
        f"{STUDIES[study][0]}: {len(entry['trials'])} trials; trial {entry['best']['number']} is "
        f"the best one. At commit {entry['commit']}"
    )


def rewritten(page: str, text: str, report: dict[str, Any]) -> str:
    """Return a page of the gallery with the numbers of the result."""
    if page == "README":
        return page_tables.between(page, text, "gallery", overview(report))
    entry = report["entries"][page]
    text = page_tables.between(page, text, f"gallery {page}", outcome(entry))
    return page_tables.between(page, text, f"gallery {page} time", taken(entry, report))


def overview(report: dict[str, Any]) -> str:
    """Return the table of all studies."""
    rows = [
        "| study | question | model | trials | search | in `fit`, about |",
        "|---|---|---|---|---|---|",
    ]
    for name, (titled, question, model) in STUDIES.items():
        entry = report["entries"][name]
        rows.append(
            f"| [{titled}]({name}.md) | {question} | {model} | {len(entry['trials'])} | "
            f"{seconds(entry['seconds'])} | {seconds(entry['fit']['estimate'])} |"
        )
    return "\n".join([*rows, "", where(report)])


def outcome(entry: dict[str, Any]) -> str:
    """Return the table of what a search found, and the verdict of its report."""
    best = entry["best"]
    hparams = ", ".join(f"`{name}` {_value(each)}" for name, each in best["hparams"].items())
    states = ", ".join(f"{n} {state}" for state, n in entry["n_trials"].items() if n)
    rows = [
        "| | |",
        "|---|---|",
        f"| trials | {states}; {entry['epochs_trained']:,} epochs in all |",
        f"| best `{entry['objective']}` | {best['value']:.4f}, in epoch {best['epoch']} of trial "
        f"{best['number']} |",
        f"| its hyperparameters | {hparams} |",
        *(f"| {name} | {said} |" for name, said in entry["outcome"].items()),
    ]
    verdict = entry["verdict"]
    paragraphs = [*map(_plain, verdict["found"]), "What to try next:"]
    quoted = [line for text in paragraphs for line in (f"> {text}", ">")]
    quoted += [f"> - {_plain(text)}" for text in verdict["following"]]
    return "\n".join([*rows, "", "The report's verdict:", "", *quoted])


def taken(entry: dict[str, Any], report: dict[str, Any]) -> str:
    """Return what a search took, and what Keras' ``fit`` would take."""
    fit = entry["fit"]
    n_trials, times = len(entry["trials"]), fit["estimate"] / entry["seconds"]
    epochs = sum(len(each["epochs"]) for each in fit["trials"])
    programs = entry["programs"]
    shared = f"{programs['structures']} structures in {programs['distinct']} programs"
    all_epochs = f"{entry['epochs_trained']:,}"
    return "\n".join(
        [
            "| | trials | epochs | seconds |",
            "|---|---|---|---|",
            f"| the search, {shared} | {n_trials} | {all_epochs} | {entry['seconds']:.1f} |",
            f"| `model.fit`, measured | {len(fit['trials'])} | {epochs} | {fit['seconds']:.1f} |",
            f"| `model.fit`, estimated | {n_trials} | {all_epochs} | "
            f"about {fit['estimate']:.0f}, {times:.1f} times as long |",
            "",
            f"Some trials of the search also trained in Keras' `fit` on JAX, one after another. A "
            f"trial took {fit['start']:.1f} s to start, and {fit['epoch']:.2f} s per epoch. The "
            "estimate counts this for all trials and epochs of the search. "
            f"{where(report, entry)}",
        ]
    )


def where(report: dict[str, Any], entry: dict[str, Any] | None = None) -> str:
    """Return where and with what all of it was measured."""
    found = report["machine"]
    versions = found["versions"]
    entries = report["entries"].values() if entry is None else [entry]
    notes = sorted({each["note"] for each in entries if each["note"]})
    commits = sorted({page_tables.commit_of(each) for each in entries})
    return (
        f"Each time is one run, on {found['cores']} cores of "
        f"{page_tables.article(found['cpu'])} with "
        f"Keras {versions['keras']} and JAX {versions['jax']}, at commit{'s' * (len(commits) > 1)} "
        f"{' and '.join(commits)}: "
        "[gallery.json](../../benchmarks/results/gallery.json)."
        + "".join(f" {note}" for note in notes)
    )


def seconds(value: float) -> str:
    """Return a time: "34 s", "12 min"."""
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def _plain(text: str) -> str:
    """Return a sentence in which Markdown changes nothing."""
    return re.sub(r"([*<])", r"\\\1", text)


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
