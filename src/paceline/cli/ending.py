"""What ``paceline search`` and ``resume`` say to run next, after their end or an interrupt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.cli import studies
from paceline.cli.search_command import SearchCommand
from paceline.report import formats, summary


def how_to_go_on(found: Mapping[str, Any], command: SearchCommand) -> str:
    """Return what to run after an interrupt; ``found`` is empty before the search began."""
    counts = found.get("n_trials")
    if counts is None:
        return "interrupted before the search began; nothing was written"
    kept = _finished(counts)
    resume = studies.command("resume", command.study, command.storage)
    # The search has said that it stops, and with how many trials under way. The command is on a
    # line of its own, so that it can be copied from a narrow terminal.
    return f"{kept:,} finished trials are kept. Go on with:\n  {resume}"


def next_steps(
    command: SearchCommand, call: Mapping[str, Any], result: Mapping[str, Any]
) -> summary.Steps:
    """Return commands that are of use after a search, and what each does.

    ``call`` has the arguments of ``Tuner.search``, some chosen by a budget; ``result`` is the
    summary.
    """

    def line(name: str, *more: str) -> str:
        return studies.command(name, command.study, command.storage, *more)

    steps = []
    if result["best"]:
        steps = [
            (line("best"), "this configuration again"),
            (line("export", "-o", "best.keras"), "its trained model"),
        ]
    if front := result.get("front"):
        number = str(front[0]["number"])
        steps = [
            (line("best"), "the front again"),
            (line("export", "--trial", number, "-o", "model.keras"), "the model of one of them"),
        ]
    steps += [(line("trials"), "every trial"), (line("report"), "a page of figures")]
    if rule := summary.rule_of(result):
        steps.append((line("resume", f"--{rule.replace('_', '-')}", "none"), "go on without it"))
        return steps
    counts = result["n_trials"]
    total = call.get("n_trials")
    under_way = counts.get("running", 0)
    sampler = (result.get("sampler") or {}).get("name", command.tuner.get("sampler"))
    short = isinstance(total, int) and _finished(counts) < total
    # A search that had time and still ended before its last trial has tried every configuration. A
    # grid comes to an end too. In both cases "32 more trials" would find nothing to try.
    cut_off = under_way > 0 or call.get("timeout") is not None
    if short and cut_off:
        steps.append((line("resume"), f"go on to {total:,} trials"))
        return steps
    if under_way:  # the study knows what "+8" came to
        steps.append((line("resume"), f"go on with {formats.count(under_way, 'trial')} under way"))
    if cut_off or not (short or sampler == "grid"):
        steps.append((line("resume", "--trials", "+32"), "32 more trials"))
    return steps


def _finished(counts: Mapping[str, int]) -> int:
    return sum(count for state, count in counts.items() if state != "running")
