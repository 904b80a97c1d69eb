"""Runs Optuna's own tests of ``Study`` on Optuna itself and on ``paceline.compat.optuna``.

The tests are not ours and not in this repository. The source archive of a release holds them:

    pip download --no-deps --no-binary :all: "optuna==5.0.0" && tar xf optuna-5.0.0.tar.gz
    python tools/optuna_suite.py optuna-5.0.0            # every file of tests/study_tests
    python tools/optuna_suite.py optuna-5.0.0 dataframe  # files with this in their names

The release has to be the installed one, and its tests need pandas and fakeredis. Only tests that
pass on the installed Optuna count. The files are copied to a temporary folder and run twice, each
time in a process of its own: as they are, and with imports of ``optuna`` changed to
``paceline.compat.optuna``, apart from those of the private modules below ``optuna.study``. Printed
is a count per file. docs/reference/optuna.md names the tests that do not pass, and says why.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from keras_tuner_suite import print_table


def main(checkout: str, *wanted: str) -> int:
    """Runs the test files whose names hold one of the wanted words; all if there are none."""
    found = sorted(Path(checkout, "tests", "study_tests").glob("test_*.py"))
    if not found:
        print(f"{checkout} has no tests/study_tests. {__doc__}", file=sys.stderr)
        return 2
    texts = {path.name: path.read_text(encoding="utf-8") for path in found}
    texts = {n: t for n, t in texts.items() if not wanted or any(word in n for word in wanted)}
    theirs = results(texts)
    ours = results({name: changed(text) for name, text in texts.items()})
    print_table("Optuna", list(texts), theirs, ours)
    return 0


def changed(text: str) -> str:
    """Returns a test file whose imports of Optuna lead to Paceline."""
    text = re.sub(r"^( *)import optuna$", r"\1from paceline.compat import optuna", text, flags=re.M)
    theirs = r"^( *)from optuna\b(?!\.study\.)"
    return re.sub(theirs, r"\1from paceline.compat.optuna", text, flags=re.M)


def results(texts: dict[str, str]) -> dict[tuple[str, str], str]:
    """(File, test) -> PASSED, or how else it ended, in a process of its own.

    Args:
        texts: Name of a test file -> its text.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        report = Path(folder, "report.xml")
        options = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder]
        options.append("--continue-on-collection-errors")
        command = [sys.executable, "-m", "pytest", "-q", *options, "--junitxml", str(report)]
        environment = {"KERAS_BACKEND": "jax", **os.environ}
        subprocess.run([*command, *texts], check=False, cwd=folder, env=environment)
        cases = ElementTree.parse(report).iter("testcase")
        return {
            (f"{case.attrib['classname']}.py", case.attrib["name"]): (
                case[0].tag if len(case) else "PASSED"
            )
            for case in cases
        }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ["."]))
