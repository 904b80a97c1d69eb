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
#: Arguments that never changed a result.
_WITHOUT_EFFECT = ("talos_log_name", "debug", "functional_model", "backend", "retain_models")
#: Arguments of versions 0.2 to 0.5, and of 2.x, that 1.x does not have, and our own ``interleave``
#: -> their defaults.
OWN: dict[str, Any] = {
    "shuffle": True,
    "search_method": None,
    "last_epoch_value": True,
    "objective": None,
    "custom_objects": None,
    "interleave": None,
}


def read_options(
    options: dict[str, Any], given: dict[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """Reads the further arguments of ``Scan``, which may have old names.

    Args:
        options: The arguments that the user gave and that ``Scan`` does not name.
        given: Values of the arguments that ``Scan`` names; values of old names are written to it.
        note: Called with one line of text about an argument that has no effect.

    Returns:
        The values of the arguments in ``OWN``.

    Raises:
        TalosTypeError: An argument is unknown.
        TalosParamsError: An argument was given under two names, or its value cannot work.
    """
    options = dict(options)
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
    if isinstance(given["fraction_limit"], int) and not isinstance(given["fraction_limit"], bool):
        given["fraction_limit"] = float(given["fraction_limit"])
    return found
