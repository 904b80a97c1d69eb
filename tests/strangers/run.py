"""Runs scripts of strangers with the library that they were written for, and with Paceline.

`make test-strangers` runs it. The scripts below this folder are written in our own words, after
what public users of KerasTuner, Talos and Optuna do. Each is run as it is, on TensorFlow, and with
nothing but its import changed, in five kinds of session. `results.json` keeps what came of it, and
pages of the documentation show it: `table` writes what stands there.

    python tests/strangers/run.py                        # all scripts; exit status 1 if one differs
    python tests/strangers/run.py data/tabular scans     # these
    python tests/strangers/run.py --stale                # what was not run with this text
    python tests/strangers/run.py --table                # write the tables of the pages anew

The interpreter needs KerasTuner, Talos, TensorFlow and Optuna: requirements/compat.lock.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
DOCS = HERE.parents[1] / "docs"
#: Folder of scripts -> what the table calls it.
KINDS = {
    "data": "KerasTuner: kinds of data",
    "models": "KerasTuner: models and their parts",
    "own_tuners": "KerasTuner: own tuners, hooks and loops",
    "tuners": "KerasTuner: searches, spaces and results",
    "scans": "Talos: scans",
    "scan_results": "Talos: results, helpers and templates",
    "objectives": "Optuna",
}
#: Where a page of the documentation holds the table.
BEGIN, END = "<!-- strangers -->\n", "<!-- end of strangers -->"
#: Seconds that a script may take.
_LIMIT = 400
# As Keras writes it by itself: another one counts as the choice of a user.
_KERAS_JSON = {
    "floatx": "float32",
    "epsilon": 1e-07,
    "backend": "tensorflow",
    "image_data_format": "channels_last",
}
#: Import of a script -> the same of Paceline, as the guides write it.
IMPORTS = (
    (
        r"^import (?:keras_tuner|kerastuner) as (\w+)$",
        r"from paceline.compat import keras_tuner as \1",
    ),
    (r"^import (?:keras_tuner)$", "from paceline.compat import keras_tuner"),
    (r"^import kerastuner$", "from paceline.compat import keras_tuner as kerastuner"),
    (r"^from (?:keras_tuner|kerastuner)\b", "from paceline.compat.keras_tuner"),
    (r"^import talos as (\w+)$", r"import paceline.compat.talos as \1"),
    (r"^import talos$", "from paceline.compat import talos"),
    (r"^from talos\b", "from paceline.compat.talos"),
    (r"^import optuna$", "from paceline.compat import optuna"),
)
# What Paceline says where trials do not train together.
_NOTES = re.compile(r"one at a time|one after another|Keras' own fit|in this session", re.I)


@dataclass(frozen=True)
class Session:
    """One way to run scripts.

    Attributes:
        says: What the table calls it.
        ours: Whether the import of a script is changed.
        first: What is imported before the script.
        backend: KERAS_BACKEND; None: not set.
        trains: Whether a model has been trained on that backend before the script begins.
    """

    says: str
    ours: bool
    first: tuple[str, ...]
    backend: str | None = None
    trains: bool = False


_TENSORFLOW = ("tensorflow", "keras")
SESSIONS = {
    "original": Session("the original, on TensorFlow", False, _TENSORFLOW),
    "jax": Session("KERAS_BACKEND=jax", True, ("keras",), "jax"),
    "paceline first": Session("Paceline is imported first", True, ("paceline", "keras")),
    "keras first": Session("Keras is imported first", True, ("keras",)),
    "tensorflow first": Session("TensorFlow is imported first", True, _TENSORFLOW),
    "trained": Session("a model was trained on TensorFlow", True, _TENSORFLOW, trains=True),
}
# Imported after these, as they start no thread and take long.
_MORE = (
    "numpy",
    "pandas",
    "sklearn.ensemble",
    "sklearn.model_selection",
    "optuna",
    "jax",
    "tensorflow",
)
#: The original's run on JAX: only where a script in the session "jax", of which the user has chosen
#: JAX, differs from the original on TensorFlow.
_ON_JAX = "original on jax"
_ORIGINAL_ON_JAX = Session("the original, on JAX", False, _TENSORFLOW, "jax")


def scripts(wanted: Iterable[str] = ()) -> list[str]:
    """Names of scripts, "folder/name"; of those that begin with one of ``wanted``."""
    names = [
        path.relative_to(HERE).with_suffix("").as_posix()
        for kind in KINDS
        for path in sorted((HERE / kind).glob("*.py"))
    ]
    starts = tuple(wanted)
    return [name for name in names if not starts or name.startswith(starts)]


def digest(name: str) -> str:
    """Of a script's text, so that a result can be told from that of another text."""
    return hashlib.sha256((HERE / f"{name}.py").read_bytes()).hexdigest()[:16]


