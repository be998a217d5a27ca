"""The lane: preset file, API key, programs, and the unit that wraps `docker run`."""

from __future__ import annotations

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from gb10.desired import Desired
from gb10.facts.drift import lane_question
from gb10.facts.probe import LaneState
from gb10.facts.shared import look
from gb10.operations import Commands, going_back, placed
from gb10.stages import corrections, stage

CHANGE_SECONDS = 900  # for the unit to start: its gate waits for the accelerator

# $1 the verb, $2 the unit. The start limit is there for crashes: it must not count our own restarts.
# systemctl itself only says "see the journal": show what stands there.
_WITH_REASON = r"""
systemctl reset-failed "$2" 2>/dev/null
systemctl "$1" "$2" && exit 0
journalctl --unit "$2" --output cat --no-pager --lines 40 \
  | grep -E 'REFUSING|[Ee]rror|invalid|failed' | tail -n 3 >&2
exit 1
"""


@stage("router")
def serve(box: Desired) -> None:
    """The running router reads changed presets again; a changed unit or image restarts it, once."""
    data = box.data
    for program in ("gb10_router.py", "gb10_history.py", "gb10_generations.py"):
        placed.file(name=f"router: {program}", placed=box.program_files[program])
    for folder in box.folders:
        placed.folder(name=f"router: {folder}", path=folder)
    placed.secret(name="router: API key", path=box.key_path, owner=f"{data.lane_user_id}:{data.lane_user_id}")
    placed.file(name="router: presets", placed=box.presets_file)
    placed.file(name="router: lane description", placed=box.lane_file)
    placed.file(name=f"router: {box.unit}", placed=box.unit_file)
    corrections.drop_ins(name="router: no drop-ins", box=box, stage="router", units=(box.unit,))
    settled(name="router: runs what is described", box=box)
    corrections.container(name="router: nothing was altered", box=box)


@operation()
def settled(box: Desired) -> Commands:
    """The unit is enabled and runs, with this image and these options, and has read these presets.

    It compares what runs with what should run, not what this deploy has changed: a deploy that was cut
    between writing a file and restarting is finished by the next one.
    """
    state = look(host, LaneState, question=lane_question(box))
    if state["needs_reload"]:
        yield StringCommand("systemctl", "daemon-reload")
    if state["enabled"] != "enabled":
        yield StringCommand("systemctl", "enable", "--quiet", box.unit)
    newer = state["key_newer"] or state["models_newer"]
    outdated = newer or state["container_hash"] != box.lane_hash
    if state["active"] not in ("active", "activating", "reloading"):
        yield from _with_reason("start", box)
    elif outdated:
        if state["key_newer"]:
            # Written while the clock was ahead it would stay newer than any start: a restart each deploy.
            yield StringCommand("touch", "--no-create", QuoteString(box.key_path))
        yield from _with_reason("restart", box)
    elif state["presets_read"] != box.presets_digest:
        program = box.program_files["gb10_router.py"].path
        reload = StringCommand("python3", QuoteString(program), QuoteString(box.lane_path), "reload")
        yield from going_back.commands(box, "the reload", going_back.ShellStep(reload, CHANGE_SECONDS))


def _with_reason(verb: str, box: Desired) -> Commands:
    command = StringCommand("sh", "-c", QuoteString(_WITH_REASON), "-", verb, box.unit)
    yield from going_back.commands(box, f"the {verb}", going_back.ShellStep(command, CHANGE_SECONDS))
