"""Notes of a scan for its user."""

from __future__ import annotations

import functools

from paceline.compat import progress

#: Prints a note on stderr.
say = functools.partial(progress.say, speaker="talos")
