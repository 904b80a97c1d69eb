"""``paceline repair``: what is kept of a damaged journal, and what is said to be lost."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial

from paceline.study.storage.journal import JournalFile
from paceline.study.storage.journal_storage import JournalStorage
from paceline.study.storage.repair import LOST, examine
from paceline.study.study import Study

JOURNAL = Path("runs/s/journal.log")
META = {"objective": "val_loss", "direction": "minimize", "sampler": "random", "seed": 3}


@pytest.fixture
def journal() -> bytes:
    """A study of five trials, two of them at a time; each record has a line of its own."""
    study = Study("s", direction="minimize", seed=3)
    study.persist(META)
    under_way: list[int] = []

    def end(number: int) -> None:
        attrs = {"epochs": 2, "plan": "vectorized"}
        study.updates.finish(number, "complete", value=number + 0.5, attrs=attrs)
        study.writer.flush()

    for _ in range(5):
        proposal = study.asker.propose(lambda hp, proposal: hp.Float("lr", 0.1, 1.0))
        assert proposal is not None
        number = study.accept(proposal[0], proposal[1])
        study.writer.flush()
        study.updates.report(number, 1, {"val_loss": 1.0}, 1.0)
        study.writer.flush()
        under_way.append(number)
        if len(under_way) == 2:
            end(under_way.pop(0))
    end(under_way.pop())
    study.close()
    return JOURNAL.read_bytes()


def trials_of(journal: bytes) -> list[FrozenTrial]:
    path = Path("read.log")
    path.write_bytes(journal)
    return JournalStorage(JournalFile(path)).get_all_trials(0)


def same_or_lost(before: list[FrozenTrial], after: list[FrozenTrial], touched: int | None) -> None:
    """Each trial is where it was: whole, or failed in its place; only one may lack something."""
    for was, trial in zip(before, after, strict=False):
        if trial.user_attrs.get("error") == LOST:
            continue
        assert trial.user_attrs["seed"] == was.user_attrs["seed"]
        if trial.number != touched:
            assert (trial.values, trial.params) == (was.values, was.params)
            assert trial.user_attrs == was.user_attrs
            assert trial.intermediate_values == was.intermediate_values


def trial_of(line: bytes) -> int | None:
    return json.loads(line).get("trial_id")


def damages(line: bytes, draw: random.Random) -> list[tuple[str, bytes]]:
    """A line in several kinds of bad shape, its line break included."""
    middle = draw.randrange(20, len(line) - 2)
    return [
        ("a bad byte", line[:middle] + b"\xff" + line[middle + 1 :]),
        ("a bad first byte", b"\x00" + line[1:]),
        ("another operation", line.replace(b'"op_code":', b'"op_code":9', 1)),
        ("no operation", line.replace(b'"op_code"', b'"op_co\xffe"', 1)),
        ("cut short", line[:middle] + b"\n"),
        ("a line break in it", line[:middle] + b"\n" + line[middle + 1 :]),
        ("zeros", line[:middle] + bytes(len(line) - middle - 1) + b"\n"),
        ("no line break", line[:-1] + b"x"),
    ]


def test_every_line_that_is_gone(journal):
    """A line that is cut out leaves no trace but in what the others say."""
    lines, before = journal.splitlines(keepends=True), trials_of(journal)
    for at, line in enumerate(lines):
        found = examine(b"".join(lines[:at] + lines[at + 1 :]), "s")
        after = trials_of(b"".join(found.lines))
        same_or_lost(before, after, trial_of(line))
        kind = json.loads(line)["op_code"]
        if kind in (0, 4):  # nobody would miss the others
            assert len(found.losses) == 1
            assert len(after) == 5
        assert found.n_kept == len(lines) - 1


def test_every_line_that_is_damaged(journal):
    lines, before = journal.splitlines(keepends=True), trials_of(journal)
    draw = random.Random(0)
    for at, line in enumerate(lines):
        for what, damaged in damages(line, draw):
            found = examine(b"".join([*lines[:at], damaged, *lines[at + 1 :]]), "s")
            after = trials_of(b"".join(found.lines))
            same_or_lost(before, after, trial_of(line))
            assert len(after) == 5, (at, what)
            if what == "no line break":  # the two records that ran together are both whole
                assert not found.losses or at == len(lines) - 1
            else:
                assert found.losses[0].line == at + 1, (at, what)


def test_after_a_line_that_says_nothing_no_record_can_be_numbered(journal):
    lines = journal.splitlines(keepends=True)
    found = examine(b"".join([*lines[:4], b"\x00\x01\x02\n", *lines[4:]]), "s")
    assert found.lines == lines[:4]
    (loss,) = found.losses
    assert loss.line == 5
    assert loss.what == f"this line and the {len(lines) - 4} after it"


def test_a_number_that_is_too_high_is_damaged_itself(journal):
    lines = journal.splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if trial_of(line) == 3 and b'"op_code":7' in line)
    changed = {**json.loads(lines[at]), "trial_id": 2**40}
    lines[at] = json.dumps(changed, separators=(",", ":")).encode() + b"\n"
    found = examine(b"".join(lines), "s")
    (loss,) = found.losses
    assert (loss.line, loss.reason) == (
        at + 1,
        f"it is of trial {2**40}, and the journal has {len(lines)} lines",
    )
    same_or_lost(trials_of(journal), trials_of(b"".join(found.lines)), touched=3)


def test_a_damaged_journal_says_what_to_do_and_the_command_does_it(paceline, journal):
    lines = journal.splitlines(keepends=True)
    (at, *_) = [n for n, line in enumerate(lines) if b'"op_code":4,' in line]
    damaged = b"".join(
        [*lines[:at], lines[at].replace(b'"op_code":4', b'"op_code":\xff'), *lines[at + 1 :]]
    )
    JOURNAL.write_bytes(damaged)
    for words in (["best", "s"], ["trials", "s"], ["resume", "s"]):
        done = paceline(*words)
        assert done.code == 2
        assert f"line {at + 1} is damaged" in done.err
        assert "`paceline repair STUDY --storage journal:runs/s/journal.log`" in done.err
    done = paceline("repair", "s")
    assert done.code == 0
    aside = JOURNAL.with_name("journal.log.damaged-1")
    assert aside.read_bytes() == damaged
    first, second = done.out.splitlines()
    assert first.endswith(f"lines are kept; the damaged file is {aside}. Lost:")
    assert second.startswith(f"  line {at + 1}: trial 0, which now counts as failed (")
    done = paceline("trials", "s", "--json")
    assert [trial["state"] for trial in done.json] == ["failed", *["complete"] * 4]
    assert "all" in paceline("repair", "s").out
    assert paceline("repair", "s", "--json").json["lost"] == []


def test_a_journal_that_has_lost_the_beginning_of_a_trial_is_not_read(paceline, journal):
    lines = journal.splitlines(keepends=True)
    *_, last = [n for n, line in enumerate(lines) if b'"op_code":4,' in line][:-1]
    rest = [line for line in lines[last + 1 :] if trial_of(line) != 3]
    JOURNAL.write_bytes(b"".join([*lines[:last], *rest]).replace(b'"trial_id":4', b'"trial_id":3'))
    done = paceline("trials", "s")
    assert done.code == 2
    assert (
        "the line that began a trial is missing before trial 3, whose seed is that of trial 4"
        in done.err
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["repair", "t"], "there is no journal runs/t/journal.log"),
        (["repair", "s", "--storage", "sqlite:///s.db"], "--storage must be a journal"),
        (["repair", "../s"], "must not be a path"),
    ],
)
def test_what_cannot_be_repaired_is_said(paceline, journal, words, said):
    done = paceline(*words)
    assert done.code == 2
    assert said in done.err


def test_a_study_that_is_searched_is_not_repaired(paceline, journal):
    from paceline.study.storage.folder import study_lock

    with study_lock(Path("runs/s")):
        done = paceline("repair", "s")
    assert done.code == 2
    assert "study 's' is being searched. Stop the search first" in done.err


def test_a_repaired_study_goes_on(journal):
    lines = journal.splitlines(keepends=True)
    found = examine(b"".join([*lines[:2], b"\xff" + lines[2][1:], *lines[3:]]), "s")
    JOURNAL.write_bytes(b"".join(found.lines))
    study = Study("s", seed=3)
    study.persist(META)
    proposal: Any = study.asker.propose(lambda hp, proposal: hp.Float("lr", 0.1, 1.0))
    assert study.accept(proposal[0], proposal[1]) == 5
    study.close()
