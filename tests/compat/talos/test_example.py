"""examples/talos_fashion_mnist.py runs whole, on little data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "talos_fashion_mnist.py"


@pytest.mark.slow
def test_the_scan_of_the_article(child_environment):
    rng = np.random.default_rng(0)
    y = {"x_train": rng.integers(0, 10, 48), "x_test": rng.integers(0, 10, 24)}
    x = {name: rng.integers(0, 255, (len(each), 28, 28)) for name, each in y.items()}
    np.savez(
        "fashion_mnist.npz",
        **{name: each.astype("uint8") for name, each in x.items()},
        y_train=y["x_train"],
        y_test=y["x_test"],
    )
    command = [sys.executable, EXAMPLE, "fashion_mnist.npz", "--epochs", "1", "--rounds", "2"]
    done = subprocess.run(
        [*command, "--batch-size", "24", "--images", "48"],
        env=child_environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == "val_acc val_loss dense1_neuron activation conv_dropout".split()
    assert lines[-2].startswith("best: ")
    assert lines[-1].startswith("accuracy of the reloaded model: ")
    (log,) = Path("fashion_mnist").glob("*.csv")
    assert len(pd.read_csv(log)) == 2
    assert Path("fashion_mnist_best.keras").is_file()