@functools.cache
def code() -> str | None:
    """Day and commit of the code that runs, "2030-01-31 0a1b2c3d"; None outside of a repository."""
    git = ["git", "-C", str(HERE)]
    show = [*git, "show", "--no-patch", "--format=%cs %h", "--abbrev=8"]
    found = subprocess.run(show, capture_output=True, text=True, check=False).stdout.strip()
    if not found:
        return None
    differs = [*git, "diff", "--quiet", "HEAD", "--", str(DOCS.parent / "src")]
    changes = subprocess.run(differs, check=False).returncode != 0
    return found + " with changed files" * changes


def changed(text: str) -> str:
    """A script with its import changed, and nothing else."""
    for pattern, replacement in IMPORTS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


class Starter:
    """A process of a session, which runs one script after another in copies of itself."""

    def __init__(self, session: Session, home: Path) -> None:
        self._session = session
        self._home = Path(tempfile.mkdtemp(dir=home))
        (self._home / "keras.json").write_text(json.dumps(_KERAS_JSON), encoding="utf-8")
        kept = {k: v for k, v in os.environ.items() if k not in ("KERAS_BACKEND", "PYTHONPATH")}
        paths = [str(HERE / "watch"), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            **({} if session.backend is None else {"KERAS_BACKEND": session.backend}),
            "KERAS_HOME": str(self._home),
            "MPLBACKEND": "Agg",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",  # a process with threads cannot be copied
            "PACELINE_CACHE_DIR": str(home / "cache"),
            "PACELINE_STRANGERS_LOG": os.devnull,
            "PYTHONPATH": os.pathsep.join(paths),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "started.py"), str(_LIMIT), *session.first, *_MORE],
            env=kept | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def run(self, name: str) -> dict[str, Any]:
        """Runs a script in a folder of its own; returns what came of it."""
        text = (HERE / f"{name}.py").read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory(dir=self._home) as made:
            folder, log = Path(made, "here"), Path(made, "log")
            folder.mkdir()
            log.touch()
            script = changed(text) if self._session.ours else text
            (folder / "script.py").write_text(script, encoding="utf-8")
            assert self._process.stdin is not None and self._process.stdout is not None
            asked = {"folder": str(folder), "log": str(log), "trains": self._session.trains}
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            status = int(self._process.stdout.readline())
            lines = log.read_text(encoding="utf-8").split("\n")
            output, errors = (
                _without_paths((folder / each).read_text("utf-8", "replace"), str(folder))
                for each in ("out", "err")
            )
        return self._found(status, output, errors, lines)

    def _found(self, status: int, output: str, errors: str, lines: list[str]) -> dict[str, Any]:
        last = errors.rpartition("Traceback (most recent call last)")[2]
        at = re.findall(r'script\.py", line (\d+)', last) if status else []
        error = errors.strip().split("\n")[-1][:300] if status else None
        if status == -1:
            error = f"the script took more than {_LIMIT} seconds"
        found: dict[str, Any] = {
            "ended": "finished" if status == 0 else "stopped",
            "line": int(at[0]) if at else None,
            "error": error,
            "result": [line for line in output.splitlines() if line.startswith("RESULT ")],
        }
        if self._session.ours:
            sizes = [int(line.removeprefix("pack ")) for line in lines if line.startswith("pack ")]
            notes = [line[:300] for line in errors.splitlines() if _NOTES.search(line)]
            counts = {"together": max(sizes, default=0), "fits": lines.count("fit")}
            found |= {**counts, "alone": "alone" in lines, "notes": notes[:4], "code": code()}
        return found


