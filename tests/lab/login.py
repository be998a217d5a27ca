"""The way into a lab host: keys, known_hosts and the ssh command line."""

from __future__ import annotations

import shutil
import subprocess
from ipaddress import IPv4Address
from pathlib import Path

from tests.lab import paths


def make_keys(name: str, address: IPv4Address) -> None:
    """Make the lab's key and the host's when absent, and keep the host's line in known_hosts."""
    for path, comment in (
        (paths.ssh_key(), "gb10-lab"),
        (paths.host_dir(name) / "ssh_host_ed25519_key", f"{name} (lab host)"),
    ):
        if not path.exists():
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    public = (paths.host_dir(name) / "ssh_host_ed25519_key.pub").read_text().split()
    line = f"{address},{name} {public[0]} {public[1]}"
    known = paths.known_hosts()
    lines = known.read_text().splitlines() if known.exists() else []
    if line not in lines:
        kept = [old for old in lines if not old.startswith(f"{address},")]
        known.write_text("\n".join([*kept, line]) + "\n")


def install_keys(name: str, root: Path) -> None:
    """Put the host's own key and the lab's authorized key into the host's root."""
    for key in paths.host_dir(name).glob("ssh_host_*"):
        shutil.copy2(key, root / "etc/ssh" / key.name)
    home = root / "home" / paths.USER
    allowed = home / ".ssh/authorized_keys"
    shutil.copyfile(paths.ssh_key().with_suffix(".pub"), allowed)
    shutil.chown(allowed, home.stat().st_uid, home.stat().st_gid)
    allowed.chmod(0o600)


def ssh_command(address: IPv4Address) -> list[str]:
    """The ssh command line up to the remote command, with strict host key checking."""
    options = {
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": str(paths.known_hosts()),
        "ConnectTimeout": "5",
        "LogLevel": "ERROR",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "none", "-i", str(paths.ssh_key()), *words, f"{paths.USER}@{address}"]
