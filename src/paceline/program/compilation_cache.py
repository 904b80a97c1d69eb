"""Where compiled programs are kept on disk."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def programs_folder() -> Path:
    r"""The folder of compiled programs; it need not be there yet.

    ``PACELINE_CACHE_DIR`` names its parent. Without it that is where the system keeps caches:
    ``$XDG_CACHE_HOME/paceline`` or ``~/.cache/paceline`` on Linux, ``~/Library/Caches/paceline`` on
    macOS, ``%LOCALAPPDATA%\paceline\Cache`` on Windows.
    """
    named = os.environ.get("PACELINE_CACHE_DIR")
    parent = named or platformdirs.user_cache_dir("paceline", appauthor=False)
    return Path(parent) / "programs"
