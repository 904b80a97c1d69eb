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
    runs = {"original": original, "jax": ours, "paceline first": ours, "tensorflow first": ours}
    assert run.judged(runs) == dict.fromkeys(list(runs)[1:], says)
    found = run.judged({**runs, "original on jax": ours})  # where the original does the same
    # Who has not chosen JAX, and only imports Paceline, compares with the original on TensorFlow.
    assert found.pop("jax") in ("same", "further") and set(found.values()) == {says}


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


def test_the_table_tells_packs_of_one_and_the_code_of_the_runs() -> None:
    def script(together: int, **more: Any) -> dict[str, Any]:
        ours = finished("a", **RAN | {"together": together, "code": "2030-02-01 bbb", **more})
        return {"script": "", "runs": {"original": finished("a"), "jax": ours}}

    results = {
        "data/one": script(1, code="2030-01-31 ccc"),
        "data/two": script(4),
        "data/three": script(4, fits=2),
        "scans/four": script(0),
        "scans/five": {"script": "", "runs": {"original": STOPPED, "jax": {**RAN, **STOPPED}}},
    }
    head, _, *rows, _, codes = run.table(results).splitlines()
    assert head.count("|") == 5 and "the original, on TensorFlow" in head
    data = "3 of 3 as the original; 2 of 3 by packs' programs, 1 with trials together |"
    assert f"| 3 | 3 finished | {data}" in rows[0]
    assert "| 5 | 4 finished; 1 stopped | 5 of 5 as the original; 2 of 3 by" in rows[-1]
    assert codes == "Runs with Paceline: 1 at earlier commits, 1 at ccc, 3 at bbb."
