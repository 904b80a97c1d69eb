"""The dashboard's first page with long numbers and names: nothing is cut off at any width."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from browser import LAPTOP, PHONE, open_page
from paceline.report.dashboard.app import DashboardApp, make_server
from paceline.report.progress import LIVE, LivePack, LiveSlot, LiveState, Progress
from subjects import subject_of

#: The texts of what is wider than the place that it has.
CUT = """[...document.querySelectorAll('body, body *')]
  .filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline')
  .map(e => e.textContent)"""


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    """A dashboard of a search that says the longest things that searches say."""
    folder: Path = tmp_path_factory.mktemp("study")
    values = [0.123456789, -0.5, 1.5e-9, -123456.789]
    slots = [LiveSlot(12345 + i, 5999, 6000, values[i % 4]) for i in range(15)]
    state = LiveState(
        at=time.time() + 3600,
        progress=Progress(
            study="s",
            phase="training",
            n_trials=6000,
            n_complete=5321,
            n_pruned=412,
            n_failed=0,
            n_running=15,
            trial_epochs=0,
            seconds=0.0,
            rate=1234.5,
            seconds_left=4321.0,
            objective="val_sparse_categorical_accuracy",
            best_number=5123,
            best_value=0.98765,
            best_hparams={"learning_rate": 0.0012345678901234, "units": 128},
            busy=1.0,
            devices="2 x NVIDIA H100 80GB HBM3",
            others=("params",),
            n_front=1234,
        ),
        packs=[LivePack("ab12cd", "vectorized", [*slots, None])],
        notes=["a_word_without_a_blank_" * 12],
    )
    (folder / LIVE).write_bytes(msgspec.json.encode(state))
    server = make_server(DashboardApp("s", folder, lambda *_: [], lambda: subject_of(5)), 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join(30)
        server.server_close()


@pytest.mark.parametrize("width", [PHONE, 640, LAPTOP, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off(address, tmp_path, width, scheme) -> None:
    with open_page(address, width, scheme) as page:
        page.wait_for_selector(".slot progress")
        page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
        assert page.locator(".slot").count() == 16
        assert page.evaluate(CUT) == []
        state = page.locator("#state").inner_text()
        assert "5733 of 6000 trials" in state
        assert "1235 trial-epochs/s" in state or "1234 trial-epochs/s" in state
        assert "slots 100 % filled while training" in state
        best = page.locator("#best").inner_text()
        assert "learning_rate 0.00123457, units 128" in best
        assert best.endswith("; 1234 on the Pareto front")
