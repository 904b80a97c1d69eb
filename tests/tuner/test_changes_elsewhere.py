"""What the user's code changes outside of itself, in searches that run in another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from session_scripts import run_script

MODULE = """
count, rate, seen = 0, 1, []


def bump():
    global count
    count += rate
    seen.append(count)
"""
BUILD = """
import collections, dataclasses
import pandas as pd
import others
import others as alias

last, cfg, history, n = None, {"x": 1}, [], 0
curve, latest, frame = np.zeros(20), {}, pd.DataFrame({"a": [1]})
series, pair, kinds = pd.Series([0.0] * 20), ([], 1), collections.defaultdict(list)
first_cfg, draws = cfg, np.random.default_rng(0)
epochs, matrix, weights = np.zeros((20, 2)), {}, []


class Count:
    total = 0


@dataclasses.dataclass
class State:
    steps: int = 0
    below: object = None


state = State(below=State())


def counter():
    inner = 0

    def count():
        nonlocal inner
        inner += 1
        return inner

    return count, lambda: inner


count_on, counted = counter()


def build(hp):
    global last, cfg, history, unbound, n
    n += 1
    last = dict(hp.values)
    cfg = {"x": n}
    history = history + [n]
    unbound = n
    curve[n] = 7.0
    series[n] = 7.0
    frame.loc[len(frame)] = [n]
    latest["a"] = np.full(200_000, float(n))
    Count.total += 1
    Count.new = [n]
    pair[0].append(n)
    kinds["n"].append(n)
    state.below.steps = n
    draws.random()
    count_on()
    import others as inside

    others.rate = 2
    inside.bump()
    alias.bump()
    return head(hp, keras.layers.Dense(4))


class Curves(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        epochs[epoch] += 1.0
        matrix["a"] = np.full(200_000, float(epoch))
        Count.total += 100


def table():
    return dict(
        n=n, last=last, cfg=cfg, first_cfg=first_cfg, history=history, unbound=unbound,
        curve=curve.tolist(), series=series.tolist(), frame=frame["a"].tolist(),
        latest=latest["a"][-1], total=Count.total, new=Count.new, pair=pair, kinds=kinds,
        state=dataclasses.asdict(state), draws=draws.random(), counted=counted(),
        others=[others.count, others.rate, others.seen], epochs=epochs.tolist(),
        matrix=matrix["a"][-1],
    )
"""
SEARCH = """
tuner = paceline.Tuner(
    build, study="s", sampler="random", seed=1, overwrite=True, parallel_trials=1,
    on_note=lambda text: print(text, file=sys.stderr), isolate="ISOLATE" in os.environ,
)
tuner.search(X, Y, **CALL, n_trials=3, callbacks=[Curves()])
found(tuner, **table())
"""
KERAS_TUNER = """
from paceline.compat import keras_tuner as kt

tuner = kt.RandomSearch(
    build, objective="val_accuracy", max_trials=3, seed=3, directory="kt", overwrite=True
)
tuner.search(X, Y, callbacks=[Curves()], verbose=0, **CALL)
print("FOUND" + json.dumps(table()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("search", [SEARCH, KERAS_TUNER], ids=["tuner", "keras_tuner"])
def test_the_session_has_what_the_users_code_changes(search: str, fresh_folder: Path) -> None:
    Path("others.py").write_text(MODULE)
    here = run_script(BUILD + search, "jax")
    check(here)
    ways = {"numpy": run_script(BUILD + search, "numpy")}
    if search is SEARCH:
        ways["isolated"] = run_script(BUILD + search, "jax", ISOLATE="1")
    for way, there in ways.items():
        assert "changed in" not in there["stderr"], way
        check(there)
        for name in ("last", "first_cfg", "epochs", "matrix"):
            assert here[name] == there[name], (way, name)


def check(found: dict[str, Any]) -> None:
    """All is as the number of builds says, which is one more in some sessions."""
    n = found["n"]
    numbers = list(range(1, n + 1))
    draws = np.random.default_rng(0).random(n + 1)
    expected = {
        "cfg": {"x": n},
        "history": numbers,
        "unbound": n,
        "curve": [0.0] + [7.0] * n + [0.0] * (19 - n),
        "series": [0.0] + [7.0] * n + [0.0] * (19 - n),
        "frame": [1, *numbers],
        "latest": n,
        "total": n + 600,
        "new": [n],
        "pair": [numbers, 1],
        "kinds": {"n": numbers},
        "state": {"steps": 0, "below": {"steps": n, "below": None}},
        "draws": draws[-1],
        "counted": n,
        "others": [4 * n, 2, list(range(2, 4 * n + 1, 2))],
    }
    assert n >= 4 and {name: found[name] for name in expected} == expected
    assert found["epochs"] == [[3.0, 3.0]] * 2 + [[0.0, 0.0]] * 18 and found["matrix"] == 1.0
