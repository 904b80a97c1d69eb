"""The facts that are stored with every figure: machine, versions, commit."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ":(exclude)benchmarks/results"
_XLA_FLAGS = os.environ.get("XLA_FLAGS")
PACKAGES = ("paceline", "keras", "jax", "jaxlib", "optuna", "keras-tuner", "numpy")


def facts() -> dict[str, object]:
    """Return CPU model and cores, operating system, Python, versions of packages, and commit."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "commit": commit(),
    }


def cpu_model() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def fresh_environment() -> dict[str, str]:
    """Return this process's environment for another one, whose programs are its own.

    Without a folder of compiled programs, and with XLA_FLAGS as this process was given them:
    Paceline adds to them when it is imported, and its peers shall not have that.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
    kept.pop("XLA_FLAGS", None)
    return kept if _XLA_FLAGS is None else {**kept, "XLA_FLAGS": _XLA_FLAGS}


def end_children_when_told() -> None:
    """Have SIGTERM end this process as an exception does: ``subprocess.run`` kills its child then.

    A child that goes on holds the device, and the next benchmark measures both.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def commit() -> str:
    """Return the checkout's commit, with ``+`` if files differ from it; "unknown" without git.

    Results do not count: a benchmark that runs before another one writes them.
    """
    head = _git("rev-parse", "--short", "HEAD")
    if not head:
        return "unknown"
    return head + ("+" if _git("status", "--porcelain", "--", ".", RESULTS) else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def version(package: str) -> str:
    """Return the version of an installed package, or "not installed"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def device() -> str:
    """Return the device that JAX runs on; JAX chooses it here if it has not yet."""
    import jax

    devices = jax.devices()
    return f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})"


def keep(name: str, report: dict) -> None:
    """Write a report to ``results/NAME.json``, or where PACELINE_BENCH_RESULTS says."""
    path = results_file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written: {os.path.relpath(path)}")


def gather(name: str, found: dict[str, Any], entries: dict[str, Any]) -> dict[str, Any]:
    """Add entries to those of the same commit and versions, write and return them all."""
    entries = {**gathered(name, found), **entries}
    keep(name, {"machine": found, "entries": entries})
    return entries


def gathered(name: str, found: dict[str, Any], part: str = "entries") -> dict[str, Any]:
    """Return the stored entries of the same commit and versions; ``part`` has them."""
    path = results_file(name)
    if not path.is_file():
        return {}
    old = json.loads(path.read_text(encoding="utf-8"))
    same = all(old["machine"][key] == found[key] for key in ("commit", "versions", "cpu"))
    return old[part] if same else {}


def results_file(name: str) -> Path:
    """Return the path of the report of that name."""
    folder = os.environ.get("PACELINE_BENCH_RESULTS") or ROOT / "benchmarks" / "results"
    return Path(folder) / f"{name}.json"


def describe(found: dict) -> str:
    """Return two lines for the top of a report."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return (
        f"{found['cpu']}, {found['cores']} cores, {found['system']}, Python {found['python']}, "
        f"commit {found['commit']}\n{versions}"
    )
