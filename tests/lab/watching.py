"""The watch on a lab host, as a test sees it: its status, its journal, and how long it took."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.lab import lane, paths
from tests.lab.host import LabHost
from tests.lab.progress import say

UNIT = "gb10-watch.service"
STATUS = "/run/gb10-watch/status.json"
ACTIONS = "/var/lib/gb10/watch/actions.jsonl"
# Figures of the last run, for the table in docs/watch.md.
FIGURES = paths.REPOSITORY / "build/watch-faults.jsonl"

Status = dict[str, Any]


def status(host: LabHost) -> Status:
    """What the watch wrote last."""
    text = host.ssh(f"cat {STATUS}", check=False).stdout
    found: Status = json.loads(text) if text else {"state": "", "reasons": [], "models": [], "watch": {}}
    return found


def keys(found: Status) -> list[str]:
    return [reason["key"] for reason in found["reasons"]]


def has(key: str) -> Callable[[Status], bool]:
    """A reason whose key begins with ``key``."""
    return lambda found: any(one.startswith(key) for one in keys(found))


def state(wanted: str) -> Callable[[Status], bool]:
    return lambda found: bool(found["state"] == wanted)


def until(host: LabHost, wanted: Callable[[Status], bool], seconds: float) -> tuple[float, Status]:
    """Seconds until the watch's status is as ``wanted``, and the status."""
    began = time.monotonic()
    while True:
        found = status(host)
        if wanted(found):
            return time.monotonic() - began, found
        passed = time.monotonic() - began
        assert passed < seconds, f"not in {seconds} s: {found}\n{lane.journal(host, UNIT)[-2000:]}"
        time.sleep(0.3)


def actions(host: LabHost) -> list[dict[str, Any]]:
    """The record of what the watch has done, the oldest first."""
    text = host.ssh(f"cat {ACTIONS}", check=False).stdout
    return [json.loads(line) for line in text.splitlines()]


def outcome(host: LabHost, action: str, seconds: float) -> str:
    """Wait for the end of an action; what came of it."""
    began = time.monotonic()
    while True:
        results = [one["result"] for one in actions(host) if one["action"] == action and "result" in one]
        if results:
            return str(results[-1])
        assert time.monotonic() - began < seconds, f"no outcome of {action}: {actions(host)}"
        time.sleep(0.5)


def fresh(host: LabHost) -> None:
    """The lane runs, its default model is loaded, and the watch knows of nothing that was."""
    host.ssh(
        f"systemctl stop {UNIT}; rm -f /run/gb10-watch/* {ACTIONS} /run/standin-gpu/lost*; "
        f": > /run/standin-kernel.log; chmod 644 /run/standin-kernel.log; "
        f"systemctl start standin-accelerator; systemctl reset-failed; systemctl start {lane.UNIT}",
        sudo=True,
    )
    lane.wait_answering(host)
    host.ssh(f"systemctl start {UNIT}", sudo=True)
    until(host, lambda found: found["state"] == "healthy" and bool((found["probe"] or {}).get("text")), 40)


def child(host: LabHost, model: str = "tiny-a") -> int:
    """Process id on the host of the model's server."""
    found = host.ssh(f"pgrep --full -- '--alias {model}( |,)'", check=False).stdout.split()
    assert found, f"no process of {model}"
    return int(found[0])


def note(fault: str, seconds: float, seen: str, came_of_it: str) -> None:
    """Keep a figure for the table in the docs."""
    say(f"{fault}: seen after {seconds:.1f} s ({seen}); {came_of_it}")
    FIGURES.parent.mkdir(exist_ok=True)
    with FIGURES.open("a") as file:
        entry = {"fault": fault, "seconds": round(seconds, 1), "seen": seen, "outcome": came_of_it}
        file.write(json.dumps(entry) + "\n")
