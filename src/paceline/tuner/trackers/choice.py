"""Which trackers there are, and those that a user has asked for."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from paceline.errors import UsageError
from paceline.tuner.trackers.base import Tracker

#: Name -> the package that it needs.
KNOWN = {"mlflow": "mlflow", "wandb": "wandb", "tensorboard": "tensorboard"}
#: Added to a name: the best model is stored as an artifact.
_MODEL = "+model"


def make_trackers(trackers: Any) -> dict[str, Tracker]:
    """Makes the trackers that a user has asked for, by name; an object is called by its class."""
    given = [] if trackers is None else trackers
    given = given if isinstance(given, (list, tuple)) else [given]
    found: dict[str, Tracker] = {}
    for each in given:
        if isinstance(each, str):
            name, tracker = each.removesuffix(_MODEL), _by_name(each)
        elif hasattr(each, "begin_in_session"):  # one of the session, as its process has it
            name, tracker = each.name, each
        elif isinstance(each, Tracker) and not isinstance(each, type):
            name, tracker = type(each).__name__, each
        else:
            raise UsageError(
                f"trackers must be {', '.join(KNOWN)} or objects with the methods begin, "
                f"log_trial and end, got {each!r}."
            )
        if name in found:
            raise UsageError(f"trackers: {name} appears twice. Use each tracker once.")
        found[name] = tracker
    return found


def _by_name(text: str) -> Tracker:
    name, keep_model = text.removesuffix(_MODEL), text.endswith(_MODEL)
    if name not in KNOWN:
        raise UsageError(
            f"trackers must be one of {', '.join(KNOWN)}, mlflow+model, wandb+model, got {text!r}."
        )
    if find_spec(KNOWN[name]) is None:
        raise UsageError(f'trackers: {name} is not installed. Run pip install "paceline[{name}]".')
    # The packages take seconds to load, so each is loaded by its own tracker's thread.
    if name == "mlflow":
        from paceline.tuner.trackers.mlflow import MlflowTracker

        return MlflowTracker(keep_model=keep_model)
    if name == "wandb":
        from paceline.tuner.trackers.wandb import WandbTracker

        return WandbTracker(keep_model=keep_model)
    if keep_model:
        raise UsageError(f"trackers: {text}: TensorBoard stores no models. Leave out {_MODEL}.")
    from paceline.tuner.trackers.tensorboard import TensorBoardTracker

    return TensorBoardTracker()
