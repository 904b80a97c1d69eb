"""A search in a real kernel: its table, what comes next, and Ctrl-C."""

from __future__ import annotations

import pytest

import notebooks

SEARCH = "tuner = tuner_of('<b>book')\ntuner.search(x, y, n_trials=4, **toys.CALL)"
STOP = """
tuner = tuner_of('stopped')
def interrupt():
    while not (tuner._study is not None and len(tuner._study.trials)):
        threading.Event().wait(0.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
tuner.search(x, y, n_trials=5000, **toys.CALL)
"""
LATER = (
    "print(len(tuner.results()) > 0, [t.name for t in threading.enumerate() if 'live' in t.name])"
)


@pytest.mark.slow
def test_a_search_leaves_a_table_and_ends_in_two_lines_when_interrupted(tmp_path) -> None:
    book = notebooks.execute(tmp_path, SEARCH, "tuner", "tuner.history(2)", STOP, LATER)
    _, search, shown, history, stopped, later = book.cells
    (view,) = notebooks.outputs(search, "display_data")
    assert "<b>book" not in view.data["text/html"]
    assert "&lt;b&gt;book: done" in view.data["text/html"]
    assert view.data["text/html"].count("<img") == 4
    assert "4 of 4 trials" in view.data["text/plain"]
    text = "".join(o.text for o in notebooks.outputs(search, "stream") if o.name == "stdout")
    assert "Best: val_accuracy" in text
    assert "tuner.best_model()" in text
    for cell in (shown, history):
        (result,) = notebooks.outputs(cell, "execute_result")
        assert "<table" in result.data["text/html"]
    (error,) = notebooks.outputs(stopped, "error")
    assert len(error.traceback) == 2
    assert error.traceback[0].startswith("Interrupted: ")
    assert "<b>" not in error.traceback[0]
    (view,) = notebooks.outputs(stopped, "display_data")
    assert "stopped: stopped" in view.data["text/html"]
    # What one print writes may come in several pieces.
    assert "".join(o.text for o in notebooks.outputs(later, "stream")) == "True []\n"
    said = [o.text for cell in book.cells for o in notebooks.outputs(cell, "stream")]
    assert "IProgress" not in "".join(said)  # a warning of Optuna's, on import


@pytest.mark.slow
def test_a_benchmark_shows_its_result_and_no_empty_box(tmp_path) -> None:
    sizes = "batch_sizes=[16], parallel_trials=[2]"
    call = f"paceline.bench(toys.dense, x, y, {sizes}, on_note=lambda text: None)"
    book = notebooks.execute(tmp_path, call)
    (result,) = book.cells[-1].outputs
    assert result.output_type == "execute_result"
    assert "batch" in result.data["text/html"]
