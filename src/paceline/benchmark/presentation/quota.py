"""How many sessions a search takes where hours are limited per week and per session."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.benchmark.records import LONGEST, PlannedSearch
from paceline.errors import UsageError
from paceline.report import formats
from paceline.report.forecast import Costs, predict

#: Part of a session that stays free, in case the prediction is too low: this share of the session,
#: and at least LEAST seconds.
MARGIN, LEAST = 0.05, 120.0
#: Sessions that are stopped after less than this many seconds are stopped at a whole second, longer
#: ones at a whole minute.
_FINE = 600.0
NAMES = ("cpu", "gpu", "tpu", "session")


def check_quota(given: str | Mapping[str, float] | None) -> dict[str, float]:
    """Reads a quota: seconds of each platform in a week, and of a "session", by name.

    It is text such as ``gpu=30h,tpu=20h,session=9h``, a mapping from names to seconds, or None.
    """
    if given is None:
        return {}
    if isinstance(given, str):
        pairs = [tuple(part.partition("=")[::2]) for part in given.split(",")]
    else:
        pairs = [(name, value) for name, value in given.items()]
    found: dict[str, float] = {}
    for each, value in pairs:
        name = str(each).strip()
        if name not in NAMES:
            raise UsageError(f"quota must be for {', '.join(NAMES)}, such as gpu=30h, got {name!r}")
        if name in found:
            raise UsageError(f"quota: {name} appears twice. Use each name once")
        found[name] = _seconds(name, value)
    return found


def _seconds(name: str, value: float | str) -> float:
    text = str(value).strip()
    try:
        seconds = formats.parse_duration(text) if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        seconds = None
    if seconds is not None and seconds > LONGEST:
        raise UsageError(
            f"quota: {name} must be at most {LONGEST:.0e} seconds, got {text}. Leave it out"
        )
    if seconds is None or not seconds > 0:
        raise UsageError(
            f"quota: {name} must be a time above 0, such as {name}=9h or 90m, got {text}"
        )
    return seconds


@dataclass(frozen=True)
class QuotaSessions:
    """The sessions that a search takes."""

    count: int  # 0 if a session is too short for a single round
    #: Whole seconds after which to stop every session but the last; None if one suffices.
    stop_after: float | None
    trials_first: int  # that have ended by the end of the first session
    within_quota: bool | None  # whether the hours of a week suffice; None without a quota
    trials_within: int  # that the hours of a week suffice for


def sessions(costs: Costs, platform: str, plan: PlannedSearch) -> QuotaSessions:
    """Returns how a search on a platform ("cpu", "gpu" or "tpu") is spread over sessions.

    Each session builds, traces and compiles again, since the cache of compiled programs may be gone
    with the machine.
    """
    n_trials, epochs, share, quota = plan.n_trials, plan.epochs, plan.share, plan.quota
    whole = predict(costs, n_trials, epochs, share)
    session, week = quota.get("session"), quota.get(platform)
    longest = min(session or math.inf, week or math.inf)
    count, stop, first, total = 1, None, n_trials, whole.total
    if whole.total > longest:
        again = whole.ready + whole.compiling
        stop = _whole(longest - max(MARGIN * longest, min(LEAST, longest / 2)))
        each, duration = stop - again, costs.pace.round
        if each <= 0 or each < duration:
            return QuotaSessions(0, stop, 0, None if week is None else False, 0)
        count = math.ceil((whole.rounds + whole.finish) / each)
        if duration:  # a session ends with a whole round
            count = max(count, math.ceil(whole.n_rounds / (each // duration)))
        first = most_trials(costs, n_trials, epochs, share, stop)
        total = whole.rounds + whole.finish + count * again
    within = None if week is None else total <= week
    fits = n_trials
    if week is not None and not within:
        ready = (count - 1) * (whole.ready + whole.compiling)
        fits = most_trials(costs, n_trials, epochs, share, week - ready)
    return QuotaSessions(count, stop, first, within, fits)


def _whole(seconds: float) -> float:
    """Seconds as they can be given to ``--timeout``, rounded down."""
    unit = 60.0 if seconds >= _FINE else 1.0
    return seconds // unit * unit


def most_trials(
    costs: Costs, n_trials: int, epochs: int, share: float, seconds: float | None
) -> int:
    """Returns how many trials, up to ``n_trials``, a search can finish within ``seconds``."""
    low, high = 0, n_trials
    most = math.inf if seconds is None else seconds
    while low < high:
        middle = (low + high + 1) // 2
        fits = predict(costs, middle, epochs, share).total <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def sentences(costs: Costs, name: str, platform: str, plan: PlannedSearch) -> list[str]:
    """Returns sentences that say how long a search takes, and in how many sessions.

    ``name`` is that of the device in the sentences, ``platform`` "cpu", "gpu" or "tpu".
    """
    n_trials, epochs, pruner, share = plan.n_trials, plan.epochs, plan.pruner, plan.share
    found = predict(costs, n_trials, epochs, share)
    parts = [f"{formats.seconds(found.ready)} until trials train (building, tracing, compiling)"]
    if found.compiling:
        further = min(costs.programs, n_trials) - 1
        programs = "program" if round(further) == 1 else "programs"
        parts.append(
            f"{formats.seconds(found.compiling)} compiling about {further:.0f} further {programs}"
        )
    parts.append(
        f"{formats.seconds(found.rounds)} in {found.n_rounds:,.0f} rounds of {costs.pace.round:.3g}"
        f" s, {min(costs.pace.at_once, n_trials):.0f} trials at once"
    )
    parts.append(f"{formats.seconds(found.finish)} at the end")
    text = (
        f"{n_trials:,} trials of {epochs:,} epochs at batch {costs.batch_size} take about "
        f"{formats.seconds(found.total)} on {name}: {'; '.join(parts)}."
    )
    lines = [text]
    if pruner is not None and share < 1.0:
        lines.append(
            f"Pruner {pruner}: counted with {share:.0%} of all epochs, because of its rungs."
        )
    elif pruner is not None:
        lines.append(
            f"Pruner {pruner}: the number of pruned trials is unknown beforehand, so this is an "
            "upper limit without any pruning."
        )
    if plan.quota:
        lines += _quota_sentences(sessions(costs, platform, plan), name, platform, plan.quota)
    return lines


def _quota_sentences(
    plan: QuotaSessions, name: str, platform: str, quota: Mapping[str, float]
) -> list[str]:
    lines = []
    if not {"session", platform} & quota.keys():
        return [f"The quota has no limit for {platform}."]
    if plan.count == 0:
        return [f"A session on {name} is too short to get ready and train a single round."]
    if plan.count == 1:
        lines.append(f"That fits into one session on {name}.")
    elif plan.stop_after is not None:
        lines.append(
            f"That is {plan.count} sessions on {name}: stop each with --timeout "
            f"{_timeout(plan.stop_after)}, the first after about {plan.trials_first:,} trials, "
            "and continue with `paceline resume`."
        )
    if plan.within_quota is not None:
        week = formats.duration(quota[platform])
        lines.append(
            f"It fits into a week's {week} of {platform}."
            if plan.within_quota
            else f"It does not fit into a week's {week} of {platform}: about "
            f"{plan.trials_within:,} trials fit."
        )
    return lines


def _timeout(seconds: float) -> str:
    if seconds < _FINE:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    return f"{minutes // 60}h{minutes % 60:02}m" if minutes >= 60 else f"{minutes}m"
