"""The arguments of ``Scan``: their names of 2018, and which of them decide the results.

``resume=True`` needs the settings, data and function that the scan began with. The folder of the
scan has digests of them.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from types import CodeType
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline.compat.talos import portable
from paceline.compat.talos.errors import TalosParamsError, TalosTypeError
from paceline.compat.talos.notes import say


class ScanArgument(NamedTuple):
    """Facts about an argument of ``Scan`` that its signature does not tell."""

    of_2018: str | None = None  # its name in versions 0.2 to 0.5, if it was another
    # Whether it decides the results; "reduction": only in a scan with a reduction.
    decides: Literal["never", "always", "reduction"] = "never"
    shown: bool = False  # whether ``details`` has it


#: Arguments that the signature of ``Scan`` names, in the order of ``details``.
ARGUMENTS = {
    "val_split": ScanArgument(decides="always"),
    "random_method": ScanArgument(decides="always", shown=True),
    "performance_target": ScanArgument(decides="always"),
    "fraction_limit": ScanArgument(of_2018="grid_downsample", decides="always"),
    "round_limit": ScanArgument(decides="always"),
    "time_limit": ScanArgument(of_2018="max_iteration_start_time"),
    "boolean_limit": ScanArgument(of_2018="permutation_filter", decides="always"),
    "reduction_method": ScanArgument(decides="always", shown=True),
    "reduction_interval": ScanArgument(decides="reduction", shown=True),
    "reduction_window": ScanArgument(decides="reduction", shown=True),
    "reduction_threshold": ScanArgument(decides="reduction", shown=True),
    "reduction_metric": ScanArgument(decides="reduction", shown=True),
    "minimize_loss": ScanArgument(of_2018="reduce_loss", decides="reduction", shown=True),
    "clear_session": ScanArgument(of_2018="clear_tf_session"),
    "seed": ScanArgument(decides="always", shown=True),
}
#: Arguments of versions 0.2 to 0.5 and of 2.x that 1.x does not have -> their defaults.
#: ``concurrent`` is Paceline's own.
OPTIONS: dict[str, Any] = {
    "shuffle": True,
    "search_method": None,
    "last_epoch_value": None,
    "objective": None,
    "custom_objects": None,
    "concurrent": None,
    "experiment_dir": None,
    "resume": False,
    "stop_after": None,
    "retain_models": None,
}
#: Argument's name in versions 0.2 to 0.5 -> its name in 1.x and 2.x.
_RENAMED = {about.of_2018: name for name, about in ARGUMENTS.items() if about.of_2018}
#: Arguments of versions 0.2 to 0.5 that never changed a result.
_WITHOUT_EFFECT_IN_2018 = ("talos_log_name", "debug", "functional_model")
#: Arguments of 2.x without effect here: models need no factory, results are always CSV.
_WITHOUT_EFFECT = (
    *_WITHOUT_EFFECT_IN_2018,
    "backend",
    "model_factory",
    "checkpoint_interval",
    "feedback_interval",
    "output_format",
)
#: Code with one of these was written in 2018, when ``last_epoch_value`` was False.
_OF_2018 = {
    "dataset_name",
    "experiment_no",
    "search_method",
    "shuffle",
    *_RENAMED,
    *_WITHOUT_EFFECT_IN_2018,
}
#: Default folder of the log. (Python would take a folder "talos" for the package.)
_FOLDER = "talos_scans"


def read_options(options: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Returns a value for each of ``OPTIONS``, and writes values of renamed ones to ``given``.

    ``last_epoch_value`` becomes a bool: its default was False in 2018. A call without the name of
    an experiment is of 2018, too.
    """
    options = dict(options)
    unnamed = not given["experiment_name"] and "experiment_dir" not in options
    beside = "dataset_name" in options or "experiment_no" in options
    of_2018 = unnamed or not _OF_2018.isdisjoint(options)
    if beside:
        parts = [options.pop("dataset_name", None), options.pop("experiment_no", None)]
        named = "_".join(str(part) for part in parts if part not in (None, ""))
        given["experiment_name"] = given["experiment_name"] or named
    for old, new in _RENAMED.items():
        if old in options:
            value = options.pop(old)
            if given[new] is not None and given[new] != value and old != "clear_tf_session":
                if not (old == "reduce_loss" and given[new] is False):
                    raise TalosParamsError(
                        f"{old} is the older name of {new}, and both were passed. Remove one."
                    )
            given[new] = value
    for name in _WITHOUT_EFFECT:
        if name in options:
            options.pop(name)
            say(f"{name} has no effect here")
    found = {name: options.pop(name, default) for name, default in OPTIONS.items()}
    if options:
        raise TalosTypeError(
            f"Scan has no argument {next(iter(options))!r}. See docs/reference/talos.md for its "
            "arguments."
        )
    if found["search_method"] not in (None, "random", "linear", "reverse"):
        raise TalosParamsError(
            "search_method must be 'random', 'linear' or 'reverse', got "
            f"{found['search_method']!r}."
        )
    if found["last_epoch_value"] is None:
        found["last_epoch_value"] = not of_2018
        if of_2018:
            say(
                "last_epoch_value is missing, so the table has the best epoch of each metric, as "
                "in 2018. Pass last_epoch_value=True for the last epoch"
            )
    if not given["experiment_name"]:
        given["experiment_name"] = _FOLDER
        if found["experiment_dir"] is None:
            say(f"experiment_name is missing, so the log goes to {_FOLDER}/")
    _check_own(found)
    found["beside"] = beside  # whether the table is also written next to the folder, as in 2018
    # As in ParamSpace, because a resumed scan compares it.
    if isinstance(given["fraction_limit"], int) and not isinstance(given["fraction_limit"], bool):
        given["fraction_limit"] = float(given["fraction_limit"])
    return found


