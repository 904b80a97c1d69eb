"""Population based training: the members of a population that do worst take over the best ones.

``PBT`` has the settings, ``PopulationPruner`` the rule. Every few epochs all members wait for one
another. Copies of the best replace the worst, and train on with other hyperparameters.
``tuner/population/population.py`` chooses these values and creates the copies.

Source: Jaderberg et al., "Population based training of neural networks", 2017, with truncation
selection. One difference: a copy is a new trial that continues its source, so the record of each
trial stays true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from paceline.errors import UsageError
from paceline.study.objectives import Direction
from paceline.study.pruners.base import Pruner, Verdict
from paceline.study.samplers.values import seeded_bits
from paceline.study.trials.trial import Trial

#: How ``pruner=`` and ``--pruner`` write it.
FORM = (
    "pbt[:EPOCHS[:FRACTION]] or "
    "pbt:perturbation_interval=5,quantile_fraction=0.25,resample_probability=0.25,perturbation_factors=0.8/1.2,burn_in_period=0,explore=random"
)
#: The stream of a study's random numbers that populations draw from.
STREAM = 5
_DONOR = 0  # within the stream: which of the best is copied


@dataclass(frozen=True)
class PBT:
    """Settings of population based training, as ``pruner=``; ``n_trials`` is the population.

    Attributes:
        perturbation_interval: Epochs between two perturbations.
        quantile_fraction: Share of the population that is replaced at a perturbation, and that is
            copied; at least one trial.
        resample_probability: Probability that a hyperparameter of a copy is drawn again. Otherwise
            it is multiplied by one of ``perturbation_factors``. Values of an ``hp.Choice`` or on a
            grid move at least to a neighbour.
        perturbation_factors: Factors that numbers are multiplied by.
        burn_in_period: No perturbation before this epoch.
        hparams: Names of the hyperparameters that may change; None: all that can change during
            training; Paceline builds models to find them.
        explore: "random", as above, or "gp": a Gaussian process chooses the numbers of a range,
            from the gains so far (PB2). Choices stay random.

    Raises:
        UsageError: A value is outside of its range.
    """

    perturbation_interval: int = 5
    quantile_fraction: float = 0.25
    resample_probability: float = 0.25
    perturbation_factors: tuple[float, float] = (0.8, 1.2)
    burn_in_period: int = 0
    hparams: Sequence[str] | None = None
    explore: str = "random"

    def __post_init__(self) -> None:
        for name, least in (("perturbation_interval", 1), ("burn_in_period", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(
                    f"PBT: {name} must be an integer of at least {least}, got {value!r}."
                )
        if not _is_number(self.quantile_fraction) or not 0 < self.quantile_fraction <= 0.5:
            raise UsageError(
                "PBT: quantile_fraction must be above 0 and at most 0.5, got "
                f"{self.quantile_fraction!r}."
            )
        if not _is_number(self.resample_probability) or not 0 <= self.resample_probability <= 1:
            raise UsageError(
                f"PBT: resample_probability must be from 0 to 1, got {self.resample_probability!r}."
            )
        factors = self.perturbation_factors
        if not (
            isinstance(factors, tuple | list)
            and len(factors) == 2
            and all(map(_is_number, factors))
            and 0 < factors[0] < 1 < factors[1]
        ):
            raise UsageError(
                "PBT: perturbation_factors must be two numbers, one below and one above 1, got "
                f"{factors!r}."
            )
        object.__setattr__(self, "perturbation_factors", (float(factors[0]), float(factors[1])))
        if self.explore not in ("random", "gp"):
            raise UsageError(f"PBT: explore must be 'random' or 'gp', got {self.explore!r}.")
        if self.hparams is not None:
            named = not isinstance(self.hparams, str) and list(self.hparams)
            if not named or not all(isinstance(name, str) and name for name in self.hparams):
                raise UsageError(
                    "PBT: hparams must be a list of names of hyperparameters, got "
                    f"{self.hparams!r}."
                )
            object.__setattr__(self, "hparams", tuple(self.hparams))

    def perturbations(self, epochs: int) -> list[int]:
        """Return the epochs, below ``epochs``, after which members are perturbed."""
        return [
            e
            for e in range(self.perturbation_interval, epochs, self.perturbation_interval)
            if e >= self.burn_in_period
        ]

    def check(self, epochs: int | None, n_trials: int | None, n_members: int) -> None:
        """Check that a search can be one of a population.

        ``epochs`` is None if they depend on hp, ``n_trials`` if only time bounds the search.

        Raises:
            UsageError: It cannot; the message says what to change.
        """
        if epochs is None:
            raise UsageError(
                "pruner: pbt compares trials that train for the same number of epochs. Pass "
                "epochs as a number, not as a function of hp."
            )
        if not self.perturbations(epochs):
            raise UsageError(
                f"pruner: pbt perturbs trials every {self.perturbation_interval} epochs, not "
                f"before epoch {self.burn_in_period}, but trials have {epochs}. Use more epochs, "
                "or a smaller perturbation_interval or burn_in_period."
            )
        if n_trials is None or n_trials < 2:
            raise UsageError(
                "pruner: n_trials is the size of pbt's population and must be at least 2, got "
                f"{n_trials}."
            )
        if n_members > 1:
            raise UsageError(
                f"pruner: pbt cannot copy trials of {n_members} repeats or folds. Leave out "
                "repeats= and folds=."
            )

    @property
    def text(self) -> str:
        """The settings as ``read_pbt`` reads them."""
        parts = [
            f"perturbation_interval={self.perturbation_interval}",
            f"quantile_fraction={self.quantile_fraction!r}",
            f"resample_probability={self.resample_probability!r}",
            f"perturbation_factors={self.perturbation_factors[0]!r}/{self.perturbation_factors[1]!r}",
            f"burn_in_period={self.burn_in_period}",
        ]
        if self.hparams is not None:
            parts.append("hparams=" + "+".join(quote(name, safe="") for name in self.hparams))
        if self.explore != "random":
            parts.append(f"explore={self.explore}")
        return "pbt:" + ",".join(parts)


def read_pbt(text: str) -> PBT:
    """Return the settings that ``pruner="pbt..."`` means."""
    rest = text.partition(":")[2]
    parts = rest.split("," if "=" in rest else ":") if rest else []
    try:
        if "=" in rest:
            pairs = [(name, value) for name, _, value in (part.partition("=") for part in parts)]
        else:
            names = ("perturbation_interval", "quantile_fraction")
            pairs = list(zip(names[: len(parts)], parts, strict=True))
        given = {name: _read(name, value) for name, value in pairs}
    except (ValueError, KeyError):
        raise UsageError(f"pruner: {text!r} is not understood. Write {FORM}.") from None
    return PBT(**given)


def _read(name: str, text: str) -> Any:
    if name in ("perturbation_interval", "burn_in_period"):
        if not re.fullmatch(r"\d{1,9}", text):
            raise ValueError(text)
        return int(text)
    if name == "perturbation_factors":
        low, high = text.split("/")
        return float(low), float(high)
    if name == "hparams":
        return tuple(unquote(part) for part in text.split("+"))
    if name == "explore":
        return text
    if name not in ("quantile_fraction", "resample_probability"):
        raise KeyError(name)
    return float(text)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


@dataclass(frozen=True)
class Perturbation:
    """One trial that takes over another."""

    source: int  # the trial that is copied
    replaced: int  # the trial whose place the copy takes: it ends, or has failed
    epoch: int  # the epoch that both have trained


class PopulationPruner(Pruner):
    """Population based training of one search's trials.

    It learns nothing of trials of earlier searches, which are of another population; and its
    members wait until all are there, and then continue.
    """

    pauses = True

    def __init__(self, settings: PBT, direction: Direction) -> None:
        self.settings = settings
        self._sign = -1.0 if direction == "maximize" else 1.0
        self._waiting: dict[int, float] = {}  # trial -> its loss where it waits for the others
        self._failed: list[int] = []  # members that have failed since the last perturbation
        self._epoch = 0  # of the perturbation that the members wait for
        self._go: list[int] = []
        self._out: list[int] = []

    def judge(
        self, trial: Trial, epoch: int, epochs: int, value: float, can_pause: bool = True
    ) -> Verdict:
        """Return "pause" where members wait for one another, and "go" otherwise.

        A trial that cannot be paused takes no part in the perturbations.
        """
        if not can_pause or epoch not in self.settings.perturbations(epochs):
            return "go"
        self._epoch = epoch
        self._waiting[trial.number] = self._sign * value
        return "pause"

    @property
    def waits(self) -> bool:
        """Whether a member waits for the others."""
        return bool(self._waiting)

    def perturb(self, seed: int) -> list[Perturbation]:
        """Return which trials are copied where, all members being there; ``seed`` is the study's.

        The trials that are replaced end afterwards, and all others continue: see ``given_up`` and
        ``promoted``.
        """
        ranked = sorted(self._waiting, key=lambda number: (self._waiting[number], number))
        n = len(ranked)
        n_out = min(max(1, int(self.settings.quantile_fraction * n)), n // 2)
        n_best = max(1, n_out)
        best, out = ranked[:n_best], sorted(ranked[n - n_out :])
        found = [
            Perturbation(
                best[seeded_bits(seed, STREAM, _DONOR, number, self._epoch) % n_best],
                number,
                self._epoch,
            )
            for number in [*out, *sorted(self._failed)]
        ]
        self._out = out
        self._go = sorted(set(ranked) - set(out))
        self._waiting, self._failed = {}, []
        return found

    def state(self) -> Any:
        """Return who waits and who has failed, as JSON values."""
        return [self._epoch, list(self._waiting.items()), list(self._failed)]

    def load_state(self, state: Any) -> None:
        """Replace all that it knows by what ``state`` returned."""
        self._epoch, waiting, failed = state
        self._waiting, self._failed = dict(waiting), list(failed)

    def end_trial(self, trial: Trial) -> None:
        """Note that a member has ended; the next perturbation replaces one that failed."""
        self._waiting.pop(trial.number, None)
        if trial.state == "failed":
            self._failed.append(trial.number)

    def restart(self, numbers: Set[int]) -> None:
        """Forget members that train from their first epoch again."""
        self._waiting = {n: loss for n, loss in self._waiting.items() if n not in numbers}

    def promoted(self) -> list[int]:
        """Return the members that train on after a perturbation."""
        found, self._go = self._go, []
        return found

    def given_up(self) -> list[int]:
        """Return the members that were replaced."""
        found, self._out = self._out, []
        return found
