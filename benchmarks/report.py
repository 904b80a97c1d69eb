"""How long a report takes to write, and how large it is: 60, 500 and 5,000 trials.

    python benchmarks/report.py

Studies are made by hand (``tests/subjects.py``), three hyperparameters and 30 epochs a trial. The
first report of a process also loads Optuna, scikit-learn and Plotly; each is measured in a process
of its own, three times. Exits with 1 where a median is above its limit.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent
#: Trials -> seconds and megabytes at most; None: only measured.
LIMITS = {60: (None, 7.0), 500: (None, 7.0), 5000: (10.0, 12.0)}
RUNS = 3

_WRITE = """
import json, sys, tempfile, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from subjects import subject_of
subject = subject_of(int(sys.argv[1]), epochs=30)
began = time.perf_counter()
from paceline.report.html.page import write_report
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "report.html"
    write_report(path, subject)
    print(json.dumps([time.perf_counter() - began, path.stat().st_size]))
"""


def main() -> int:
    """Measures; returns the exit code."""
    found = machine.facts()
    print(machine.describe(found), flush=True)
    rows, missed = {}, False
    for n_trials, (most_seconds, most_megabytes) in LIMITS.items():
        runs = [_write(n_trials) for _ in range(RUNS)]
        seconds = statistics.median(each for each, _ in runs)
        megabytes = runs[0][1] / 1e6
        over = (most_seconds is not None and seconds > most_seconds) or megabytes > most_megabytes
        missed |= over
        rows[str(n_trials)] = {"seconds": [each for each, _ in runs], "bytes": runs[0][1]}
        print(
            f"{n_trials:6,} trials {seconds:6.2f} s {megabytes:6.2f} MB"
            f"{'   ABOVE THE LIMIT' if over else ''}",
            flush=True,
        )
    machine.keep("report", {"machine": found, "rows": rows})
    return 1 if missed else 0


def _write(n_trials: int) -> tuple[float, int]:
    done = subprocess.run(
        [sys.executable, "-c", _WRITE, str(n_trials), str(HERE.parent / "tests")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds, size = json.loads(done.stdout.splitlines()[-1])
    return seconds, size


if __name__ == "__main__":
    sys.exit(main())
