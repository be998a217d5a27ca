"""Two runs of the tests on one machine: what one of them waits for in the other.

``python -m tests`` starts both and names them by ``GB10_TEST_RUN``. A turn is a lock on a file, which ends
with its process at the latest. Without a second run nobody waits.
"""

from __future__ import annotations

import fcntl
import os
from typing import TextIO

from tests.lab import paths
from tests.lab.progress import say

FIRST, SECOND = "first", "second"
# The first run makes what is made once on a machine: roots, models, the image.
MAKING = "making"
# The second run works: figures that are measured now would be wrong.
WORKING = "working"

_held: dict[str, TextIO] = {}


def run() -> str:
    """Which run this is: ``first``, ``second``, or nothing where there is only one."""
    return os.environ.get("GB10_TEST_RUN", "")


def take(turn: str) -> None:
    """Hold ``turn`` until ``give`` or the end of the process, after whoever holds it now."""
    paths.cache().mkdir(parents=True, exist_ok=True)
    # "a": the file is nobody's to empty.
    handle = (paths.cache() / f"turn-{turn}").open("a", encoding="utf-8")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"waiting for the other run of the tests ({turn})")
        fcntl.flock(handle, fcntl.LOCK_EX)
    _held[turn] = handle


def give(turn: str) -> None:
    """Give ``turn`` back, if it is held here."""
    if handle := _held.pop(turn, None):
        handle.close()
