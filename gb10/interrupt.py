"""Ctrl-C in a deploy. pyinfra's own handler ends with exit status 0, as if all had been done."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

STATUS = 130  # what a shell says of a command that SIGINT ended


DEPLOYING = (
    "Interrupted. What was begun on the box goes on there (a build, a download): "
    "run the deploy again to join it and finish the rest."
)
_said: list[str] = []


def _stop(_signal: int, _frame: FrameType | None) -> None:
    sys.stderr.write(f"\n{_said[0]}\n")
    sys.stderr.flush()
    # Not sys.exit: in a greenlet it would end that greenlet and nothing else.
    os._exit(STATUS)


def is_a_failure(words: str = DEPLOYING) -> None:
    """From now on Ctrl-C ends this program with status 130 and ``words``. The first caller's words count."""
    _said.append(words)
    signal.signal(signal.SIGINT, _stop)
