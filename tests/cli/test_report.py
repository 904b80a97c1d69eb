"""``paceline report`` and ``paceline dashboard``: their files, and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import paceline
import toys
from commands import command
from copied_study import tuner
from paceline.cli import report


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of two trials."""
    folder = tmp_path_factory.mktemp("reported") / "runs"
    call = {**toys.CALL, "epochs": 1}
    tuner(directory=folder).search(*toys.data(), n_trials=2, **call, verbose=0)
    return folder


def test_a_report_is_written_and_said_to_be_there(searched, capsys) -> None:
    assert command("report", "s") == 0
    assert re.match(r"report\.html: \d\.\d\d MB, needs no network", capsys.readouterr().out)
    assert "<h1>s</h1>" in Path("report.html").read_text(encoding="utf-8")
    assert command("report", "s", "-o", "two.html", "--compare", "s") == 0
    assert "Side by side" in Path("two.html").read_text(encoding="utf-8")


def test_a_page_of_somebody_else_stays(searched, capsys) -> None:
    page = Path("report.html")
    page.write_text("<!doctype html><title>mine</title>", encoding="utf-8")
    assert command("report", "s") == 2
    assert "report.html exists and is not a report" in capsys.readouterr().err.replace("\n", " ")
    with pytest.raises(paceline.UsageError, match="it was not replaced. Use another file"):
        searched.report()
    assert page.read_text(encoding="utf-8") == "<!doctype html><title>mine</title>"
    page.unlink()
    assert command("report", "s") == command("report", "s") == 0  # a report replaces a report


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["report", "s", "-o", "report.pdf"], "-o must end in .html or .htm"),
        (["report", "s", "-o", "nowhere/report.html"], "Create the folder nowhere"),
        (["report", "t"], "there is no study 't'"),
        (["report", "s", "--compare", "t"], "there is no study 't'"),
        (["dashboard", "t"], "there is no study 't'"),
    ],
)
def test_what_cannot_be_done_says_why(searched, capsys, monkeypatch, words, why) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: object())
    assert command(*words) == 2
    assert why in capsys.readouterr().err.replace("\n", " ")
    assert not Path("report.html").exists()


def test_a_dashboard_without_its_package_names_it(searched, capsys, monkeypatch) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    assert command("dashboard", "s") == 2
    assert 'pip install "paceline[dashboard]"' in capsys.readouterr().err.replace("\n", " ")


def test_a_dashboard_of_nothing_says_how_to_begin(capsys, monkeypatch) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: object())
    assert command("dashboard") == 2
    assert "there is no study in runs" in capsys.readouterr().err.replace("\n", " ")
