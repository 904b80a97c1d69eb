"""Weights & Biases: a group for the study, with a run for each trial and one for the whole.

Project, entity and mode are the library's own settings (``WANDB_PROJECT``, ``WANDB_MODE=offline``);
the project is else called paceline. Runs have ids made of the study and the trial, so that a trial
has one run, however often a search continues.
"""

# The library is an extra, and not in every environment:
# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

from paceline.study.trials.trial import Trial
from paceline.tuner.trackers.base import TrackedStudy
from paceline.tuner.trackers.values import epochs_of, facts_of, setting_of

#: The file in the study's folder that lists the trials with runs.
LOGGED = "wandb-trials.txt"


class WandbTracker:
    """Logs a study to Weights & Biases; ``keep_model`` stores the best model as its artifact."""

    def __init__(self, *, keep_model: bool = False) -> None:
        self._keep_model = keep_model
        self._study: TrackedStudy
        self.where: str | None = None  # how to look at the runs

    def begin(self, study: TrackedStudy) -> Collection[int]:
        """Reads which trials have runs: the library cannot say so offline."""
        import wandb  # noqa: F401 - an error of loading it comes now

        self._study = study
        try:
            text = (study.folder / LOGGED).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return set()
        return {int(word) for word in text.split() if word.isdecimal() and len(word) < 17}

    def log_trial(self, trial: Trial) -> None:
        """Makes the run of a trial."""
        run = self._run(f"trial {trial.number}", "trial", {**trial.hparams})
        for epoch, logs in epochs_of(trial):
            run.log({"epoch": epoch, **logs}, step=epoch)  # a metric of that name is the user's
        facts = facts_of(trial)
        if trial.value is not None:
            facts |= {"best_epoch": str(trial.best_epoch)}
            for name, value in self._study.values_of(trial).items():
                run.summary[f"best_{name}"] = value
        run.summary.update(facts)
        run.finish(exit_code=1 if trial.state == "failed" else 0)
        with (self._study.folder / LOGGED).open("a", encoding="ascii") as file:
            file.write(f"{trial.number}\n")

    def end(self, best: Trial | None, model: Path | None) -> None:
        """Makes the run of the study, with the best trial's value, number and hyperparameters."""
        run = self._run("study", "study", setting_of(self._study.meta))
        if best is not None:
            for name, value in self._study.values_of(best).items():
                run.summary[f"best_{name}"] = value
            run.summary["best_trial"] = best.number
            run.summary["best_hparams"] = dict(best.hparams)
        if self._keep_model and model is not None:
            run.log_model(str(model), name=_plain(f"{self._study.name}-best"))
        if run.url:
            self.where = f"the runs of group {self._study.name!r} are at {run.project_url}"
        else:
            offline = shlex.quote(str(Path(run.settings.wandb_dir)))
            self.where = f"`wandb sync {offline}/offline-run-*` uploads the runs"
        run.finish()

    def _run(self, name: str, kind: str, config: dict[str, Any]) -> Any:
        import wandb

        # A digest, for ids have few characters to choose from.
        seed = f"{self._study.identity}\0{name}".encode()
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "paceline",
            group=self._study.name,
            name=name,
            id=hashlib.sha256(seed).hexdigest()[:24],
            job_type=kind,
            config=config,
            dir=os.environ.get("WANDB_DIR") or str(self._study.folder),
            resume="allow",
            reinit="create_new",  # a run that the user has open stays open
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )


def _plain(text: str) -> str:
    return re.sub(r"[^\w.-]", "_", text)[:120]
