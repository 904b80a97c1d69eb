"""Reductions: parameter values with bad results are removed from the space while a scan runs.

Each function gets the ``Scan``, as a user's own reduction does.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paceline.compat.talos.errors import TalosParamsError
from paceline.compat.talos.logs import column

#: A reduction needs at least this many rows of results.
_LEAST = 3
#: Method -> the function of ``scipy.stats``.
_CORRELATIONS = {
    "correlation": "spearmanr",
    "spearman": "spearmanr",
    "pearson": "pearsonr",
    "kendall": "kendalltau",
}
_TREES = ("trees", "forrest")
METHODS = (*_CORRELATIONS, *_TREES, "local_strategy", "gamify")
_STRATEGY = "talos_strategy.py"


def check(method: Any) -> None:
    """Checks a ``reduction_method``."""
    if method is not None and not callable(method) and method not in METHODS:
        raise TalosParamsError(
            f"reduction_method must be a function or one of {', '.join(METHODS)}, got {method!r}."
        )


def interval(scan: Any) -> int:
    """Returns the number of permutations between reductions: 1 if a user reduces by hand."""
    by_hand = scan.reduction_method in ("local_strategy", "gamify")
    return 1 if by_hand else max(1, int(scan.reduction_interval))


def reduce(scan: Any) -> None:
    """Removes from the space of a scan what its method finds in the latest results."""
    method = scan.reduction_method
    if method == "gamify":
        _gamify(scan)
    elif method == "local_strategy":
        _heed(scan, _local_strategy()(scan))
    elif callable(method):
        _heed(scan, method(scan))
    else:
        matrix, target, candidates = indicators(scan)
        if len(target) >= _LEAST and len(candidates) and len(set(target)) > 1:
            find = _by_correlation if method in _CORRELATIONS else _by_trees
            worst = find(scan, matrix, target)
            if worst is not None:
                scan.param_object.remove_is(*candidates[worst])


def indicators(scan: Any) -> tuple[np.ndarray, np.ndarray, list[tuple[str, Any]]]:
    """Returns which of the latest permutations have which parameter value.

    A matrix f64[R, C] of 0 and 1 with a row for each permutation, the metric f64[R], and C pairs of
    parameter and value.
    """
    data: Any = scan.data.tail(scan.reduction_window)
    metric = column(scan.reduction_metric, scan.metric_columns, "reduction_metric")
    numbers: Any = pd.to_numeric(data[metric], errors="coerce")
    target = numbers.to_numpy(float)
    finite = np.isfinite(target)
    columns, candidates = [], []
    for name, values in scan.param_object.p.items():
        here = data[scan.parameter_columns[name]].to_numpy(object)[finite]
        for value in values:
            has = np.array([v is value or (type(v) is type(value) and v == value) for v in here])
            if 0 < has.sum() < len(has):
                columns.append(has.astype(float))
                candidates.append((name, value))
    matrix = np.stack(columns, axis=1) if columns else np.empty((int(finite.sum()), 0))
    return matrix, target[finite], candidates


def _by_correlation(scan: Any, matrix: np.ndarray, target: np.ndarray) -> int | None:
    """The index of the value that correlates most with bad results; None below the threshold."""
    from scipy import stats

    measure = getattr(stats, _CORRELATIONS[scan.reduction_method])
    harm = [float(measure(has, target).statistic) for has in matrix.T]
    harm = [value if scan.minimize_loss else -value for value in harm]
    worst = int(np.nanargmax(harm)) if np.isfinite(harm).any() else -1
    return worst if worst >= 0 and harm[worst] >= scan.reduction_threshold else None


def _by_trees(scan: Any, matrix: np.ndarray, target: np.ndarray) -> int | None:
    """The index of the value, worse than the mean, that matters most in a forest of trees."""
    from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

    forest = scan.reduction_method == "forrest"
    kind = RandomForestRegressor if forest else ExtraTreesRegressor
    trees = kind(n_estimators=64, random_state=scan.seed or 0).fit(matrix, target)
    means = np.array([target[has > 0].mean() for has in matrix.T])
    worse = means > target.mean() if scan.minimize_loss else means < target.mean()
    if not worse.any():
        return None
    return int(np.argmax(np.where(worse, trees.feature_importances_, -1)))


def _heed(scan: Any, found: Any) -> None:
    """Removes the ``(parameter, value)`` that a user's function returned."""
    if isinstance(found, tuple) and len(found) == 2:
        scan.param_object.remove_is(*found)


def _local_strategy() -> Any:
    """The function ``local_strategy(scan)`` of the user's file, which is read again each time."""
    path = Path(_STRATEGY)
    if not path.is_file():
        raise TalosParamsError(
            f"reduction_method 'local_strategy' needs {_STRATEGY} in the working folder. Write "
            "it, with a function local_strategy(scan_object)."
        )
    spec = importlib.util.spec_from_file_location("talos_strategy", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("local_strategy", "talos_strategy"):  # the name in Talos 1, and in Talos 2
        if hasattr(module, name):
            return getattr(module, name)
    raise TalosParamsError(
        f"reduction_method: {_STRATEGY} must have a function local_strategy(scan_object)."
    )


def _gamify(scan: Any) -> None:
    """Removes the values that somebody has changed from "active" to "disabled" in a file.

    The file is the JSON that Talos writes: number of the parameter -> number of the value ->
    ``[state, 0, name, value]``.
    """
    path = scan.folder / f"{scan.experiment_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    space = scan.param_object.p
    states = {
        str(i): {str(j): ["active", 0, name, str(v)] for j, v in enumerate(values)}
        for i, (name, values) in enumerate(space.items())
    }
    if path.is_file():
        now = json.loads(path.read_text(encoding="utf-8"))
        for i, (name, values) in enumerate(space.items()):
            for j, value in enumerate(values):
                state = now.get(str(i), {}).get(str(j), ["active"])
                states[str(i)][str(j)][0] = state[0]
                if state[0] == "disabled":
                    scan.param_object.remove_is(name, value)
    path.write_text(json.dumps(states), encoding="utf-8")
