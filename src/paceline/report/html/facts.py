"""The parts of a report that are tables: trials, failures, programs, time, and the manifest."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.report import formats
from paceline.report.html.markup import Column, columns_table, dim, items, table
from paceline.report.html.subject import ReportSubject
from paceline.report.html.verdict import shape_of
from paceline.report.lineage import value_in
from paceline.report.slots import HELD, slot_shares
from paceline.report.tables import hparam_names, objective_value
from paceline.study.timeline import SearchTimeline
from paceline.study.trials.lineage import line_of
from paceline.study.trials.trial import UNDER_WAY, Trial

#: Rows of the table of trials at most.
MOST_TRIALS = 50
#: Causes of failures, programs and searches that are listed at most.
_MOST_ROWS = 30
#: Accounts in the order in which a trial meets them; others follow.
_ACCOUNTS = {
    "build": "build(hp)",
    "trace": "tracing the steps",
    "compile": "lowering and compiling",
    "train": "training",
    "validate": "validating",
    "sampler": "the sampler",
    "storage": "waiting for the storage",
    "checkpoint": "waiting for checkpoints",
}


def headline(subject: ReportSubject) -> Iterator[str]:
    """Give what stands below the study's name: counts, the objective, devices."""
    counts = Counter(formats.state(trial.state) for trial in subject.trials)
    states = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    said = formats.count(len(subject.trials), "trial")
    named = list(zip(subject.objectives, subject.trials.directions, strict=False))
    named = named or [(subject.objective, "maximize" if subject.maximize else "minimize")]
    several = "s" if len(named) > 1 else ""
    yield f"{said}{f': {states}' if states else ''}. Objective{several}: " + (
        "; ".join(f"{name}, to {direction}" for name, direction in named) + "."
    )
    versions = subject.meta.get("versions") or {}
    device = next((s.begun.devices for s in reversed(subject.timelines) if s.begun.devices), None)
    parts = [f"{name} {version}" for name, version in versions.items() if name != "device"]
    device = device or versions.get("device")
    if device:
        parts.insert(0, str(device))
    if parts:
        yield f"{', '.join(parts)}."
    learnt = subject.meta.get("learnt")
    for each in learnt if isinstance(learnt, list) else ():
        if isinstance(each, dict) and isinstance(trials := each.get("trials"), list):
            count = formats.count(len(trials), "trial")
            yield f"Warm-started from {count} of study {each.get('study')!r}."


def trials_part(subject: ReportSubject) -> Iterator[str]:
    """Give the best trials as a table."""
    ranked = subject.reached[:MOST_TRIALS]
    if not ranked:
        return
    states = any(trial.state != "complete" for trial in ranked)
    spreads = [trial.value_std for trial in ranked]
    spread = any(each is not None for each in spreads)
    seconds = [trial.train_seconds if trial.epochs else None for trial in ranked]
    columns = [
        Column("trial", [trial.number for trial in ranked]),
        Column(subject.objective, formats.metrics([trial.value for trial in ranked])),
        *([Column("value_std", formats.metrics(spreads))] if spread else []),
        Column("epoch", [_epoch_of_value(trial) for trial in ranked], number=False),
        *([Column("state", [_state(t) for t in ranked], number=False)] if states else []),
        *_hparams(ranked),
        Column("train_seconds", formats.seconds_column(seconds)),
    ]
    yield '<h2 id="trials">Best trials</h2>'
    yield columns_table(columns, marked={0})
    if (left := len(subject.trials) - len(ranked)) > 0:
        yield dim(f"{left:,} more trials: `paceline trials {subject.name} --all` lists all.")


def _state(trial: Trial) -> str:
    return "unfinished" if trial.state in UNDER_WAY else formats.state(trial.state)


def _epoch_of_value(trial: Trial) -> str:
    return "-" if trial.best_epoch is None else f"{trial.best_epoch} of {trial.epochs}"


def _hparams(trials: Sequence[Trial]) -> Iterator[Column]:
    """Give a column for each hyperparameter; a trial without it has an empty cell."""
    rows = [trial.hparams for trial in trials]
    for name in hparam_names(trials):
        yield Column(name, formats.hparam_cells(rows, name, ""), number=False)


