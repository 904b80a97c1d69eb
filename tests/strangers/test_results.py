"""What is kept of strangers' scripts is of the scripts as they are, and the pages show it."""

from __future__ import annotations

from typing import Any

import pytest

from strangers import run


def test_the_results_are_those_of_the_scripts_as_they_are() -> None:
    kept = run.read()
    assert len(run.scripts()) >= 50 and kept.keys() <= set(run.scripts())
    old = [name for name in kept if kept[name]["script"] != run.digest(name)]
    assert not old, 'make test-strangers ARGS="--stale"'


def test_the_pages_show_the_results() -> None:
    pages = [p.read_text(encoding="utf-8") for p in run.DOCS.rglob("*.md")]
    shown = [text.partition(run.BEGIN)[2].partition(run.END)[0] for text in pages]
    assert set(filter(None, shown)) == {run.table(run.read())}


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("import keras_tuner as kt", "from paceline.compat import keras_tuner as kt"),
        ("import keras_tuner", "from paceline.compat import keras_tuner"),
        ("import kerastuner", "from paceline.compat import keras_tuner as kerastuner"),
        ("from kerastuner.tuners import A", "from paceline.compat.keras_tuner.tuners import A"),
        ("import talos as ta", "import paceline.compat.talos as ta"),
        ("from talos.utils import A", "from paceline.compat.talos.utils import A"),
        ("import optuna", "from paceline.compat import optuna"),
        ("import keras", "import keras"),
        ("    import talos", "    import talos"),
    ],
)
def test_only_the_import_changes(line: str, becomes: str) -> None:
    assert run.changed(f"{line}\nx = 1\n") == f"{becomes}\nx = 1\n"


def finished(*result: str, **more: Any) -> dict[str, Any]:
    return {"ended": "finished", "line": None, "result": [*result], **more}


STOPPED = {"ended": "stopped", "line": 7, "result": []}


@pytest.mark.parametrize(
    ("original", "ours", "says"),
    [
        (finished("a"), finished("a"), "same"),
        (finished("a"), finished("b"), "differs"),
        (finished("a"), STOPPED, "differs"),
        (STOPPED, STOPPED, "same"),
        (STOPPED, {**STOPPED, "line": 8}, "differs"),
        (STOPPED, finished("a"), "further"),
    ],
)
def test_verdicts(original: dict[str, Any], ours: dict[str, Any], says: str) -> None:
    assert run.verdict(original, ours) == says
    runs = {"original": original, "jax": ours, "tensorflow first": ours}
    assert run.judged(runs) == {"jax": says, "tensorflow first": says}
    on_jax = run.judged({**runs, "original on jax": ours})  # where the original does the same
    assert on_jax["jax"] in ("same", "further") and on_jax["tensorflow first"] == says


RAN: dict[str, Any] = {"together": 0, "fits": 0, "alone": False, "notes": []}


@pytest.mark.parametrize(
    ("ran", "says"),
    [
        ({"together": 4}, "packs"),
        ({"together": 1}, "packs"),
        ({"together": 4, "fits": 1}, "in part"),
        ({"together": 1, "alone": True}, "one at a time"),
        ({"together": 1, "notes": ["trials run one at a time: a hook"]}, "one at a time"),
        ({"together": 1, "notes": ["concurrent=False runs one at a time"]}, "packs"),
        ({"fits": 3}, "fit"),
        ({"notes": ["trials run in Keras' own fit, one at a time: why"]}, "fit"),
        ({}, "none"),
    ],
)
def test_how_trials_trained(ran: dict[str, Any], says: str) -> None:
    assert run.training(RAN | ran) == says
