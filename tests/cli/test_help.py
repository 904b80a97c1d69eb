"""Options and help texts of all commands: who changes one, changes the table as well."""

from __future__ import annotations

import hashlib

import typer.main
from typer.core import TyperGroup

from paceline.cli.app import app

#: Command -> a digest of its help texts, and the names of its arguments and options.
COMMANDS = {
    "search": (
        "95c2d1a9",
        "model --data --target --validation-split --trials --epochs --batch-size --objective "
        "--sampler --pruner --repeats --folds --seed --timeout --deadline --budget "
        "--trial-timeout --target-value --patience-trials --max-total-epochs --enqueue "
        "--enqueue-defaults --warm-start-from --study --overwrite --storage --parallel-trials "
        "--plan --share-widths --executor "
        "--mesh --precision --tracker --keep-best --constraint --json --quiet",
    ),
    "resume": (
        "7bb7a37e",
        "study --trials --epochs --continue-best --timeout --deadline --trial-timeout "
        "--target-value --patience-trials --max-total-epochs --storage --executor --tracker --json "
        "--quiet",
    ),
    "reproduce": ("6c72aa51", "study trial --storage --json --quiet"),
    "best": ("49dada43", "study --storage --json"),
    "trials": (
        "309a780a",
        "study --storage --csv --json --where --sort --reverse --top --limit --all",
    ),
    "report": ("1db894f9", "study --output --compare --storage"),
    "dashboard": ("7e72fc89", "study --storage --port --browser"),
    "export": ("8fbf748a", "study --output --bundle --trial --storage"),
    "ensemble": ("b03083b0", "study --models --output --storage --quiet"),
    "list": ("d781c5b8", "--directory --storage --json"),
    "delete": ("b41218cc", "study --yes --directory --storage"),
    "enqueue": ("13871710", "study values --storage"),
    "stop": ("6a8058da", "study trial --storage"),
    "pause": ("9377e64c", "study --storage"),
    "unpause": ("e0529949", "study --storage"),
    "repair": ("3b3b5e25", "study --storage --json"),
    "bench": (
        "d6c85bb4",
        "files --data --target --validation-split --batch-sizes --devices --keras-backends "
        "--mesh --parallel-trials --measure-for --hparams --precision --epochs --objective "
        "--scale-lr --target-value --predict-trials --predict-epochs --predict-batch-size "
        "--predict-pruner --workers "
        "--quota --merge --executor --fit --seed --output --json --quiet",
    ),
    "devices": ("e7d189c3", "--json"),
}


def test_options_and_help_texts_are_those_that_users_know():
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    found = {}
    for name, command in group.commands.items():
        said = [command.help, *((*p.opts, *p.secondary_opts, p.help) for p in command.params)]
        digest = hashlib.sha256(repr(said).encode()).hexdigest()[:8]
        found[name] = (digest, " ".join(max(p.opts, key=len) for p in command.params))
    assert found == COMMANDS
