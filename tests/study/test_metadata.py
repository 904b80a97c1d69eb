"""What a study says of itself in its storage."""

from __future__ import annotations

import pytest

from paceline.errors import StudyError
from paceline.search_space import HyperParameters
from paceline.study.metadata import StoredStudy, StudyMetadata


def test_it_grows_with_the_space():
    found = StudyMetadata("s", None, "a1")
    found.write({"objective": "val"})
    assert not found.outgrown
    hp = HyperParameters()
    hp.Float("lr", 0.1, 1.0)
    found.space.learn(hp.parameters)
    assert found.outgrown
    found.write(found.meta)
    assert not found.outgrown
    again = StudyMetadata("s", StoredStudy(("minimize",), found.meta), "b2")
    assert list(again.space.parameters) == ["lr"]
    assert not again.outgrown


def test_a_session_that_is_shared_is_told_from_itself_alone():
    found = StudyMetadata("s", None, "a1")
    found.end_session()
    found.end_session()
    found.write({})
    assert found.meta["session"] == "shared-a1"


def test_what_no_reader_would_take_is_not_written():
    found = StudyMetadata("s", None, "a1")
    found.write({"objective": "val"})
    before = found.meta
    with pytest.raises(StudyError, match=r"study 's' cannot be written: .*search\.epochs is 'two'"):
        found.write({"search": {"epochs": "two"}})
    assert found.meta is before
