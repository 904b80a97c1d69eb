"""Commands and options that README, the guides, `--help` and messages name are there."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from paceline.cli.app import app
from pages import ROOT, Block, blocks, commands, pages, text_of

#: Past releases' changes are no advice, and the notes of decisions say how things were.
PAGES = [page for page in pages() if not page.startswith("docs/decisions/")]
#: Words that stand for something -> something that can be parsed.
EXAMPLES = {
    "N": "1",
    "+N": "+1",
    "TRIAL": "1",
    "K": "2",
    "NAME=VALUE": "lr=0.1",
    "[TRIAL]": "1",
    "[STUDY]": "digits",
}
#: What a command may lack in a sentence, as `paceline trials --csv` lacks its study.
SHORT = {"MissingParameter", "BadOptionUsage"}
#: Options of other tools that pages name.
FOREIGN = {
    "--upgrade",
    "--help",
    "--version",
    "--logdir",
    "--install-completion",
    "--show-completion",
    # Of ray, sbatch, srun and env.
    "--address",
    "--block",
    "--chdir",
    "--cpus-per-task",
    "--exclude",
    "--gpus-per-task",
    "--head",
    "--include-dashboard",
    "--nodes",
    "--ntasks",
    "--ntasks-per-node",
    "--port",
    "--working-dir",
}
#: Files with a command line of their own; their options are found in them.
SCRIPTS = ("benchmarks", "tools", "examples", "tests", "src/paceline/tuner/after/predict_script.py")


@cache
def command_line() -> Any:
    return typer.main.get_command(app)


def options(name: str) -> set[str]:
    """The options of one command."""
    parameters = command_line().commands[name].params
    return {each for p in parameters for each in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}


def parse(words: list[str]) -> None:
    """Have the real command line parse words; nothing runs.

    Raises:
        click.UsageError: Something in them is not as the command takes it.
    """
    name, *rest = [EXAMPLES.get(word, word) for word in words if word != "..."]
    command_line().commands[name].make_context(name, rest, resilient_parsing=False)


@cache
def script_options() -> str:
    """The text of all files with a command line of their own."""
    files = [
        path
        for place in SCRIPTS
        for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
    ]
    return "".join(path.read_text(encoding="utf-8") for path in files)


@cache
def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", text, re.MULTILINE)) | {""}


@cache
def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


def complaints(where: str, words: list[str], *, short: bool = False) -> Iterator[str]:
    """What is wrong with a command of a page.

    Args:
        where: Page and line.
        words: The words of the command.
        short: Whether it stands in a sentence, where an argument may be left out.
    """
    program, rest = Path(words[0]).name, words[1:]
    if program == "paceline" and rest and rest[0] not in ("COMMAND", "--version"):
        if rest[0].startswith("--"):
            if rest[0] not in FOREIGN:
                yield f"{where}: {' '.join(words)}: no such option"
        elif rest[0] not in command_line().commands:
            yield f"{where}: {' '.join(words)}: no such command"
        elif len(rest) > 1:
            try:
                parse(rest)
            except Exception as error:  # click's, which newer releases of Typer bring along
                if not (short and type(error).__name__ in SHORT):
                    yield f"{where}: {' '.join(words)}: {error}"
                else:
                    named = {word for word in rest if word.startswith("--")}
                    yield from (f"{where}: no option {o}" for o in named - options(rest[0]))
    elif program == "make":
        targets = [word for word in rest if "=" not in word and not word.startswith("-")]
        yield from (
            f"{where}: make {t}: no such target" for t in targets if t not in make_targets()
        )
    elif program in ("python", "python3") and rest and rest[0].endswith(".py"):
        if rest[0].startswith(("benchmarks/", "tools/", "examples/", "tests/")):
            if not (ROOT / rest[0]).is_file():
                yield f"{where}: {rest[0]}: no such file"
            else:
                script = (ROOT / rest[0]).read_text(encoding="utf-8")
                for word in rest[1:]:
                    if word.startswith("--") and f'"{word}"' not in script:
                        yield f"{where}: {rest[0]} has no option {word}"
    elif program == "pip":
        for word in rest:
            if match := re.search(r"(?:paceline|^\.)\[([\w,]+)\]", word):
                if not set(match[1].split(",")) <= extras():
                    yield f"{where}: {word}: no such extra"


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_are_as_the_command_line_takes_them(page):
    found = [
        text
        for where, words, in_block in commands(page)
        for text in complaints(where, words, short=not in_block)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("paceline serch model.py", "no such command"),
        ("paceline search model.py --trails 3", "No such option"),
        ("paceline reproduce digits one", "valid int"),
        ("make no-such-target", "no such target"),
        ("python tools/no_such.py", "no such file"),
        ("python tools/picture.py --no-such", "no option --no-such"),
        ('pip install "paceline[no_such]"', "no such extra"),
        ('pip install ".[cmaes,no_such]"', "no such extra"),
    ],
)
def test_what_is_wrong_is_found(line, complaint):
    import shlex

    (found,) = complaints("page:1", shlex.split(line))
    assert complaint in found


def test_commands_are_found():
    """Most pages name some, in blocks and in sentences."""
    found = [words for page in PAGES for _, words, _ in commands(page)]
    ours = [words for words in found if words[0] == "paceline"]
    assert len(ours) > 60
    assert {words[1] for words in ours if len(words) > 1} >= set(command_line().commands)


@pytest.mark.parametrize("page", PAGES)
def test_options_in_a_page_are_there(page):
    """An option in backquotes, as `--trials N`, is of some command, or of a script of the tree."""
    known = set().union(*(options(name) for name in command_line().commands)) | FOREIGN
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    named = {
        option
        for code in re.findall(r"`([^`\n]+)`", prose)
        if not re.match(r"(pip|docker|git|ssh|jupyter)\b", code)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)
    }
    unknown = {o for o in named - known if f'"{o}"' not in script_options()}
    assert unknown == set()


@pytest.mark.parametrize("name", sorted(command_line().commands))
def test_help_names_options_that_exist(name):
    """Options in the help of a command are its own, or of the command that is named before them."""
    command = command_line().commands[name]
    texts = [command.help or "", *(getattr(p, "help", None) or "" for p in command.params)]
    wrong = []
    for text in texts:
        for hint in re.findall(r"`paceline ([^`]+)`", text):
            other = hint.split()[0]
            assert other in command_line().commands, text
            wrong += [o for o in re.findall(r"--[a-z-]+", hint) if o not in options(other)]
        own = re.sub(r"`paceline [^`]+`", "", text)
        wrong += [o for o in re.findall(r"(?<![\w-])--[a-z-]+", own) if o not in options(name)]
    assert wrong == []


def hints() -> Iterator[tuple[str, str]]:
    """Where messages of the package name a command in backquotes, and the command."""
    for path in sorted((ROOT / "src" / "paceline").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "`paceline " not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "1" for p in node.values]
                text = "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            for match in re.finditer(r"`+(paceline [a-z][^`]*)`", text):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", match[1]


def test_messages_name_commands_and_options_that_exist():
    found, wrong = 0, []
    for where, hint in hints():
        words = hint.split()
        if len(words) > 1 and words[1] != "1":  # a command that is put in
            found += 1
            known = options(words[1]) if words[1] in command_line().commands else None
            if known is None:
                wrong.append(f"{where}: {hint}: no such command")
            else:
                named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", hint)
                wrong += [f"{where}: {hint}: no option {o}" for o in named if o not in known]
    assert wrong == []
    assert found > 20


def test_what_is_not_run_says_why():
    """A reason is a sentence's worth, and nothing is left out without one."""
    marked: list[Block] = [b for page in PAGES for b in blocks(page) if b.not_run]
    assert all(len(block.not_run or "") > 10 for block in marked)
