"""Ctrl-C in a deploy. pyinfra's own handler ends with exit status 0, as if all had been done."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

STATUS = 130  # what a shell says of a command that SIGINT ended


def _stop(_signal: int, _frame: FrameType | None) -> None:
    sys.stderr.write(
        "\nInterrupted. What was begun on the box goes on there (a build, a download): "
        "run the deploy again to join it and finish the rest.\n"
    )
    sys.stderr.flush()
    # Not sys.exit: in a greenlet it would end that greenlet and nothing else.
    os._exit(STATUS)


def is_a_failure() -> None:
    """From now on Ctrl-C ends the deploy with status 130 and says how to go on."""
    signal.signal(signal.SIGINT, _stop)