def _check_own(found: dict[str, Any]) -> None:
    stop = found["stop_after"]
    if stop is not None and (not isinstance(stop, int) or isinstance(stop, bool) or stop < 1):
        raise TalosParamsError(f"stop_after must be a positive integer, got {stop!r}.")
    if found["resume"] and found["experiment_dir"] is None:
        raise TalosParamsError(
            "resume needs experiment_dir, which is missing. Pass the folder of the scan."
        )


# -- what decides the results of a scan ------------------------------------------------------------


def identity(x: Iterable[Any], y: Iterable[Any], scan: Any, shuffle: bool | None) -> dict[str, str]:
    """Returns digests of what decides the results of a ``Scan``.

    x, y: all its data. ``shuffle``: whether they are shuffled before a split; None without a split.
    """
    decides = ["always"] if scan.reduction_method is None else ["always", "reduction"]
    names = [name for name, about in ARGUMENTS.items() if about.decides in decides]
    settings = {
        **{name: getattr(scan, name) for name in names},
        "boolean_limit": getattr(scan.params, "boolean_limit", scan.boolean_limit),
        "params": getattr(scan.params, "params", scan.params),
        "shuffle": shuffle,
    }
    found = {"x": _data_digest(list(x)), "y": _data_digest(list(y))}
    found["model"] = _digest(_source(scan.model))
    for name, value in settings.items():
        text = _code(value) if callable(value) else json.dumps(portable.encode(value))
        found[name] = _digest(re.sub(r" at 0x[0-9a-f]+", "", text))  # addresses of objects
    return found


def identity_hash(found: Mapping[str, str]) -> str:
    """Returns one digest of everything that decides the results."""
    return _digest(json.dumps(found, sort_keys=True))


def scan_details(scan: Any) -> dict[str, Any]:
    """Returns the settings of a finished ``Scan``, for its ``details``."""
    return {
        "experiment_name": scan.experiment_name,
        "experiment_id": scan.experiment_id,
        "status": scan.status,
        **{name: getattr(scan, name) for name, about in ARGUMENTS.items() if about.shown},
        "run_dir": str(scan.run_dir),
        "complete_time": time.strftime("%m/%d/%y/%H:%M"),
        "x_shape": getattr(scan.x, "shape", "multi-input"),
        "y_shape": getattr(scan.y, "shape", "multi-output"),
    }


def _source(function: Callable[..., Any]) -> str:
    """The source of a function; without one, its code, or its class."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # made by exec, or an object that is called
        found: Any = getattr(function, "__code__", None)
        return repr(found.co_code) if found is not None else type(function).__qualname__


def _code(function: Callable[..., Any]) -> str:
    """What tells a function from others; lines of a lambda may hold the call of ``Scan``, too."""
    if getattr(function, "__name__", None) == "<lambda>":
        return repr(_compiled(function.__code__))
    return _source(function)


def _compiled(code: CodeType) -> list[Any]:
    """The compiled code of a function, the same in every process."""
    constants = [
        _compiled(each)
        if isinstance(each, CodeType)
        else sorted(map(repr, each))
        if isinstance(each, frozenset)  # the order of a set of text differs between processes
        else repr(each)
        for each in code.co_consts
    ]
    return [code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _data_digest(data: Any) -> str:
    """The digest of arrays, tables, and lists and dictionaries of them."""
    if isinstance(data, Mapping):
        return _digest("".join(f"{key!r}{_data_digest(each)}" for key, each in data.items()))
    nested = (list, tuple, dict, type(None))
    if isinstance(data, (list, tuple)) and any(
        hasattr(each, "shape") or isinstance(each, nested) for each in data
    ):
        return _digest("".join(map(_data_digest, data)))
    if data is None:
        return _digest("None")
    array = np.asarray(data)
    found = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    if array.dtype.hasobject:
        found.update(repr(array.tolist()).encode())
    else:
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
