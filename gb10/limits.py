"""Which boxes a run of pyinfra is for: an inventory or a --limit that leaves none is a mistake.

pyinfra itself warns, does nothing and exits with 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

import click
from pyinfra.api.exceptions import NoGroupError
from pyinfra.api.inventory import Inventory

from gb10.faults import BadInput, Fault
from gb10.inventory import load_inventory


def refuse_no_host() -> None:
    """Raises `BadInput` for the command line of the pyinfra command that runs now, when it reaches no box."""
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.params
    inventory = str(given.get("inventory") or "")
    # Other inventories are pyinfra's own: @local, or names with commas.
    if inventory.endswith(".py"):
        check(inventory, given.get("limit") or ())


def check(inventory: str, limit: Sequence[str]) -> None:
    """``limit`` are patterns or groups. Raises `BadInput` with every one that no host of the file fits."""
    loaded = load_inventory(Path(inventory))
    names = [host.name for host in loaded]
    if not names:
        raise BadInput([Fault(inventory, "it has no host", "add one")])
    faults = [
        Fault(f"--limit {pattern}", f"no host of {inventory} is called so", _hint(pattern, names))
        for pattern in limit
        if not _fits(loaded, names, pattern)
    ]
    if faults:
        raise BadInput(faults)


def _hint(pattern: str, names: Sequence[str]) -> str:
    close = get_close_matches(pattern, names, n=1)
    return f"did you mean {close[0]}?" if close else f"it has: {', '.join(names)}"


def _fits(inventory: Inventory, names: Sequence[str], pattern: str) -> bool:
    try:
        return bool(inventory.get_group(pattern))
    except NoGroupError:
        return any(fnmatch(name, pattern) for name in names)
