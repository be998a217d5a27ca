"""How the pyinfra command ends when a deploy does not end well: in words."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence

import gevent
from pyinfra.api.exceptions import PyinfraError
from pyinfra.context import ctx_state, state


def in_words() -> None:
    """From now on a failed operation shows no traceback, and the last line says what is to be done."""
    hub = gevent.get_hub()
    # It has been said already where it happened; which greenlet ended by it is of no use to anybody.
    hub.NOT_ERROR = (*hub.NOT_ERROR, PyinfraError)
    atexit.register(_say_last_word)


def _say_last_word() -> None:
    failed = sorted(host.name for host in state.failed_hosts) if ctx_state.isset() else []  # type: ignore[no-untyped-call]
    if failed:
        sys.stderr.write(f"{last_word(failed)}\n")


def last_word(failed: Sequence[str]) -> str:
    """What to do about the boxes whose deploy failed."""
    return (
        f"Not done on {', '.join(failed)}: see above. What was done stays, and what was begun goes on there. "
        f"Run it again to go on; `gb10 status --host {failed[0]}` says how the box is."
    )
