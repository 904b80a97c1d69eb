"""Old addresses of pages on the site, and where they lead now."""

from __future__ import annotations

import json
from html import escape
from os.path import relpath
from pathlib import Path

#: Old page -> new page, below docs/.
MOVED = {
    "comparisons": "explanation/comparisons",
    "how_it_works": "explanation/how_it_works",
    "guides/README": "index",
    "guides/cluster": "guides/machines#one-search-on-a-ray-cluster",
    "guides/command_line": "reference/command_line",
    "guides/dashboard": "guides/report#watch-and-control-a-search-in-a-browser",
    "guides/examples": "tutorials/examples",
    "guides/first_search": "tutorials/first_search",
    "guides/keras_2": "migrate/keras_2",
    "guides/keras_tuner": "migrate/keras_tuner",
    "guides/loops": "migrate/loops",
    "guides/optuna": "migrate/optuna",
    "guides/plots": "guides/results",
    "guides/ray_tune": "migrate/ray_tune",
    "guides/scikit_learn": "migrate/scikit_learn",
    "guides/searching": "guides/search_space",
    "guides/several_objectives": "guides/objectives#search-several-objectives",
    "guides/speed": "explanation/speed",
    "guides/taking_away": "guides/export",
    "guides/talos": "migrate/talos",
    "guides/versions": "reference/versions",
    "guides/workers": "guides/machines#several-processes-on-one-study",
}
#: Old page and place -> new page and place, for places that are no longer on the new page.
PLACES = {
    "guides/command_line": {
        "data-from-a-file": "guides/data#from-a-file-on-the-command-line",
        "environment-variables": "reference/environment",
        "options": "reference/options",
        "select-and-sort-trials": "guides/results#select-and-sort-on-the-command-line",
    },
    "guides/keras_tuner": {
        "keras-tuners-own-tests": "reference/keras_tuner#kerastuners-own-tests",
        "what-is-different": "reference/keras_tuner#what-is-different",
        "what-is-the-same": "reference/keras_tuner#what-is-the-same",
        "what-trials-share": "migrate/sharing",
    },
    "guides/searching": {
        "a-sampler-by-rules": "reference/samplers#rules-of-auto",
        "configurations-to-try-first": "guides/warm_start#try-known-configurations-first",
        "learning-from-earlier-studies": "guides/warm_start#warm-start-from-earlier-studies",
        "objective": "guides/objectives",
        "one-model-of-several": "guides/export#average-several-models",
        "repeats-and-folds": "guides/repeats",
        "results": "reference/results",
        "samplers": "reference/samplers",
        "what-trains-together": "explanation/training_together",
        "when-a-search-ends": "guides/budgets",
        "widths-and-choices-in-one-program": (
            "explanation/training_together#widths-and-choices-in-one-program"
        ),
    },
    "guides/talos": {
        "what-differs": "reference/talos#differences",
        "what-permutations-share": "migrate/sharing",
    },
}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Moved</title>
<script>
const places = {places};
location.replace(places[location.hash.slice(1)] ?? "{page}");
</script>
<noscript><meta http-equiv="refresh" content="0; url={page}"></noscript></head>
<body><a href="{page}">This page has moved.</a></body></html>
"""


def write(out: Path) -> None:
    """Write a page that leads on for each old address.

    Args:
        out: The folder of the site.
    """
    for old, new in MOVED.items():
        places = {place: _address(old, to) for place, to in PLACES.get(old, {}).items()}
        text = _PAGE.format(places=json.dumps(places), page=escape(_address(old, new)))
        path = out / "docs" / f"{old}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _address(old: str, new: str) -> str:
    page, _, place = new.partition("#")
    address = relpath(f"{page}.html", Path(old).parent)
    return f"{address}#{place}" if place else address
