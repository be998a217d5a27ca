"""A deploy that asks needs somebody who can answer: pyinfra itself ends in an EOFError where nobody can."""

from __future__ import annotations

import os
import stat
import sys

import click

from gb10.faults import BadInput, Fault


def refuse_no_answer() -> None:
    """Raises `BadInput` for a command line of the pyinfra command that would ask, and nobody could answer."""
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.params
    asks = given and not any(given.get(name) for name in ("yes", "dry", "json_output"))
    if asks and any(str(name).endswith(".py") for name in given.get("operations") or ()) and not _answered():
        what = "a deploy asks before it begins, and here is no terminal to answer on"
        raise BadInput([Fault("standard input", what, "-y deploys without asking, --dry only shows")])


def _answered() -> bool:
    """A terminal, or a pipe with the answers in it."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or (sys.stdin is not None and sys.stdin.isatty())
