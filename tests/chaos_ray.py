"""Kill workers and nodes of a Ray cluster at random moments of searches, and compare.

Each search runs on two nodes of this machine. Once it has sent so many orders, a worker of it is
killed as by ``kill -9``, or a node as a machine whose power fails; what comes in its place is up to
the search and, for a node, to this program, which adds one. Every trial must have the history that
it has on one machine, to the bit; of a trial that a pruner stopped, up to where it was stopped.

    python tests/chaos_ray.py [--kills 60] [--seed 0]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter

import pytest

import paceline
from clusters import CASES, differences, searched
from on_ray.conftest import Nodes  # sets what Ray reads when it is imported
from on_ray.hook import Hook

#: A search sends more orders than this.
ORDERS = 12


def killed(nodes: Nodes, case: str, order: int, what: str, name: str) -> paceline.Tuner | None:
    """Search, and kill at an order; None where the search had ended before."""
    make, tuner, search = CASES[case]
    with pytest.MonkeyPatch.context() as patch:
        hook = Hook(patch)

        hook.at_order(order, hook.kill if what == "worker" else lambda host: nodes.replace())
        cluster = paceline.Ray(address=nodes.address)
        found = searched(cluster, name, make, search=search, **tuner)
    return found if hook.done else None


def main() -> int:
    """Kill as often as asked; 1 where a trial came out otherwise."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, kills, wrong = random.Random(options.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        # Without a pruner: of a trial that one stopped, the epochs before are compared.
        alone = {
            case: searched("packed", f"{case}-local", make, search=search)
            for case, (make, _, search) in CASES.items()
        }
        nodes, began = Nodes(2), time.monotonic()
        try:
            while kills.total() < options.kills:
                case = list(CASES)[kills.total() % len(CASES)]
                what, order = rng.choice(["worker", "node"]), rng.randint(1, ORDERS)
                found = killed(nodes, case, order, what, f"{case}-{time.monotonic_ns()}")
                if found is None:
                    continue
                kills[f"{case}, a {what}"] += 1
                bad = differences(found, alone[case])
                wrong += bool(bad)
                sys.stdout.write(
                    f"{kills.total():3} {case}: a {what} killed at order {order}, "
                    f"{f'trials {bad} differ' if bad else 'no difference'}\n"
                )
                sys.stdout.flush()
        finally:
            with contextlib.suppress(Exception):
                import ray

                ray.shutdown()
            nodes.cluster.shutdown()
            os.chdir("/")
    for name, count in sorted(kills.items()):
        sys.stdout.write(f"{name}: {count}\n")
    seconds = time.monotonic() - began
    sys.stdout.write(f"{kills.total()} kills in {seconds:.0f} s, {wrong} searches differ\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