def starts_part(subject: ReportSubject) -> Iterator[str]:
    """Give the trials whose values were given, and their places among all."""
    starts = [trial for trial in subject.trials if trial.enqueued]
    if not starts:
        return
    shown = starts[:MOST_TRIALS]
    objectives = subject.objectives or [subject.objective]
    yield '<h2 id="starts">Initial configurations</h2>'
    yield columns_table(
        [
            Column("trial", [trial.number for trial in shown]),
            *_values(objectives, shown),
            Column("place", list(_places(subject, shown)), number=False),
            *_hparams(shown),
        ]
    )
    left = f" {len(starts) - len(shown):,} more are not listed." if len(starts) > len(shown) else ""
    yield dim(f"You chose some or all of their values, not the sampler.{left}")


def _values(objectives: Sequence[str], trials: Sequence[Trial]) -> Iterator[Column]:
    """Give a column for each objective; a trial without a value has a dash."""
    for place, name in enumerate(objectives):
        values = [objective_value(trial, place) for trial in trials]
        yield Column(name, formats.objectives(name, values))


def _places(subject: ReportSubject, trials: Sequence[Trial]) -> Iterator[str]:
    """Give where trials are among those with a value; of several objectives, by the first one."""
    places = {trial.number: place for place, trial in enumerate(subject.reached, 1)}
    front = {trial.number for trial in subject.front}
    by = f" by {subject.objective}" if subject.objectives else ""
    for trial in trials:
        if trial.number in front:
            yield "on the Pareto front"
        elif trial.number in places:
            ended = "" if trial.state == "complete" else f", {_state(trial)}"
            yield f"{places[trial.number]:,} of {len(places):,}{by}{ended}"
        else:
            yield formats.state(trial.state)


def ensemble_part(subject: ReportSubject) -> Iterator[str]:
    """Give what the last ensemble of the study's models is worth."""
    record = subject.ensemble
    if record is None:
        return
    values = formats.metrics([float(record.value), float(record.alone)])
    rows = [
        (f"the ensemble of trials {formats.repeated(record.trials)}", values[0]),
        (f"trial {record.trials[0]} alone", values[1]),
    ]
    yield '<h2 id="ensemble">Ensemble</h2>'
    yield table(("model", record.objective), rows, numbers={1})
    yield dim(
        f"Measured on {record.n_examples:,} examples of the validation data that were not used "
        "for the selection. Later trials may have better models."
    )


def line_part(subject: ReportSubject) -> Iterator[str]:
    """Give the trials that the best one continues, where it began as a copy."""
    if not subject.reached or subject.reached[0].continued_at is None:
        return
    line = line_of(subject.reached[0], subject.trials.get)
    values = [value_in(each.trial, subject.objective, each.last) for each in line]
    columns = [
        Column("trial", [each.trial.number for each in line]),
        Column("epochs", [f"{each.first} to {each.last}" for each in line], number=False),
        Column(subject.objective, formats.metrics(values)),
        *_hparams([each.trial for each in line]),
    ]
    yield '<h2 id="line">Line of the best trial</h2>'
    yield columns_table(columns)
    yield dim("Each trial continues the one above it, with its weights and other hyperparameters.")


def front_part(subject: ReportSubject) -> Iterator[str]:
    """Give the Pareto front of several objectives as a table."""
    names, front = subject.objectives, subject.front
    if not front:
        return
    shown = front[:MOST_TRIALS]
    columns = [
        Column("trial", [trial.number for trial in shown]),
        *_values(names, shown),
        Column("epoch", [_epoch_of_value(trial) for trial in shown], number=False),
        *_hparams(shown),
    ]
    yield '<h2 id="front-trials">Trials of the Pareto front</h2>'
    yield columns_table(columns)
    if (left := len(front) - len(shown)) > 0:
        yield dim(f"{left:,} more trials: `paceline best {subject.name}` lists all.")
    devices = dict.fromkeys(
        str(trial.costs["latency_device"]) for trial in front if "latency_device" in trial.costs
    )
    if devices:
        yield dim(f"Latencies in milliseconds, measured on {', '.join(devices)}.")


def failures_part(subject: ReportSubject) -> Iterator[str]:
    """Give failed trials by their cause."""
    failed = [trial for trial in subject.trials if trial.state == "failed"]
    if not failed:
        return
    causes = _alike(failed, [trial.error or "no reason is known" for trial in failed])
    rows = []
    for trials in causes[:_MOST_ROWS]:
        example = trials[0]
        numbers = ", ".join(str(trial.number) for trial in trials[:8])
        more = f" and {len(trials) - 8:,} more" if len(trials) > 8 else ""
        rows.append(
            (len(trials), example.error or "", f"{numbers}{more}", formats.hparams(example.hparams))
        )
    yield '<h2 id="failures">Failures</h2>'
    yield table(("trials", "cause", "numbers", "hyperparameters of the first"), rows, numbers={0})
    if len(causes) > _MOST_ROWS:
        yield dim(f"{len(causes) - _MOST_ROWS:,} more causes.")


