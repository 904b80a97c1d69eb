"""A space: what is known of it, which grows as builds run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.errors import SpaceError
from paceline.search_space.hyperparameters import HyperParameters
from paceline.search_space.parameter import Parameter


class Space:
    """The union of the parameters met in builds.

    Attributes:
        parameters: Storage name -> parameter, in the order first met.
    """

    def __init__(self, parameters: Mapping[str, Parameter] | None = None) -> None:
        self.parameters: dict[str, Parameter] = dict(parameters or {})

    def learn(self, hp: HyperParameters) -> None:
        """Add the parameters that a build met; nothing is added when one conflicts.

        Args:
            hp: The hp after a build.

        Raises:
            SpaceError: A parameter is known under the same name and condition with other bounds.
        """
        for storage_name, parameter in hp.parameters.items():
            known = self.parameters.get(storage_name)
            if known is not None and not known.same_values(parameter):
                raise SpaceError(
                    f'hyperparameter "{storage_name}": same name, same condition, other bounds: '
                    f"{known.distribution} before, {parameter.distribution} now; give it another "
                    "name, put it in an hp.conditional_scope, or start another study."
                )
        for storage_name, parameter in hp.parameters.items():
            self.parameters.setdefault(storage_name, parameter)

    @property
    def is_finite(self) -> bool:
        """Whether no parameter met so far is a continuous float."""
        return all(parameter.is_finite for parameter in self.parameters.values())

    def to_json(self) -> list[dict[str, Any]]:
        """Return the parameters as JSON values; ``from_json`` is the way back."""
        return [parameter.to_json() for parameter in self.parameters.values()]

    @classmethod
    def from_json(cls, data: list[dict[str, Any]]) -> Space:
        """Return the space that ``to_json`` described."""
        parameters = [Parameter.from_json(entry) for entry in data]
        return cls({parameter.storage_name: parameter for parameter in parameters})
