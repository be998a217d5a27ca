"""Preflight, the part that needs root: see BoxReport in gb10/facts/probe.py for question and answer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

from gb10.facts.probes._deploy_lock import deploy_lock


def run(*command: str) -> str:
    """Standard output, or an empty text when the command is missing or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def listeners(socket_table: str) -> dict[int, set[int]]:
    """Port to process ids from the output of ``ss --no-header --listening --tcp --numeric --processes``."""
    found: dict[int, set[int]] = {}
    for line in socket_table.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        port = fields[3].rpartition(":")[2]
        if port.isdigit():
            found.setdefault(int(port), set()).update(int(pid) for pid in re.findall(r"pid=(\d+)", line))
    return found


def unit_of(cgroup: str) -> str:
    """The systemd unit in the content of ``/proc/PID/cgroup``; empty for a container or a session."""
    for line in cgroup.splitlines():
        # The innermost: a user's own unit lies below user@1000.service.
        found: list[str] = re.findall(r"/([^/]+\.service)(?=/|$)", line)
        if found:
            return found[-1]
    return ""


def container_of_port(listing: str, port: int) -> str:
    """The container that publishes ``port``, from ``docker ps --format '{{.Names}} {{.Ports}}'``."""
    for line in listing.splitlines():
        name, _, ports = line.partition(" ")
        # Docker shows neighbouring ports as one range: 0.0.0.0:10100-10110->10100-10110/tcp.
        for first, last in re.findall(r":(\d+)(?:-(\d+))?->", ports):
            if int(first) <= port <= int(last or first):
                return name
    return ""


def container_of_process(cgroup: str, names: dict[str, str]) -> str:
    """The container of a process by its cgroup (a server with the host's network publishes nothing)."""
    match = re.search(r"docker[-/]([0-9a-f]{64})", cgroup)
    return names.get(match.group(1), match.group(1)[:12]) if match else ""


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def holders(ports: list[int]) -> dict[str, dict[str, object]]:
    table = listeners(run("ss", "--no-header", "--listening", "--tcp", "--numeric", "--processes"))
    wanted = [port for port in ports if port in table]
    if not wanted:
        return {}
    listing = run("docker", "ps", "--no-trunc", "--format", "{{.Names}} {{.Ports}}")
    names = dict(
        line.split(" ", 1)
        for line in run("docker", "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}").splitlines()
    )
    found: dict[str, dict[str, object]] = {}
    for port in wanted:
        pid = min(table[port], default=0)
        cgroup = read(f"/proc/{pid}/cgroup")
        found[str(port)] = {
            "unit": unit_of(cgroup),
            "container": container_of_port(listing, port) or container_of_process(cgroup, names),
            "process": read(f"/proc/{pid}/comm").strip(),
            "pid": pid,
        }
    return found


def free_bytes(path: str) -> int:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def calendar_fault(text: str) -> str:
    """Why systemd cannot read a time of its calendar; empty when it can, or cannot be asked."""
    try:
        done = subprocess.run(
            ["systemd-analyze", "calendar", "--", text], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return (done.stderr.strip().splitlines() or ["no reason"])[-1] if done.returncode else ""


def main(question: dict[str, Any]) -> dict[str, object]:
    docker_root = run("docker", "info", "--format", "{{.DockerRootDir}}")
    return {
        "docker": run("docker", "version", "--format", "{{.Server.Version}}") or None,
        "buildx": bool(run("docker", "buildx", "version")),
        "docker_root": docker_root or "/var/lib/docker",
        "free_bytes": free_bytes(docker_root or "/var/lib/docker"),
        "holders": holders(question["ports"]),
        "daemon": read("/etc/docker/daemon.json") or None,
        "lock": deploy_lock(),
        "calendar": calendar_fault(question.get("calendar", "daily")),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
