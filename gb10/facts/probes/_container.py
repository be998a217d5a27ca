"""Part of the drift probe: what Docker says of the lane, and what its processes were given."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

from gb10.facts.probes._marks import content, digest

ANSWER_SECONDS = 60
# Docker's own names of what alters a container and no unit of ours asks for; the values of none.
UNASKED = {
    "CpuQuota": 0, "CpuPeriod": 0, "CpuShares": 0, "CpusetMems": "", "MemoryReservation": 0, "MemorySwap": 0,
    "PidMode": "", "UTSMode": "", "UsernsMode": "", "IpcMode": "private", "CgroupParent": "",
    "OomScoreAdj": 0, "OomKillDisable": False, "Sysctls": {}, "GroupAdd": [], "DeviceCgroupRules": [],
    "VolumesFrom": [], "Links": [], "ExtraHosts": [], "Dns": [], "DnsSearch": [],
}  # fmt: skip


class Docker(http.client.HTTPConnection):
    """Docker's own socket: a few milliseconds a question, where its client takes fifty."""

    def __init__(self, path: str = "/run/docker.sock") -> None:
        super().__init__("docker", timeout=ANSWER_SECONDS)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_SECONDS)
        self.sock.connect(self.path)

    def ask(self, what: str) -> Any:
        """The answer, None where there is no such thing. Raises OSError where Docker does not answer."""
        try:
            self.request("GET", what)
            response = self.getresponse()
            content = response.read()
            if response.status not in (200, 404):
                raise OSError(f"Docker answered {what} with {response.status}")
            return json.loads(content) if response.status == 200 else None
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"Docker answered {what} with something else than JSON: {error}") from None


def container_of(
    inspected: dict[str, Any], image: dict[str, Any] | None, info: dict[str, Any]
) -> dict[str, Any]:
    """What matters of a container's ``inspect``. Values of its environment as digests: they may be secret.

    A limit that this kernel cannot keep is "unsupported": Docker drops it then.
    """
    config, host = inspected["Config"], inspected["HostConfig"]
    image_config = (image or {}).get("Config") or {}
    own, entrypoint = set(image_config.get("Env") or []), config.get("Entrypoint") or []
    given = [entry.partition("=") for entry in config.get("Env") or [] if entry not in own]
    ports = host.get("PortBindings") or {}
    return {
        "status": inspected["State"]["Status"],
        "image": inspected["Image"],
        "entrypoint": [] if entrypoint == (image_config.get("Entrypoint") or []) else entrypoint,
        "command": config.get("Cmd") or [],
        "user": config.get("User") or "",
        "environment": {name: digest(value) for name, _, value in given},
        "mounts": sorted(
            f"{mount['Source']}:{mount['Destination']}:{'rw' if mount['RW'] else 'ro'}"
            for mount in inspected.get("Mounts") or []
        ),
        "tmpfs": sorted(f"{path}:{options}" for path, options in (host.get("Tmpfs") or {}).items()),
        "devices": sorted(
            [name for request in host.get("DeviceRequests") or [] for name in request.get("DeviceIDs") or []]
            + [device["PathOnHost"] for device in host.get("Devices") or []]
        ),
        "published": sorted(
            f"{bound.get('HostIp') or '0.0.0.0'}:{bound.get('HostPort')}->{port}"  # noqa: S104 (told, not bound)
            for port, bindings in ports.items()
            for bound in bindings or []
        ),
        "pids": (host.get("PidsLimit") or 0) if info.get("PidsLimit") else "unsupported",
        "memory": (host.get("Memory") or 0) if info.get("MemoryLimit") else "unsupported",
        "cpus": [host.get("NanoCpus") or 0, host.get("CpusetCpus") or ""],
        "read_only": bool(host.get("ReadonlyRootfs")),
        "privileged": bool(host.get("Privileged")),
        "capabilities": [sorted(host.get("CapAdd") or []), sorted(host.get("CapDrop") or [])],
        "security": sorted(host.get("SecurityOpt") or []),
        "networks": sorted((inspected.get("NetworkSettings") or {}).get("Networks") or {}),
        "other": {
            name: value
            for name, default in UNASKED.items()
            if (value := host.get(name) or type(default)()) not in (default, type(default)())
        },
        "restart": (host.get("RestartPolicy") or {}).get("Name") or "no",
        "log": (host.get("LogConfig") or {}).get("Type") or "",
        "init": bool(host.get("Init")),
        "label": (config.get("Labels") or {}).get("gb10.lane", ""),
    }  # fmt: skip


def descendants(pid: int, proc: str = "/proc") -> list[int]:
    found = [pid]
    for process in found:
        text = content(f"{proc}/{process}/task/{process}/children") or b""
        found += [int(child) for child in text.split()]
    return found


def process_environment(pid: int, names: list[str], proc: str = "/proc") -> dict[str, str]:
    """Digest of what the container's processes have under ``names``; "differs" where they do not agree."""
    found: dict[str, str] = {}
    for process in descendants(pid, proc):
        entries = (content(f"{proc}/{process}/environ") or b"").split(b"\0")
        values = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
        for name in names:
            value = values.get(name.encode())
            state = "" if value is None else digest(value)
            found[name] = state if found.get(name, state) == state else "differs"
    return found
