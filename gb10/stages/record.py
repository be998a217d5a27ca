"""The end of a deploy: what it has done is recorded on the box, and the box looks at itself each night."""

from __future__ import annotations

import time

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host, state

from gb10.desired import NIGHTLY_UNITS, Desired
from gb10.facts.drift import DriftState, question_of
from gb10.facts.shared import look
from gb10.operations import Commands, placed
from gb10.operations.deploy_lock import who
from gb10.record import make, news, text
from gb10.rendering import PlacedFile
from gb10.revision import revision
from gb10.stages import chosen, corrections, noted

TIMER = "gb10-drift.timer"


def keep(box: Desired) -> None:
    """Always the last: it records what all others have left."""
    for file in box.nightly_files:
        placed.file(name=f"record: {file.path.rpartition('/')[2]}", placed=file)
    corrections.drop_ins(name="record: no drop-ins", box=box, stage="record", units=NIGHTLY_UNITS)
    nightly(name="record: a look each night", box=box)
    recorded(name="record: this deploy", box=box)


@operation()
def nightly(box: Desired) -> Commands:
    """The timer runs with what its file says."""
    timer = look(host, DriftState, question=question_of(box))["facts"]["record: timer"]
    if timer["needs_reload"] == "yes" or timer["loaded"] != "loaded":
        yield StringCommand("systemctl", "daemon-reload")
    if timer["enabled"] != "enabled":
        yield StringCommand("systemctl", "enable", "--quiet", TIMER)
    if timer["active"] != "active":
        yield StringCommand("systemctl", "start", TIMER)
    elif timer["needs_reload"] == "yes":
        # It goes by the times that it was started with.
        yield StringCommand("systemctl", "restart", TIMER)


@operation()
def recorded(box: Desired) -> Commands:
    """The record says what there is now; it is written only where it says something else."""
    seen = look(host, DriftState, question=question_of(box))
    if state.is_executing and seen["models_error"]:
        # That look was right after a start of the router. By now it has answered.
        seen = host.get_fact(DriftState, question=question_of(box))
    record = make(box, revision(), seen, who(), chosen(), noted())
    found = news(seen["record"], record, seen["readings"])
    if found:
        if state.is_executing:
            host.log(f"what there is now is recorded for gb10 drift ({len(found)} entries are new)")
        content = text(record, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))
        yield from placed.file_commands(PlacedFile(box.record_path, content, mode="0600"))
