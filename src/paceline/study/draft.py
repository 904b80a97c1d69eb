"""A trial that is being proposed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from paceline.search_space import HyperParameters, Parameter
from paceline.study.samplers.values import Chooser


class BuildFailed(Exception):
    """A build raised. ``accept`` the draft and ``finish`` it as failed.

    Attributes:
        draft: The trial that was to be.
        hp: What the build had met.
        cause: What it raised.
    """

    def __init__(self, draft: Draft, hp: HyperParameters, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.draft, self.hp, self.cause = draft, hp, cause


@dataclass(eq=False)
class Draft:
    """A trial that is being proposed: no part of the study before ``Study.accept``.

    Attributes:
        number: The number that it will have.
        seed: The seed that it will have: 31 bits, from the study's seed and the number.
        attempt: How many proposals for this number were turned down before.
        values: Values given by the user: plain name -> real value.
        chooser: Returns the real value of a parameter.
        mirror_number: Its number in the mirror.
        chosen: Storage name -> parameter and real value chosen, in the order met.
        draw: Number of the draw that it tries, in random search.
        failed: Whether the build raised.
        continues: The trial that it goes on with.
        hp: What build is given, where a director decides.
    """

    number: int
    seed: int
    attempt: int
    values: dict[str, Any]
    chooser: Chooser
    mirror_number: int
    chosen: dict[str, tuple[Parameter, Any]] = field(default_factory=dict)
    draw: int | None = None
    failed: bool = False
    continues: int | None = None
    hp: HyperParameters | None = None

    def choose(self, parameter: Parameter) -> Any:
        """Return the real value of a parameter; the same one however often it is asked for."""
        if parameter.storage_name not in self.chosen:
            self.chosen[parameter.storage_name] = parameter, self.chooser(parameter)
        return self.chosen[parameter.storage_name][1]
