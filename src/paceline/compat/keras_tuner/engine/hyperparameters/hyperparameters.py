"""``HyperParameters`` as KerasTuner's users know it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import paceline.search_space
from paceline.compat.keras_tuner.engine.hyperparameters import hp_types
from paceline.compat.keras_tuner.protos import HasProto
from paceline.search_space import HyperParameter, Parameter


class HyperParameters(paceline.search_space.HyperParameters, HasProto):
    """Paceline's ``HyperParameters`` with the manners of KerasTuner.

    The first declaration of a name stands when it comes again with other bounds, and values are
    taken as they are given, also values out of bounds.

    Args:
        values: Name -> value, used where the name is declared and active.
        chooser: As for Paceline's class.
        trusting: As for Paceline's class.
    """

    theirs: ClassVar[str] = "engine.hyperparameters.hyperparameters"

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        chooser: Callable[[Parameter], Any] | None = None,
        trusting: bool = True,
    ) -> None:
        super().__init__(values, chooser=chooser, trusting=trusting)

    @property
    def _hps(self) -> dict[str, list[HyperParameter]]:
        """Name -> its declarations: a private name of KerasTuner's that other code reads."""
        found: dict[str, list[HyperParameter]] = {}
        for hp in self.space:
            found.setdefault(hp.name, []).append(hp)
        return found

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, trusting: bool = True) -> Self:
        """Return the hp that a config of ``get_config``, ours or KerasTuner's, describes."""
        return super().from_config(config, trusting=trusting)


def as_ours(given: Any) -> HyperParameters:
    """Returns the ``HyperParameters`` of this package for those that a user gives.

    Args:
        given: ``HyperParameters`` of this package, which are returned as they are; or Paceline's or
            KerasTuner's. If a name is declared twice, the first declaration counts.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(given, HyperParameters):
        return given
    if not callable(getattr(given, "get_config", None)):
        raise TypeError(
            f"`hyperparameters` is {given!r}; pass a `HyperParameters` object, such as "
            "`hp = keras_tuner.HyperParameters(); hp.Float('lr', 1e-4, 1e-2)`."
        )
    return HyperParameters.from_config(given.get_config())


def serialize(obj: HyperParameter | HyperParameters) -> dict[str, Any]:
    """Return KerasTuner's config of one hyperparameter, or of a ``HyperParameters``."""
    if isinstance(obj, HyperParameter):
        return hp_types.serialize(obj)
    return {"class_name": "HyperParameters", "config": obj.get_config()}


def deserialize(config: Mapping[str, Any]) -> HyperParameter | HyperParameters:
    """Return the hyperparameter, or the ``HyperParameters``, of a config from ``serialize``."""
    if config["class_name"] == "HyperParameters":
        return HyperParameters.from_config(config["config"])
    return hp_types.deserialize(config)
