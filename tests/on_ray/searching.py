"""A search in a process of its own, which a test kills or whose cluster it kills.

    python searching.py ADDRESS STUDY [--dies-in-checkpoint N]

Says "training" when it has sent a few orders.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import paceline
from clusters import searched
from on_ray.loopback import stay_on_loopback
from paceline.executor.ray import pool as pool_module
from paceline.executor.ray.pool import RayPool
from paceline.executor.remote import driver
from paceline.program import files

#: Here it takes long, since each epoch is an order that waits; whoever goes on with it is fast.
LONG = {"n_trials": 12, "epochs": 100}


def dying_in_checkpoint(n: int) -> None:
    """Has this process die while it writes its n-th checkpoint: half of it is there."""
    replace, left = files.os.replace, [n]

    def deadly(temporary: Any, path: Any) -> None:
        if "checkpoint" in Path(path).name:
            left[0] -= 1
            if not left[0]:
                os.truncate(temporary, Path(temporary).stat().st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
        replace(temporary, path)

    files.os.replace = deadly


def main() -> None:
    """Search."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("study")
    parser.add_argument("--dies-in-checkpoint", type=int)
    options = parser.parse_args()
    stay_on_loopback()
    if options.dies_in_checkpoint:
        dying_in_checkpoint(options.dies_in_checkpoint)
    pool_module.WITHOUT_HEAD, pool_module._LOOKS, driver._ROUND = 2.0, 0.5, 0.0
    send, left = RayPool.send, [6]

    def sent(pool: RayPool, host: str, order: Any) -> None:
        time.sleep(0.02)
        send(pool, host, order)
        left[0] -= 1
        if not left[0]:
            sys.stdout.write("training\n")
            sys.stdout.flush()

    RayPool.send = sent
    searched(paceline.Ray(address=options.address), options.study, search=LONG)


if __name__ == "__main__":
    main()
