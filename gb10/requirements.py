"""What a box must be before anything on it is changed. Pure: reports in, faults out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gb10.daemon_json import merged_text
from gb10.desired import Desired
from gb10.facts.host_report import Host
from gb10.faults import BadInput, Fault
from gb10.fetch_manifest import unresolved
from gb10.pinning import lock_faults
from gb10.plan_faults import plan_faults

# Docker reads CDI specs since 25.
MINIMUM_DOCKER = 25
GIB = 1024**3


def description_faults(box: Desired) -> list[Fault]:
    """Faults that need no box: files that the lock does not know, pins that differ, memory that does not fit.

    It counts the models that are found on the box, where somebody has looked (`Desired.found`).
    """
    data = box.data
    faults = lock_faults(
        box.lock,
        data.models_lock,
        llama_ref=data.llama_ref,
        llama_commit=data.llama_commit,
        images=[data.image_build_base, data.image_runtime_base, data.appliance_base],
    )
    faults += unresolved(box.catalogue, box.lock)
    unpinned = {fault.where for fault in faults}
    try:
        # Without its file's header a model has no figures either: one fault for both.
        faults += [fault for fault in plan_faults(box.plan, box.catalogue) if fault.where not in unpinned]
    except BadInput as error:
        faults += error.faults
    return faults


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def host_faults(name: str, report: Host, box: Desired) -> Iterator[Fault]:
    """Faults that any user can see: architecture, system, python3, GPU, sudo."""
    data = box.data
    if report.architecture != data.expect_architecture:
        yield Fault(
            name,
            f"its architecture is {report.architecture}, not {data.expect_architecture}",
            "is this the right box? else set expect_architecture",
        )
    if report.os not in data.expect_os:
        yield Fault(
            name,
            f"it runs {report.os or 'an unknown system'}, not {' or '.join(data.expect_os)}",
            "re-image it, or add the system to expect_os once you have tried it",
        )
    if not report.systemd:
        yield Fault(
            name, "systemd is not its init", "the lane is a systemd unit: use a host that boots systemd"
        )
    if not report.python or _version(report.python) < _version(data.minimum_python):
        yield Fault(
            name,
            f"python3 is {report.python or 'missing'}, {data.minimum_python} is needed",
            "apt-get install python3",
        )
    if report.capability != data.expect_compute_capability:
        yield Fault(
            name,
            f"nvidia-smi says {report.capability!r}, not compute capability {data.expect_compute_capability}",
            "look at the driver with nvidia-smi (memory shown as [N/A] is normal on a GB10)",
        )
    if report.noise:
        # In front of every answer, and sftp, by which files come, does not work at all then.
        yield Fault(
            name,
            f"the login shell of {report.user} prints {report.noise[:60]!r} before every command",
            "let ~/.bashrc print for people only: begin it with `case $- in *i*) ;; *) return;; esac`",
        )
    if not report.sudo and report.user == "root":
        yield Fault(
            name, "sudo does not work for root", "apt-get install sudo: every command goes through it"
        )
    elif not report.sudo:
        yield Fault(
            name,
            f"sudo wants a password from {report.user}",
            f"give it NOPASSWD: echo '{report.user} ALL=(ALL) NOPASSWD: ALL' | sudo tee /etc/sudoers.d/gb10",
        )


def under_way(note: Mapping[str, Any]) -> str:
    """What is wrong when somebody else holds the box."""
    return f"the box is held by {note['who'] or 'somebody'}, since {note['since'] or 'just now'}"


def box_faults(name: str, report: Mapping[str, Any], box: Desired, image_is_there: bool) -> Iterator[Fault]:
    """Faults that root can see: Docker and its settings, disk, ports that somebody else holds.

    Disk is asked for only when an image has to be built. ``report`` is the answer of `BoxReport`.
    """
    data = box.data
    docker = report["docker"]
    if report.get("lock"):
        yield Fault(name, under_way(report["lock"]), "wait for its end, then try again")
    if report.get("calendar"):
        what = f"drift_calendar = {data.drift_calendar!r} is no time: {report['calendar']}"
        yield Fault(name, what, "write it as systemd.time(7) has it: *-*-* 03:30:00")
    if docker is None:
        yield Fault(
            name,
            "Docker does not answer",
            "apt-get install docker.io docker-buildx, then systemctl start docker",
        )
    elif docker.split(".")[0].isdigit() and int(docker.split(".")[0]) < MINIMUM_DOCKER:
        yield Fault(
            name, f"Docker {docker} knows no CDI devices", f"upgrade Docker to {MINIMUM_DOCKER} or later"
        )
    if docker is not None and not report["buildx"]:
        yield Fault(
            name, "docker buildx is missing", "apt-get install docker-buildx (or docker-buildx-plugin)"
        )
    free = report["free_bytes"] / GIB
    if not image_is_there and free < data.minimum_free_gib:
        yield Fault(
            name,
            f"{free:.1f} GiB free below {report['docker_root']}, the build needs {data.minimum_free_gib}",
            "free some disk, or lower minimum_free_gib",
        )
    try:
        merged_text(name, report["daemon"], data.docker_daemon)
    except BadInput as error:
        yield from error.faults
    yield from _port_faults(name, report["holders"], box)


def _port_faults(name: str, holders: Mapping[str, Any], box: Desired) -> Iterator[Fault]:
    data = box.data
    rightful = {data.lane_port: (box.unit, data.lane_name)}
    rightful |= {lane.port: (lane.unit, lane.container) for lane in data.lanes_out}
    for port, (unit, container) in sorted(rightful.items()):
        holder = holders.get(str(port))
        if holder is None or holder["unit"] == unit or holder["container"] == container:
            continue
        who = f"process {holder['process']} ({holder['pid']})"
        if holder["container"]:
            who = f"container {holder['container']}"
        elif holder["unit"]:
            who = f"unit {holder['unit']}"
        if port == data.lane_port:
            do = "stop it, or give the lane another lane_port"
        else:
            do = f"it is not the old lane {unit}: stop it, or correct lanes_out"
        yield Fault(name, f"port {port} is held by {who}", do)


def watched_ports(box: Desired) -> list[int]:
    """The ports that preflight looks at: the lane's and those of the old lanes."""
    return [box.data.lane_port, *(lane.port for lane in box.data.lanes_out)]
