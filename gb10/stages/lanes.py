"""Old serving lanes out: stopped, disabled, their unit files and containers gone."""

from __future__ import annotations

from collections.abc import Sequence

from pyinfra.api.command import StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from gb10.boxdata import OldLane
from gb10.desired import Desired
from gb10.facts.probe import OldLanes
from gb10.facts.shared import look
from gb10.operations import Commands, placed
from gb10.stages import stage


@stage("lanes")
def retire(box: Desired) -> None:
    """One operation a lane; nothing where there is none."""
    lanes = box.data.lanes_out
    for lane in lanes:
        retired(
            name=f"old lane out: {lane.unit}", lane=lane, aside=f"{box.data.state_dir}/retired", among=lanes
        )


@operation()
def retired(lane: OldLane, aside: str, among: Sequence[OldLane] = ()) -> Commands:
    """``lane`` neither runs nor comes back at the next boot. Model files and volumes are not touched.

    ``among`` are all old lanes: one look is for all of them.
    """
    question = {"lanes": [{"unit": one.unit, "container": one.container} for one in among or [lane]]}
    state = look(host, OldLanes, question=question)[lane.unit]
    known = state["loaded"] not in ("not-found", "masked")
    # A mask keeps a unit from starting and does not stop one that runs.
    if state["active"] not in ("inactive", "failed"):
        yield StringCommand("systemctl", "stop", lane.unit)
    if state["container"]:
        yield StringCommand("docker", "rm", "--force", lane.container)
    if known and state["enabled"] in ("enabled", "enabled-runtime", "linked", "linked-runtime", "alias"):
        yield StringCommand("systemctl", "disable", lane.unit)
    if state["files"]:
        # Kept below state_dir: a lane that was needed after all can be put back.
        yield placed.set_aside(aside, state["files"])
        yield StringCommand("systemctl", "daemon-reload")
    if state["active"] == "failed" or (known and state["files"]):
        # A failed unit without a file stays in systemd's lists for ever.
        yield StringCommand("systemctl", "reset-failed", lane.unit, "2>/dev/null", "||", "true")
