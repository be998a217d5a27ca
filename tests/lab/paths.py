"""Where the lab keeps things: the cache on this machine and the recipe files in the repository."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
ROOTFS = HERE / "rootfs"
STANDINS = HERE / "standins"
APT_PACKAGES = HERE / "apt-packages.txt"

# The account on every lab host.
USER = "lab"


def cache() -> Path:
    """The lab's cache: `GB10_LAB_CACHE`, or gb10-lab in the user's cache folder."""
    named = os.environ.get("GB10_LAB_CACHE")
    return Path(named).absolute() if named else Path.home() / ".cache" / "gb10-lab"


def image() -> Path:
    """The sparse file that holds the lab's btrfs."""
    return cache() / "disk.img"


def disk() -> Path:
    """Where that file is mounted."""
    return cache() / "disk"


def logs() -> Path:
    """Build logs and the services' logs."""
    return cache() / "log"


def ssh_key() -> Path:
    """The private key that opens every lab host; made at the first `up`, never committed."""
    return cache() / "id_ed25519"


def known_hosts() -> Path:
    """The lab hosts' ssh host keys, for strict checking."""
    return cache() / "known_hosts"


def host_dir(name: str) -> Path:
    """What is remembered of a host: its address, its ssh host key, its processes, its console log."""
    return cache() / "hosts" / name
