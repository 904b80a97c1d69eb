"""Builds without models, and an objective."""

from __future__ import annotations

from typing import Any


def build(hp: Any, proposal: Any = None) -> dict[str, Any]:
    """A build over one of everything."""
    hp.Float("lr", 1e-4, 1e-1, sampling="log")
    hp.Float("momentum", 0.1, 0.9, sampling="reverse_log")
    kind = hp.Choice("kind", ["dense", "conv"])
    hp.Int("units", 8, 64, step=8)
    if kind == "conv":
        with hp.conditional_scope("kind", ["conv"]):
            hp.Int("filters", 1, 64, sampling="log")
    return dict(hp.hparams)


def small_build(hp: Any, proposal: Any = None) -> dict[str, Any]:
    """Six configurations: a with units 1 to 4, b with flag."""
    kind = hp.Choice("kind", ["a", "b"])
    if kind == "a":
        with hp.conditional_scope("kind", ["a"]):
            hp.Int("units", 1, 4)
    else:
        with hp.conditional_scope("kind", ["b"]):
            hp.Boolean("flag")
    return dict(hp.hparams)


def value_of(hparams: dict[str, Any]) -> float:
    """Some objective of a configuration, high is good."""
    return hparams.get("units", 0) / 64 - hparams.get("lr", 0.0) - len(str(hparams.get("kind")))
