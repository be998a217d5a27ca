"""The watch: its programs, its settings, its user, and the units that run it."""

from __future__ import annotations

import hashlib
from typing import Any

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from gb10 import watch_config
from gb10.desired import Desired
from gb10.facts.probe import WatchState
from gb10.facts.shared import look
from gb10.operations import Commands, placed
from gb10.rendering import PlacedFile
from gb10.stages import corrections, stage

WATCH, HAND, SOCKET = watch_config.UNITS

# $1 the unit. systemctl itself only says "see the journal": show what stands there.
_RESTART = """
systemctl restart "$1" && exit 0
journalctl --unit "$1" --output cat --no-pager --lines 5 >&2
exit 1
"""


@stage("watch")
def install(box: Desired) -> None:
    """A changed watch is restarted. The lane is not touched."""
    files(name="watch: programs, settings and units", box=box)
    corrections.drop_ins(name="watch: no drop-ins", box=box, stage="watch", units=watch_config.UNITS)
    settled(name="watch: runs what is described", box=box)


def _files(box: Desired) -> tuple[PlacedFile, ...]:
    return (*(box.program_files[name] for name in watch_config.PROGRAMS), *box.watch_files)


def _folder(box: Desired) -> tuple[str, str]:
    return watch_config.watch_folder(box.data), f"{box.data.lane_user_id}:{box.data.lane_user_id}"


def _state(box: Desired) -> dict[str, Any]:
    question = {
        "paths": [*(placed.path for placed in _files(box)), _folder(box)[0]],
        "units": list(watch_config.UNITS),
        "user_id": box.data.lane_user_id,
        "status": watch_config.STATUS,
    }
    answer: dict[str, Any] = look(host, WatchState, question=question)
    return answer


@operation()
def files(box: Desired) -> Commands:
    """All files are as they should be: looked at in one go, for there are many."""
    found = _state(box)["paths"]
    for wanted in _files(box):
        digest = hashlib.sha256(wanted.content.encode()).hexdigest()
        if found[wanted.path] != {"mode": wanted.mode, "owner": wanted.owner, "sha256": digest}:
            yield from placed.file_commands(wanted)
    path, owner = _folder(box)
    now = found[path] or {}
    if not now:
        yield StringCommand("mkdir", "-p", QuoteString(path))
    if now.get("owner") != owner:
        yield StringCommand("chown", owner, QuoteString(path))
    if now.get("mode") != "0755":
        yield StringCommand("chmod", "0755", QuoteString(path))


@operation()
def settled(box: Desired) -> Commands:
    """The watch is enabled and runs with these files. Looks at what runs, not at what this deploy changed."""
    state = _state(box)
    units = state["units"]
    if not state["user"]:
        yield StringCommand("systemd-sysusers", watch_config.USER_FILE)
    if any(unit["needs_reload"] for unit in units.values()):
        yield StringCommand("systemctl", "daemon-reload")
    for unit in (SOCKET, WATCH):
        if units[unit]["enabled"] != "enabled":
            yield StringCommand("systemctl", "enable", "--quiet", unit)
    changed = state["description"] != box.watch_description
    if units[SOCKET]["active"] != "active" or units[SOCKET]["needs_reload"]:
        # The hand holds the socket: systemd starts no socket whose service runs.
        yield StringCommand("systemctl", "stop", HAND)
        yield StringCommand("systemctl", "restart", SOCKET)
    if changed or units[WATCH]["active"] != "active":
        yield StringCommand("sh", "-c", QuoteString(_RESTART), "-", WATCH)
