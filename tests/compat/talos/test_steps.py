"""The small steps of ``steps.py``, all of which Talos 2.0.10 takes, on ours."""

from __future__ import annotations

import os

import pytest

from compat.talos import steps, steps_scan, steps_tools
from compat.talos.steps import DIFFERS, STEPS, Kit

assert steps_scan
assert steps_tools

# scikit-learn 1.4 passes options to L-BFGS-B that SciPy 1.16 deprecates; later ones do not.
pytestmark = pytest.mark.filterwarnings(
    "ignore:scipy.optimize. The .disp. and .iprint. options:DeprecationWarning"
)


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return Kit("paceline.compat.talos", tmp_path_factory.mktemp("steps"))


@pytest.mark.parametrize("name", STEPS)
def test_step(kit, name, request):
    if name in DIFFERS:
        request.applymarker(pytest.mark.xfail(reason=DIFFERS[name], strict=True))
    STEPS[name](kit)


def test_the_guide_counts_the_steps():
    guide = os.path.join(os.path.dirname(steps.__file__), "../../../docs/reference/talos.md")
    with open(guide, encoding="utf-8") as file:
        text = file.read()
    assert f"We wrote {len(STEPS)} small steps" in text
    assert f"{len(STEPS) - len(DIFFERS)} of them pass here" in text
