"""Translates the arguments of ``Scan`` from the versions of 2018 to those of today."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.compat.talos.errors import TalosParamsError, TalosTypeError

#: Name of an argument in versions 0.2 to 0.5 -> its name in 1.x and 2.x.
_RENAMED = {
    "grid_downsample": "fraction_limit",
    "permutation_filter": "boolean_limit",
    "max_iteration_start_time": "time_limit",
    "reduce_loss": "minimize_loss",
    "clear_tf_session": "clear_session",
}
#: Arguments of versions 0.2 to 0.5 that never changed a result.
_WITHOUT_EFFECT_IN_2018 = ("talos_log_name", "debug", "functional_model")
#: Arguments of 2.x that have nothing to do here: models need no factory, results are always CSV.
_WITHOUT_EFFECT = (
    *_WITHOUT_EFFECT_IN_2018,
    "backend",
    "model_factory",
    "checkpoint_interval",
    "feedback_interval",
    "output_format",
)
#: Arguments of versions 0.2 to 0.5, and of 2.x, that 1.x does not have, and our own ``interleave``
#: -> their defaults.
OWN: dict[str, Any] = {
    "shuffle": True,
    "search_method": None,
    "last_epoch_value": None,
    "objective": None,
    "custom_objects": None,
    "interleave": None,
    "experiment_dir": None,
    "resume": False,
    "stop_after": None,
    "retain_models": None,
}
#: Whoever uses one of these has written for 2018, when ``last_epoch_value`` was False.
_OF_2018 = {
    "dataset_name",
    "experiment_no",
    "search_method",
    "shuffle",
    *_RENAMED,
    *_WITHOUT_EFFECT_IN_2018,
}
#: Folder of the log if no name is given. (A folder "talos" would be taken for the package.)
_FOLDER = "talos_scans"


def read_options(
    options: dict[str, Any], given: dict[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """Reads the further arguments of ``Scan``, which may have old names.

    Args:
        options: The arguments that the user gave and that ``Scan`` does not name.
        given: Values of the arguments that ``Scan`` names; values of old names are written to it.
        note: Called with one line of text about an argument that has no effect.

    Returns:
        The values of the arguments in ``OWN``. ``last_epoch_value`` is a bool: its default in 2018
        was False, and a call without a name of the experiment is of 2018 too.

    Raises:
        TalosTypeError: An argument is unknown.
        TalosParamsError: An argument was given under two names, or its value cannot work.
    """
    options = dict(options)
    unnamed = not given["experiment_name"] and "experiment_dir" not in options
    of_2018 = unnamed or not _OF_2018.isdisjoint(options)
    if "dataset_name" in options or "experiment_no" in options:
        parts = [options.pop("dataset_name", None), options.pop("experiment_no", None)]
        named = "_".join(str(part) for part in parts if part not in (None, ""))
        given["experiment_name"] = given["experiment_name"] or named
    for old, new in _RENAMED.items():
        if old in options:
            value = options.pop(old)
            if given[new] is not None and given[new] != value and old != "clear_tf_session":
                if not (old == "reduce_loss" and given[new] is False):
                    raise TalosParamsError(
                        f"{old}: it is the older name of {new}, and both were given; leave one out."
                    )
            given[new] = value
    for name in _WITHOUT_EFFECT:
        if name in options:
            options.pop(name)
            note(f"{name}: it has no effect here")
    found = {name: options.pop(name, default) for name, default in OWN.items()}
    if options:
        raise TalosTypeError(
            f"Scan: unknown argument {next(iter(options))!r}; see docs/guides/talos.md for those "
            "there are."
        )
    if found["search_method"] not in (None, "random", "linear", "reverse"):
        raise TalosParamsError(
            f"search_method: {found['search_method']!r} is not 'random', 'linear' or 'reverse'."
        )
    if found["last_epoch_value"] is None:
        found["last_epoch_value"] = not of_2018
        if of_2018:
            note(
                "last_epoch_value: as in 2018 the table has the best epoch of each metric; "
                "last_epoch_value=True takes the last epoch"
            )
    if not given["experiment_name"]:
        given["experiment_name"] = _FOLDER
        if found["experiment_dir"] is None:
            note(f"experiment_name: none was given; the log goes to {_FOLDER}/")
    _check_own(found)
    # As ParamSpace has it: a scan that goes on compares it with what it was.
    if isinstance(given["fraction_limit"], int) and not isinstance(given["fraction_limit"], bool):
        given["fraction_limit"] = float(given["fraction_limit"])
    return found


def _check_own(found: dict[str, Any]) -> None:
    stop = found["stop_after"]
    if stop is not None and (not isinstance(stop, int) or isinstance(stop, bool) or stop < 1):
        raise TalosParamsError(f"stop_after: {stop!r} is not a positive whole number.")
    if found["resume"] and found["experiment_dir"] is None:
        raise TalosParamsError(
            "resume: there is no experiment_dir; name the folder of the scan that is to go on."
        )
