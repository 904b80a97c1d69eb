"""What a study says of itself in its storage."""

from __future__ import annotations

from paceline.search_space import HyperParameters
from paceline.study.metadata import StoredStudy, StudyMetadata


def test_it_grows_with_the_space():
    found = StudyMetadata("s", None, "a1")
    found.write({"objective": "val"})
    assert not found.outgrown
    hp = HyperParameters()
    hp.Float("lr", 0.1, 1.0)
    found.space.learn(hp)
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
