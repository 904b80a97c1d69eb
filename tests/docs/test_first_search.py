"""The commands of the first search, run one after another, as a reader would."""

from __future__ import annotations

from pathlib import Path

import keras
import pytest

from commands import command
from pages import blocks, commands

PAGE = "docs/tutorials/first_search.md"


def words_of(page: str) -> list[list[str]]:
    """The commands in the blocks of a page, but for the server that ends with Ctrl-C."""
    found = [words[1:] for _, words, in_block in commands(page) if in_block]
    return [words for words in found if words[0] != "dashboard"]


@pytest.mark.slow
def test_the_commands_of_the_first_search_run(capsys):
    (model, *_) = blocks(PAGE, "python")
    Path("model.py").write_text(model.text)
    names = []
    for words in words_of(PAGE):
        more = ["--epochs", "2"] if words[0] == "search" else []
        assert command(*words, *more) == 0, (words, capsys.readouterr().err)
        names.append(words[0])
    assert names == ["search", "best", "trials", "export", "report"]
    assert Path("report.html").is_file()
    assert keras.saving.load_model("best.keras").predict is not None
    selections = [w for w in words_of("docs/guides/results.md") if w[0] == "trials" and w[2:]]
    assert len(selections) == 4
    for words in selections:  # of a study called digits there, with a width
        told = [
            word.replace("optimizer=adam", "dropout>0").replace("units", "lr") for word in words
        ]
        assert command("trials", "model", *told[2:]) == 0, (words, capsys.readouterr().err)
