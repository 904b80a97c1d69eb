"""The arguments of ``paceline.bench``, checked before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.benchmark.measure import grid
from paceline.benchmark.measure.accuracy import SCALES
from paceline.benchmark.measure.subject import BenchModel
from paceline.benchmark.presentation.quota import check_quota
from paceline.benchmark.records import MOST_PLANNED, MOST_WORKERS, PlannedSearch
from paceline.errors import UsageError
from paceline.pack.mesh import local_devices
from paceline.tuner.arguments.arguments import whole_number

#: Numbers of trials at once by default; 0 stands for the number that a search would choose.
SLOTS = (1, 4, 16, 0)


def check_budget(budget: Any) -> float | None:
    """Returns seconds above 0; None for no limit."""
    if budget is None:
        return None
    if isinstance(budget, (bool, str)) or not budget > 0:
        raise UsageError(f"measure_for must be a number of seconds above 0, got {budget!r}.")
    return float(budget)


def check_batch_sizes(
    sizes: Sequence[int] | None, n: int, note: Callable[[str], None]
) -> tuple[int, ...]:
    """Returns the batch sizes to measure, each at most the ``n`` training examples.

    ``sizes`` of None are the usual ones; ``note`` is told which of these are left out.
    """
    if sizes is None:
        fitting = tuple(size for size in grid.BATCH_SIZES if size <= n)
        left = [size for size in grid.BATCH_SIZES if size > n]
        if left and fitting:
            note(f"skipped batch sizes above the {n:,} training examples: {left}")
        return fitting or (n,)
    if isinstance(sizes, (int, str)):
        raise UsageError(f"batch_sizes must be a list such as [32, 128], got {sizes!r}.")
    found = tuple(dict.fromkeys(whole_number(size, "batch_sizes") for size in sizes))
    if not found:
        raise UsageError("batch_sizes must not be empty. Pass some, such as [32, 128].")
    for size in found:
        if size > n:
            raise UsageError(f"batch_sizes must be at most {n:,} (training examples), got {size}.")
    return found


def check_slots(parallel_trials: Sequence[int | str] | None) -> tuple[int, ...]:
    """Returns the numbers of trials at once to measure; 0 stands for "auto"."""
    if parallel_trials is None:
        return SLOTS
    if isinstance(parallel_trials, (int, str)):
        raise UsageError(
            f"parallel_trials must be a list such as [1, 4, 16, 'auto'], got {parallel_trials!r}."
        )
    found = tuple(
        0 if each == "auto" else whole_number(each, "parallel_trials") for each in parallel_trials
    )
    if not found:
        raise UsageError("parallel_trials must not be empty. Pass some, such as [1, 'auto'].")
    return tuple(dict.fromkeys(found))


def meshes(given: int | None) -> tuple[tuple[int, int], ...]:
    """Returns the meshes to compare with one device: (trial, data), devices on each axis."""
    if given is not None:
        whole_number(given, "mesh")
    n = len(local_devices(None if given is None else (given, None)))
    return ((n, 1), (1, n)) if n > 1 else ()


def planned_search(
    n_trials: Any,
    epochs: Any,
    batch_size: Any,
    pruner: Any,
    quota: Any,
    workers: Any,
    *,
    n: int,
    packs: bool,
) -> PlannedSearch | None:
    """Returns the search whose time is to be predicted; None if the user asked for none.

    All but the last two are arguments of ``bench``. ``n`` is the number of training examples;
    ``packs``: whether trials can train in packs, as they do on a cluster.
    """
    seconds = check_quota(quota)
    if n_trials is None:
        for name, given in (
            ("quota", seconds),
            ("predict_batch_size", batch_size),
            ("predict_pruner", pruner not in (None, "none")),
            ("workers", workers is not None),
        ):
            if given:
                raise UsageError(f"{name} describes a planned search. Pass predict_trials as well.")
        return None
    if batch_size is not None and whole_number(batch_size, "predict_batch_size") > n:
        raise UsageError(f"predict_batch_size must be at most {n:,} (examples), got {batch_size}.")
    if workers is not None:
        workers = _planned(workers, "workers", MOST_WORKERS)
        if not packs:
            raise UsageError(
                "workers: workers of a cluster train packs on JAX, but Keras' fit is measured. "
                "Leave out workers, or executor='fit' and other backends."
            )
    from paceline.study.pruners.pruners import check_pruner, pruner_text  # loads Optuna

    text = pruner_text(check_pruner(pruner))
    return PlannedSearch(
        _planned(n_trials, "predict_trials", MOST_PLANNED),
        _planned(epochs, "predict_epochs", MOST_PLANNED),
        text,
        seconds,
        workers,
    )


def _planned(value: Any, name: str, most: int) -> int:
    number = whole_number(value, name)
    if number > most:
        raise UsageError(f"{name} must be at most {most:,}. Plan a smaller search.")
    return number


def check_curves(epochs: Any, scale_lr: Any, target_value: Any, validated: bool) -> None:
    """Checks the arguments about accuracy; ``validated``: whether there are validation data."""
    if epochs is not None:
        whole_number(epochs, "epochs")
        if not validated:
            raise UsageError("epochs: comparing accuracy needs validation data. Pass some.")
    if scale_lr is not None and scale_lr not in SCALES:
        raise UsageError(f"scale_lr must be one of {', '.join(SCALES)}, got {scale_lr!r}.")
    if target_value is not None and (
        isinstance(target_value, (bool, str)) or target_value != target_value
    ):
        raise UsageError(f"target_value must be a number, got {target_value!r}.")
    for name, given in (("scale_lr", scale_lr), ("target_value", target_value)):
        if given is not None and epochs is None:
            raise UsageError(f"{name} describes trials that are trained. Pass epochs as well.")


def check_hparams(given: Mapping[str, Any], subject: BenchModel) -> None:
    """Checks that the model has every hyperparameter that was given."""
    known = subject.hp.hparams if subject.hp is not None else {}
    for name in given:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UsageError(f"hparams: this model has no hyperparameter {name!r}; {has}.")