def _without_paths(text: str, folder: str) -> str:
    """A text without the places of this machine."""
    for place in (folder, sys.prefix, sys.base_prefix, str(HERE.parents[1])):
        text = text.replace(place, "")
    return text


def verdict(original: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Says "same", "further" where only the original stops, or "differs"."""
    if original["ended"] == "stopped":
        if found["ended"] == "finished":
            return "further"
        return "same" if found["line"] == original["line"] else "differs"
    same = found["ended"] == "finished" and found["result"] == original["result"]
    return "same" if same else "differs"


def training(found: Mapping[str, Any]) -> str:
    """How the trials of a run trained: "packs", "in part", "one at a time", "fit" or "none".

    A pack may have held one trial alone: ``found["together"]`` is the most that one has held.
    """
    if found["fits"]:
        return "in part" if found["together"] > 1 else "fit"
    own_fit = any(re.search(r"Keras' (own )?fit", note) for note in found["notes"])
    if not found["together"]:
        return "fit" if own_fit else "none"
    alone = found["alone"] or any("s run one at a time" in note for note in found["notes"])
    return "one at a time" if alone else "packs"


def judged(runs: Mapping[str, Any]) -> dict[str, str]:
    """Session -> verdict, of all runs of a script; in "jax" the original on JAX counts, too."""
    found: dict[str, str] = {}
    if "original" not in runs:
        return found
    for session in runs.keys() & {name for name, each in SESSIONS.items() if each.ours}:
        found[session] = verdict(runs["original"], runs[session])
        if found[session] == "differs" and session == "jax" and _ON_JAX in runs:
            found[session] = verdict(runs[_ON_JAX], runs[session])
    return found


def run_all(names: Sequence[str], given: argparse.Namespace) -> dict[str, Any]:
    """Runs scripts in sessions, and keeps what came of each as soon as it is known."""
    kept, lock = read(), Lock()

    def keep(name: str, session: str, script: str, found: dict[str, Any]) -> None:
        with lock:
            one = kept.setdefault(name, {})
            if one.get("script") != script:
                one |= {"script": script, "runs": {}}
            one["runs"][session] = found
            ordered = {each: kept[each] for each in scripts() if each in kept}
            RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
            says = judged(one["runs"]).get(session, "")
            how = training(found) if "together" in found else ""
            print(f"{session}: {name}: {found['ended']} {says} {how}", flush=True)

    def is_known(name: str, session: str) -> bool:
        one = kept.get(name, {})
        return one.get("script") == digest(name) and session in one["runs"]

    def all_of(session: str, names: list[str], home: Path) -> None:
        """Runs scripts that several threads share, until none is left."""
        kind = SESSIONS.get(session, _ORIGINAL_ON_JAX)
        starter = Starter(kind, home)
        try:
            while names:
                name = names.pop()
                script = digest(name)  # someone may write to it while it runs
                keep(name, session, script, starter.run(name))
        finally:
            starter.close()

    def run_session(session: str, names: list[str], home: Path) -> None:
        if not names:
            return
        names = names[::-1]
        with ThreadPoolExecutor(given.jobs) as pool:
            jobs = [pool.submit(all_of, session, names, home) for _ in range(given.jobs)]
        for job in jobs:
            job.result()

    with tempfile.TemporaryDirectory() as home:
        for session in given.sessions:
            asked = [n for n in names if not (given.stale and is_known(n, session))]
            run_session(session, asked, Path(home))
        differ = [
            name
            for name in names
            if judged(kept[name]["runs"]).get("jax") == "differs"
            and _ON_JAX not in kept[name]["runs"]
        ]
        run_session(_ON_JAX, differ, Path(home))
    return kept


def read() -> dict[str, Any]:
    """The kept results: name of a script -> digest of its text, and its runs."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def table(results: Mapping[str, Any]) -> str:
    """The table of the documentation, from the results."""
    ran = {session for one in results.values() for session in judged(one["runs"])}
    ours = [name for name in SESSIONS if name in ran]
    heads = [SESSIONS["original"].says, *(_head(results, session) for session in ours)]
    rows = ["| kind of script | scripts | " + " | ".join(heads) + " |"]
    rows.append("|---" * (2 + len(heads)) + "|")
    for kind, says in [*((f"{kind}/", says) for kind, says in KINDS.items()), ("", "all")]:
        names = [name for name in results if name.startswith(kind)]
        cells = [_original(results, names), *(_cell(results, names, each) for each in ours)]
        rows.append(f"| {says} | {len(names)} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + f"\n\n{_codes(results)}\n"


def _codes(results: Mapping[str, Any]) -> str:
    """Of which code the runs are that the table counts, the oldest first."""
    runs = [one["runs"][session] for one in results.values() for session in judged(one["runs"])]
    counts = Counter(run.get("code") or "" for run in runs)
    each = [
        f"{n_runs} at {code.partition(' ')[2]}" if code else f"{n_runs} at earlier commits"
        for code, n_runs in sorted(counts.items())
    ]
    return f"Runs with Paceline: {', '.join(each)}."


def _head(results: Mapping[str, Any], session: str) -> str:
    """What a session is called, and whether only a sample of the scripts ran in it."""
    n_ran = sum(session in judged(one["runs"]) for one in results.values())
    return SESSIONS[session].says + (f" (a sample of {n_ran})" if n_ran < len(results) else "")


def _original(results: Mapping[str, Any], names: Iterable[str]) -> str:
    ends = Counter(results[name]["runs"]["original"]["ended"] for name in names)
    return f"{ends['finished']} finished" + f"; {ends['stopped']} stopped" * bool(ends["stopped"])


def _cell(results: Mapping[str, Any], names: Iterable[str], session: str) -> str:
    runs = [results[name]["runs"] for name in names]
    ran = [one for one in runs if session in judged(one)]
    if not ran:
        return "not run"
    equal = sum(judged(one)[session] != "differs" for one in ran)
    modes = [training(one[session]) for one in ran]
    trained = len(ran) - modes.count("none")
    packed = [one[session] for one, mode in zip(ran, modes, strict=True) if mode == "packs"]
    several = sum(found["together"] > 1 for found in packed)
    counts = f"{len(packed)} of {trained} by packs' programs, {several} with trials together"
    return f"{equal} of {len(ran)} as the original; {counts}"


def write_tables() -> None:
    """Writes the table into all pages that have a place for it."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if BEGIN in text:
            before, _, rest = text.partition(BEGIN)
            after = rest.partition(END)[2]
            page.write_text(before + BEGIN + table(read()) + END + after, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Runs what is asked for; 1 if a script does not do what it does with the original."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="scripts, or folders of scripts; none: all")
    parser.add_argument("--stale", action="store_true", help="only what was not run with this text")
    parser.add_argument("--table", action="store_true", help="only write the tables of the pages")
    parser.add_argument("--sessions", nargs="+", choices=SESSIONS, default=list(SESSIONS))
    parser.add_argument("-j", "--jobs", type=int, default=2, help="scripts at once")
    given = parser.parse_args(arguments)
    if given.table:
        write_tables()
        return 0
    names = scripts(given.names)
    results = run_all(names, given)
    write_tables()
    differ = [name for name in names if "differs" in judged(results[name]["runs"]).values()]
    print(table(results) + "".join(f"differs: {name}\n" for name in differ))
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
