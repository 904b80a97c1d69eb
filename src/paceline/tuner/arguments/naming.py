"""What a study is called that the user gives no name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from paceline.errors import StudyError
from paceline.study.metadata import check_name
from paceline.tuner.arguments.provenance import in_notebook

#: What a study is called where nothing better is known.
UNNAMED = "study"


def default_study() -> tuple[str, str | None]:
    """The name of a study that the user gives no name, and what to tell the user of it."""
    name = _program_name()
    if name is not None:
        return name, None
    return UNNAMED, (
        f"the study is named {UNNAMED!r}, because the name of this program is unknown. Pass "
        "study='NAME', so that programs do not mix their trials"
    )


def _program_name() -> str | None:
    """The name of the script or notebook that this process runs; None if it has no such name."""
    main = sys.modules.get("__main__")
    if in_notebook():
        # VS Code and Jupyter say what notebook a kernel runs; others do not.
        known = [vars(main).get(name) for name in ("__vsc_ipynb_file__", "__session__")]
        known.append(os.environ.get("JPY_SESSION_NAME"))
        files = [Path(each) for each in known if isinstance(each, str)]
        file = next((each for each in files if each.suffix == ".ipynb"), None)
    else:
        script = getattr(main, "__file__", None)
        file = Path(script) if isinstance(script, str) else None
    if file is None:
        return None
    name = file.parent.name if file.name == "__main__.py" else file.stem
    try:
        check_name(name)
    except StudyError:
        return None
    return name
