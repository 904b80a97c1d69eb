"""Every Python block of README and docs runs, in the order of its page, as a reader would run it.

A page takes nothing for granted but model.py of the first search; pages that speak of the reader's
own code get that code, small. Searches keep their arguments, but for numbers: at most so many
trials and epochs as below. A block that cannot run here has a comment above it,
``<!-- not run: why -->``.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
from pages import Block, blocks, pages, text_of

TRIALS, EPOCHS, EPOCHS_TOTAL = 8, 2, 20

Names = dict[str, Any]

SENTENCES = ["a bird sings", "the dog barks", "a cat sleeps", "the bird sleeps"] * 3

LOG = """start,end,duration,round_epochs,loss,acc,val_loss,val_acc,dropout
01/02/20-1,01/02/20-2,3.5,10,0.5,0.8,0.6,0.75,0.1
01/02/20-2,01/02/20-3,4.5,10,0.4,0.9,0.7,0.85,0.2
"""


def dense(hp: Any) -> keras.Model:
    """A small model of digits, as readers may have one."""
    hidden = keras.layers.Dense(hp.Choice("units", [8, 16]), activation="relu")
    dropout = keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5))
    output = keras.layers.Dense(10, activation="softmax")
    model = keras.Sequential([hidden, dropout, output])  # of any number of features
    model.compile(
        keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-2, sampling="log")),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def of_the_reader() -> Names:
    """The names in code that readers bring along."""
    (x, y), (x_val, y_val) = paceline.datasets.digits()
    return {
        "paceline": paceline,
        "keras": keras,
        "np": np,
        "x": x[:200],
        "y": y[:200],
        "x_val": x_val[:100],
        "y_val": y_val[:100],
        "build": dense,
    }


def before_keras_tuner(names: Names) -> None:
    from paceline.compat import keras_tuner as kt

    tuner = kt.RandomSearch(
        dense, objective="val_accuracy", max_trials=2, directory="my_dir", project_name="my_project"
    )
    validation = names["x_val"], names["y_val"]
    tuner.search(names["x"], names["y"], validation_data=validation, epochs=1, verbose=0)


def before_talos(names: Names) -> None:
    def model(x_train: Any, y_train: Any, x_val: Any, y_val: Any, params: Any) -> Any:
        layers = [keras.Input((64,)), keras.layers.Dense(10, activation="softmax")]
        net = keras.Sequential(layers)
        net.compile(
            keras.optimizers.Adam(params["lr"]), "sparse_categorical_crossentropy", metrics=["acc"]
        )
        return net.fit(x_train, y_train, validation_data=(x_val, y_val), epochs=1, verbose=0), net

    names |= {"model": model, "params": {"lr": [0.01, 0.001]}}
    Path("experiment").mkdir()
    Path("experiment/1234.csv").write_text(LOG)


def before_data(names: Names) -> None:
    names["texts"] = SENTENCES


def write_model_file() -> None:
    """The file of the first search, from which other pages take ``build``."""
    (block, *_) = blocks("docs/tutorials/first_search.md", "python")
    Path("model.py").write_text(block.text)
    sys.path.insert(0, "")


#: Page that speaks of the reader's own code -> what makes the names and files of that code.
BEFORE: dict[str, Callable[[Names], None]] = {
    "docs/guides/data.md": before_data,
    "docs/migrate/keras_tuner.md": before_keras_tuner,
    "docs/migrate/talos.md": before_talos,
}


def is_notebook(page: str) -> bool:
    """Whether the site's build runs the page, cell by cell."""
    return "file_format: mystnb" in text_of(page)[:400]


def runnable(page: str) -> list[Block]:
    return [block for block in blocks(page, "python") if block.not_run is None]


