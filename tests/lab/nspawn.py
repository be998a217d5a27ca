"""The command lines of systemd-nspawn."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab.network import BRIDGE

# Exit status of nspawn when the system inside asked for a reboot.
REBOOT = 133

ENVIRONMENT = {
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
    # dockerd writes net.ipv4.ip_forward and the like; the root masks what would write beyond its own network.
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "yes",
    "SYSTEMD_SECCOMP": "0",
}


def environment() -> dict[str, str]:
    """The environment in which nspawn is started."""
    return {**os.environ, **ENVIRONMENT}


def _common(root: Path) -> list[str]:
    # Where systemd runs this machine, nspawn asks it for a scope; elsewhere it stays in the caller's cgroup.
    scope = [] if Path("/run/systemd/system").exists() else ["--keep-unit"]
    return ["systemd-nspawn", "--quiet", "--register=no", *scope, f"--directory={root}"]


def boot(root: Path, machine: str, *, network: bool) -> list[str]:
    """Boot `root` as a host named `machine`; without `network` it has a loopback only."""
    wire = [f"--network-bridge={BRIDGE}"] if network else ["--private-network"]
    return [
        *_common(root), "--boot", f"--machine={machine}", f"--hostname={machine}", *wire, "--capability=all",
        "--system-call-filter=add_key keyctl bpf perf_event_open", "--console=read-only", "--link-journal=no",
        "--resolv-conf=off", "--timezone=off",
    ]  # fmt: skip


def run(root: Path, script: str, *, binds: tuple[str, ...] = (), machine: str = "lab-build") -> list[str]:
    """Run a shell script in `root`, with no network; `binds` as in nspawn's --bind."""
    return [
        *_common(root), "--private-network", f"--machine={machine}", "--console=pipe", "--resolv-conf=off",
        "--timezone=off", *(f"--bind={bind}" for bind in binds), "/bin/sh", "-ec", script,
    ]  # fmt: skip