def rejections_part(subject: ReportSubject) -> Iterator[str]:
    """Give by their reasons the configurations that were rejected before training."""
    rejected = [trial for trial in subject.trials if trial.rejected is not None]
    if not rejected:
        return
    groups = _alike(rejected, [trial.rejected or "" for trial in rejected])
    rows = [(len(g), g[-1].rejected or "", formats.hparams(g[-1].hparams)) for g in groups]
    yield '<h2 id="rejections">Rejected before training</h2>'
    head = ("configurations", "reason of the last", "hyperparameters of the last")
    yield table(head, rows[:_MOST_ROWS], numbers={0})


def _alike(trials: Sequence[Trial], reasons: Sequence[str]) -> list[list[Trial]]:
    """Put trials together whose reasons are of one kind; the most frequent kind comes first."""
    kinds: dict[str, list[Trial]] = {}
    for trial, reason in zip(trials, reasons, strict=True):
        kinds.setdefault(formats.kind_of(reason), []).append(trial)
    return sorted(kinds.values(), key=len, reverse=True)


def programs_part(subject: ReportSubject) -> Iterator[str]:
    """Give the programs and plans that trials trained in."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in subject.trials:
        if trial.epochs:
            groups.setdefault((trial.program_id or "-", trial.plan or "-"), []).append(trial)
    if not groups:
        return
    rows = [
        (program, plan, len(trials), sum(t.epochs for t in trials), _seconds_of(trials))
        for (program, plan), trials in sorted(groups.items(), key=lambda pair: -len(pair[1]))
    ]
    yield '<h2 id="programs">Programs and plans</h2>'
    head = ("program", "plan", "trials", "epochs", "seconds per epoch of a trial")
    yield table(head, rows[:_MOST_ROWS], numbers={2, 3, 4})
    if len(rows) > _MOST_ROWS:
        yield dim(f"{len(rows) - _MOST_ROWS:,} more programs.")
    reasons = Counter(t.fallback_reason for t in subject.trials if t.fallback_reason)
    if reasons:
        yield "<h3>Trials that trained alone</h3>"
        yield items(f"{count:,}: {reason}" for reason, count in reasons.most_common(10))


def _seconds_of(trials: list[Trial]) -> str:
    epochs = sum(trial.epochs for trial in trials)
    return formats.fine(sum(trial.train_seconds for trial in trials) / epochs) if epochs else "-"


def accounts_part(subject: ReportSubject) -> Iterator[str]:
    """Give where the time of the searches went, and how good their forecasts were."""
    yield '<h2 id="time">Time</h2>'
    searches = [search for search in subject.timelines if search.spent is not None]
    if not searches:
        yield dim(
            "There is no record of where the time went. The searches on this study ran in another "
            "folder, or ended before they wrote the record."
        )
        return
    totals: Counter[str] = Counter()
    for search in searches:
        if search.spent is not None:
            totals.update({name: max(0.0, s) for name, s in search.spent.seconds.items()})
    total = totals.pop("total", 0.0)
    names = [*(n for n in _ACCOUNTS if n in totals), *(n for n in totals if n not in _ACCOUNTS)]
    times = formats.seconds_column([totals[name] for name in names])
    rows = [
        (_ACCOUNTS.get(name, name), seconds, _share(totals[name], total))
        for name, seconds in zip(names, times, strict=True)
    ]
    yield table(("what", "seconds", "of the whole"), rows, numbers={1, 2})
    said = f"{len(searches):,} search{'' if len(searches) == 1 else 'es'}"
    yield dim(
        f"Of {formats.seconds(total)} in {said}. Building, tracing and compiling run during "
        "training, so the shares do not add up to 100 %."
    )
    yield from _searches(subject)
    yield from _forecasts(subject)


def _share(seconds: float, total: float) -> str:
    return f"{seconds / total:.0%}" if total else "-"


def _searches(subject: ReportSubject) -> Iterator[str]:
    searches = subject.timelines[-_MOST_ROWS:]
    made = [[each for each in search.compiled if not each.from_cache] for search in searches]
    firsts = [min((stay.began for stay in each.stays), default=None) for each in searches]
    steps = [
        f"{len(new)}, {len(search.compiled) - len(new)}"
        for search, new in zip(searches, made, strict=True)
    ]
    compiling = [sum(each.ended - each.began for each in new) for new in made]
    columns = [
        Column("began", [_utc(search.begun.at) for search in searches], number=False),
        Column("took", formats.seconds_column([search.seconds for search in searches])),
        Column("first trial after", formats.seconds_column(firsts)),
        Column("steps compiled, from cache", steps, number=False),
        Column("compiling", formats.seconds_column(compiling)),
        Column("slots held", [_held(search) for search in searches]),
        Column("slots filled", [_filled(search) for search in searches]),
        Column("ended", [_end(search) for search in searches], number=False),
    ]
    yield "<h3>Searches</h3>"
    yield columns_table(columns)
    yield dim(
        "Slots held: share of all slots over the whole time, as in the slot timeline. Slots "
        "filled: share of the slots in trained epochs, as the search reports while it runs."
    )


def _utc(at: float) -> str:
    return f"{datetime.datetime.fromtimestamp(at, tz=datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _held(search: SearchTimeline) -> str:
    shares = slot_shares([search])
    return f"{shares[HELD]:.0%}" if shares else "-"


def _filled(search: SearchTimeline) -> str:
    filled = None if search.spent is None else search.spent.slots_busy
    return "-" if filled is None else f"{filled:.0%}"


def _end(search: SearchTimeline) -> str:
    if search.spent is None:
        return "its end is not recorded"
    finished = "with all its trials" if search.spent.finished else "before its end"
    return search.spent.why or finished


def _forecasts(subject: ReportSubject) -> Iterator[str]:
    rows = []
    for search in subject.timelines:
        if search.spent is None or not search.spent.finished or not search.forecasts:
            continue
        real = search.seconds
        chosen = {}
        for share in (0.1, 0.25, 0.5, 0.75):
            nearest = min(search.forecasts, key=lambda each: abs(each.at - share * real))
            chosen[nearest.at] = nearest
        for each in chosen.values():
            predicted = each.at + each.left
            off = (predicted - real) / real if real else 0.0
            rows.append((each.at, predicted, real, f"{off:+.0%}"))
    if rows:
        *times, shares = zip(*rows, strict=True)
        rows = list(zip(*map(formats.seconds_column, times), shares, strict=True))
        yield "<h3>Predicted and real</h3>"
        yield table(("after", "predicted", "took", "off by"), rows[:_MOST_ROWS], numbers=range(4))


def manifest_part(subject: ReportSubject) -> Iterator[str]:
    """Give what a study remembers of how it was made."""
    yield '<h2 id="manifest">Manifest</h2><div class="two">'
    yield table(("what", "value"), list(manifest_of(subject.meta).items()))
    yield table(
        ("hyperparameter", "range or choices"),
        [(name, shape_of(each)) for name, each in subject.distributions.items()],
    )
    yield "</div>"


def manifest_of(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a study remembers of how it was made: name -> text, what is unknown left out."""
    told = meta.get("run")
    run: dict[str, Any] = told if isinstance(told, dict) else {}
    search = meta.get("search")
    sampler, reason = meta.get("sampler"), meta.get("sampler_reason")
    pruner, chosen = meta.get("pruner"), meta.get("pruner_reason")
    found: dict[str, Any] = {
        "command": run.get("command"),
        "git commit": _commit(run.get("git")),
        "Python": run.get("python"),
        **(meta.get("versions") or {}),
        "sampler": f'{sampler}, chosen by "auto": {reason}' if reason else sampler,
        "pruner": f'{pruner}, chosen by "auto": {chosen}' if chosen else pruner,
        **{name: meta.get(name) for name in ("seed", "precision", "plan")},
        **(search if isinstance(search, dict) else {}),
        "data": meta.get("data"),
    }
    return {name: _brief(value) for name, value in found.items() if value not in (None, [], {})}


def _commit(git: Any) -> str | None:
    if not isinstance(git, dict) or not git.get("commit"):
        return None
    changed = {True: ", with changes", False: "", None: ", changes unknown"}
    return f"{git['commit']}{changed.get(git.get('dirty'), '')}"


def _brief(value: Any) -> str:
    return value if isinstance(value, str) else formats.to_json(value).strip('"')
