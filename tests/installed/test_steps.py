"""The small steps of Talos' users, on Talos itself and on ours."""

from __future__ import annotations

import pytest

from compat.talos import steps_scan, steps_tools
from compat.talos.steps import DIFFERS, STEPS, Kit

assert steps_scan
assert steps_tools
# Talos' own: pandas 2 warns of what pandas 3 does, SciPy of its entropy, Keras of what it saves.
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)


@pytest.fixture(scope="module", params=["talos", "paceline.compat.talos"])
def kit(request, tmp_path_factory):
    return Kit(request.param, tmp_path_factory.mktemp("steps"))


@pytest.mark.parametrize("name", STEPS)
def test_step(kit, name, request):
    if name in DIFFERS and kit.package != "talos":
        request.applymarker(pytest.mark.xfail(reason=DIFFERS[name], strict=True))
    STEPS[name](kit)
