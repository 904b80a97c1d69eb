"""The short text at the end of a command: the best trial, how the search went, what to run next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.report import formats

#: Pairs of a command and what it does.
Steps = list[tuple[str, str]]
#: Arguments of ``Tuner.search`` that can end it before its last trial, whatever the clock says.
STOPPING_RULES = ("target_value", "patience_trials", "max_total_epochs")

#: Trials with the best one's value that are named.
_TIES = 3


def search_summary(
    summary: Mapping[str, Any], objective: str, next_steps: Sequence[tuple[str, str]]
) -> str:
    """Return what ``paceline search`` prints on stdout at its end, without a last line end.

    ``summary`` is as ``--json`` prints it; ``next_steps`` are commands and what they do, the most
    useful first.
    """
    rejected = summary.get("rejected", {}).items()
    said = [f"{count:,} rejected before training: {reason}" for reason, count in rejected]
    if auto := summary.get("sampler"):
        said.append(f'Sampler: {auto["name"]}, chosen by "auto": {auto["reason"]}.')
    blocks = ["\n".join([_headline(summary), *said])]
    if summary.get("best"):
        blocks.append(best_text(summary["best"], objective))
    elif summary.get("pareto_front"):
        blocks.append(front_text(summary["pareto_front"], summary["objectives"]))
    else:
        said = "complete" if summary.get("objectives") else "validated for an epoch"
        blocks.append(f"No trial is {said} yet, so there is no best {objective}.")
    blocks.append(_steps(next_steps))
    return "\n\n".join(blocks)


def steps_in_python(summary: Mapping[str, Any], *, more: bool) -> Steps:
    """Return what to do next from Python, for ``search_summary``; ``tuner`` is the tuner.

    ``more``: whether there may be more configurations to try.
    """
    steps = [
        ("tuner.results()", "every trial, as a table"),
        ("tuner.report()", "a page of figures, report.html"),
    ]
    if summary.get("best"):
        steps[:0] = [
            ("tuner.best_hparams", "this configuration"),
            ("tuner.best_model()", "its trained model"),
        ]
    if front := summary.get("pareto_front"):
        number = front[0]["number"]
        steps[:0] = [
            ("tuner.pareto()", "the trials of the Pareto front"),
            (f"tuner.best_model(number={number})", "the trained model of one of them"),
        ]
    if rule := rule_of(summary):
        steps.append((f"{rule}=None", "continue without it, as an argument of the same search"))
    elif more:
        steps.append(('n_trials="+32"', "32 more trials, as an argument of the same search"))
    return steps


def rule_of(summary: Mapping[str, Any]) -> str | None:
    """Return the rule of a search that ended it, from its summary; None if none did."""
    by = (summary.get("ended") or {}).get("by")
    return by if by in STOPPING_RULES else None


def best_text(best: Mapping[str, Any], objective: str) -> str:
    """Return the best configuration as a few lines.

    ``best`` has number, state, value, hparams, epochs and best_epoch. With repeats or folds it has
    value_std. If other trials have the same value, it has their numbers, ties.
    """
    value = formats.metric(best["value"])
    epochs = formats.reached(best.get("state", "complete"), best["epochs"], best.get("best_epoch"))
    if best.get("value_std") is not None:
        value = f"mean {value} (standard deviation {formats.metric(best['value_std'])})"
    lines = [f"Best: {objective} {value}, trial {best['number']}, {epochs}{_ties(best)}"]
    width = max(map(len, best["hparams"]), default=0)
    lines += [f"  {name:<{width}}  {formats.hparam(v)}" for name, v in best["hparams"].items()]
    return "\n".join(lines)


def _ties(best: Mapping[str, Any]) -> str:
    """Say which other trials have the same value."""
    ties = best.get("ties") or []
    if not ties:
        return ""
    named = ", ".join(map(str, ties[:_TIES])) + (", ..." if len(ties) > _TIES else "")
    return f"; {formats.count(len(ties), 'other trial')} reached the same ({named})"


def front_text(front: Sequence[Mapping[str, Any]], objectives: Sequence[str]) -> str:
    """Return the Pareto front of several objectives as a few lines.

    Its trials have number, values by objective, hparams and epochs.
    """
    head = ["trial", *objectives]
    rows = [
        [
            str(each["number"]),
            *(formats.objective(name, each["values"][name]) for name in objectives),
        ]
        for each in front
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [f"Pareto front: {formats.count(len(front), 'trial')} that no other one is better than"]
    for cells, each in zip([head, *rows], [None, *front], strict=True):
        text = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        hparams = "" if each is None else f"  {formats.hparams(each['hparams'])}"
        lines.append(f"  {text}{hparams}".rstrip())
    return "\n".join(lines)


def reproduction_text(study: str, again: Mapping[str, Any]) -> str:
    """Return how a trial that was trained again differs from its record.

    ``again`` is as ``paceline reproduce --json`` prints it.
    """
    plan, found = again["plan"], again["differences"]
    epochs = formats.count(max(map(len, again["history"].values()), default=0), "epoch")
    lines = [f"Trial {again['number']} of {study}, trained again alone ({epochs}, {plan['now']})"]
    if not any(found.values()):
        lines.append("  the same bit for bit, in every metric and epoch")
    else:
        width = max(map(len, found))
        lines += [f"  {name:<{width}}  differs by at most {d:.3g}" for name, d in found.items()]
        if plan["recorded"] != plan["now"] and not again["notes"]:
            lines.append(
                f"The record is from plan {plan['recorded']}, which rounds sums differently."
            )
    return "\n".join([*lines, *(f"Note: {note}." for note in again["notes"])])


def _headline(summary: Mapping[str, Any]) -> str:
    counts = {state: count for state, count in summary["n_trials"].items() if count}
    total = sum(counts.values())
    # At the end of a search none runs any more; the next search continues the unfinished ones.
    words = {state: formats.state(state) for state in counts} | {"running": "unfinished"}
    states = ", ".join(f"{count:,} {words[state]}" for state, count in counts.items())
    text = f"{summary['study']}: {formats.count(total, 'trial')} ({states or 'none'})"
    seconds = summary.get("seconds", {})
    if seconds.get("train"):  # zero if the study was finished before this call
        text += f" in {formats.seconds(seconds.get('total'))}"
    programs = summary.get("programs", {}).get("distinct")
    if programs:
        text += f", {formats.count(programs, 'program')}"
        structures = summary["programs"].get("structures") or 0
        if structures > programs:
            text += f" for {structures:,} structures"
        compiled, cached = (summary["programs"].get(k) for k in ("compiled", "from_cache"))
        if compiled is not None and cached is not None:
            text += f" ({compiled} steps compiled, {cached} from the cache)"
    busy = summary.get("slots_busy")
    if summary.get("plans") == ["sequential"]:
        text += ", plan sequential: one trial keeps the device busy"
    elif busy is not None:
        text += f", slots {busy:.0%} filled while training"
    why = (summary.get("ended") or {}).get("text")
    return f"{text}\nEnded: {why}." if why else text


def _steps(steps: Sequence[tuple[str, str]]) -> str:
    width = max((len(command) for command, _ in steps), default=0)
    lines = [f"  {command:<{width}}  {purpose}" for command, purpose in steps]
    return "\n".join(["Next:", *lines])