PAGES = [page for page in pages() if runnable(page) and not is_notebook(page)]
#: Pages of several searches or programs; `make test-docs` and `make test-slow` run them.
LONG = {
    "docs/guides/bench.md",
    "docs/guides/budgets.md",
    "docs/guides/callbacks.md",
    "docs/guides/constraints.md",
    "docs/guides/data.md",
    "docs/guides/devices.md",
    "docs/guides/export.md",
    "docs/guides/failures.md",
    "docs/guides/notebooks.md",
    "docs/guides/objectives.md",
    "docs/guides/populations.md",
    "docs/guides/pruning.md",
    "docs/guides/repeats.md",
    "docs/guides/results.md",
    "docs/guides/resuming.md",
    "docs/guides/samplers.md",
    "docs/guides/search_space.md",
    "docs/guides/storages.md",
    "docs/guides/warm_start.md",
    "docs/index.md",
    "docs/migrate/keras_tuner.md",
    "docs/migrate/optuna.md",
    "docs/migrate/ray_tune.md",
    "docs/migrate/scikit_learn.md",
    "docs/migrate/talos.md",
}


@pytest.fixture
def small_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has searches and benchmarks end soon; all other arguments stay as the page has them."""
    search, bench = paceline.Tuner.search, paceline.bench

    def bounded(self: Any, *data: Any, **given: Any) -> None:
        trials = given.get("n_trials")
        if isinstance(trials, int):
            given["n_trials"] = min(trials, TRIALS)
        elif isinstance(trials, str):
            given["n_trials"] = "+1"
        epochs = given.get("epochs", 10)
        if isinstance(epochs, int):
            # What continues trials needs more epochs than they have, as a population does.
            population = str(self._config.pruner).lower().startswith("pbt")
            more = "continue_best" in given or population
            given["epochs"] = min(epochs, EPOCHS + more)
        if "max_total_epochs" in given:
            given["max_total_epochs"] = EPOCHS_TOTAL
        search(self, *data, **given)

    def short(*data: Any, **given: Any) -> Any:
        return bench(
            *data, **(given | {"batch_sizes": given["batch_sizes"][:1], "measure_for": 20.0})
        )

    monkeypatch.setattr(paceline.Tuner, "search", bounded)
    monkeypatch.setattr(paceline, "bench", short, raising=False)


def run(block: Block, names: Names) -> None:
    """Runs a block; an error names the page and the line."""
    # Line numbers of tracebacks are those of the page.
    tree = ast.parse(textwrap.dedent(block.text), block.page)
    ast.increment_lineno(tree, block.line)
    exec(compile(tree, block.page, "exec"), names)


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] if p in LONG else []) for p in PAGES],
)
def test_the_blocks_of_a_page_run(page, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "model", None)
    del sys.modules["model"]
    write_model_file()
    names: Names = {}
    if page in BEFORE:
        names |= of_the_reader()
        BEFORE[page](names)
    for block in runnable(page):
        run(block, names)


@pytest.mark.slow
@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("page", [page for page in pages() if is_notebook(page)])
def test_the_cells_of_a_notebook_run_without_the_data_sets(page, monkeypatch):
    """The site's build runs them where the data sets are; a reader may have none."""
    monkeypatch.delenv("PACELINE_DATA", raising=False)
    names: Names = {}
    for block in runnable(page):
        run(block, names)


@pytest.mark.parametrize("page", pages())
def test_blocks_can_be_parsed(page):
    """Those that are not run too, but for IPython's lines."""
    for block in blocks(page, "python"):
        lines = [line for line in block.text.splitlines() if not line.startswith(("%", "!"))]
        ast.parse("\n".join(lines), str(block))


@pytest.mark.parametrize("page", pages())
def test_keras_is_imported_behind_paceline_which_has_it_run_on_jax(page):
    for block in blocks(page, "python"):
        imports = [
            getattr(node, "module", None) or node.names[0].name
            for node in (ast.parse(block.text).body if block.not_run is None else [])
            if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        first = [name.partition(".")[0] for name in imports]
        if "paceline" in first and "keras" in first and "KERAS_BACKEND" not in block.text:
            assert first.index("paceline") < first.index("keras"), block


def test_what_is_made_beforehand_is_for_pages_that_are_there():
    assert set(BEFORE) | LONG <= set(PAGES)
