"""Runs every suite there is, one after the other, and sums up at the end.

`make test-all` runs it. A suite that fails does not keep the ones behind it from running. The exit
status is 0 when all of them passed. `ARGS` and the other variables that `make test-all` is given
reach every suite, since make hands them on to the makes it starts.

    python tools/test_all.py             # all suites
    python tools/test_all.py lint test   # these
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Targets of the Makefile, the quick ones first. test-docs is a part of test and test-slow, and
#: test-chaos-ray was never run whole.
SUITES = (
    "lint",
    "test",
    "test-slow",
    "docs",
    "test-numerics",
    "test-compat",
    "test-backends",
    "test-sessions",
    "test-strangers",
    "test-oldest",
    "test-newest",
    "test-ui",
    "test-trackers",
    "test-gallery",
    "test-ray",
    "test-wheel",
    "test-chaos",
)

# The last line of a pytest session, such as "=== 12 passed, 1 skipped in 3.45s ===".
_PYTEST_COUNTS = re.compile(r"^=+ (.*\d+ \w+.*) in [\d.]+s.* =+$")


@dataclass(frozen=True)
class Outcome:
    """What became of one suite.

    Attributes:
        suite: Its target in the Makefile.
        status: Its exit status; None for a suite that was not run, or not to its end.
        seconds: How long it took, the making of its environment included.
        counts: What each pytest session of it counted: "12 passed, 1 skipped".
    """

    suite: str
    status: int | None
    seconds: float = 0.0
    counts: tuple[str, ...] = ()


def run_make(suite: str) -> Outcome:
    """Runs one target of the Makefile, and passes on what it says as it says it."""
    began = time.perf_counter()
    counts = []
    # One stream, so that errors stand where they belong.
    process = subprocess.Popen(
        ["make", suite], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if found := _PYTEST_COUNTS.match(line.strip()):
                counts.append(found[1])
    return Outcome(suite, process.returncode, time.perf_counter() - began, tuple(counts))


def run_all(suites: Sequence[str], run: Callable[[str], Outcome] = run_make) -> list[Outcome]:
    """Runs the suites in turn; after Ctrl-C the rest is not run."""
    outcomes: list[Outcome] = []
    try:
        for suite in suites:
            print(f"\n--- make {suite}", flush=True)
            outcomes.append(run(suite))
    except KeyboardInterrupt:
        pass
    return outcomes + [Outcome(suite, None) for suite in suites[len(outcomes) :]]


def summary(outcomes: Sequence[Outcome]) -> str:
    """A line for each suite: how it ended, its minutes, and what pytest counted."""
    lines = []
    for outcome in outcomes:
        ended = "not run" if outcome.status is None else "FAILED" if outcome.status else "passed"
        line = f"{outcome.suite:<14} {ended:<8} {outcome.seconds / 60:6.1f} min"
        lines.append("   ".join([line, "; ".join(outcome.counts)]).rstrip())
    return "\n".join(lines)


def main(suites: Sequence[str]) -> int:
    """Runs the suites, or all of them; returns the exit status."""
    outcomes = run_all(suites or SUITES)
    print(f"\n--- all suites\n{summary(outcomes)}", flush=True)
    return int(any(outcome.status != 0 for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
