"""The lab's disk: a sparse file with btrfs, so that a fresh host is a snapshot and a reset copies nothing."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import paths
from tests.lab.errors import LabError
from tests.lab.progress import say

GIB = 1 << 30
_MOST = 64 * GIB
_LEFT_TO_MACHINE = 4 * GIB
_LOCK_LIMIT = 1200.0


def require_machine() -> None:
    """Raise LabError, in one line with everything that is missing, when this machine cannot run the lab."""
    faults: list[str] = []
    if os.geteuid() != 0:
        faults.append("root is needed (sudo)")
    needed = {
        "mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container", "mkfs.btrfs": "btrfs-progs",
        "ip": "iproute2", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "git": "git",
        "gpg": "gnupg", "dpkg-deb": "dpkg", "losetup": "util-linux",
    }  # fmt: skip
    absent = sorted({package for program, package in needed.items() if not shutil.which(program)})
    if not Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists():
        absent.append("debian-archive-keyring")
    if absent:
        faults.append(f"missing apt packages: {' '.join(absent)} (all: tests/lab/apt-packages.txt)")
    if "btrfs" not in Path("/proc/filesystems").read_text() and not shutil.which("modprobe"):
        faults.append("the kernel has no btrfs")
    if not Path("/dev/loop-control").exists():
        faults.append("no loop devices (/dev/loop-control)")
    if faults:
        raise LabError("; ".join(faults))


@contextmanager
def lock() -> Iterator[None]:
    """Hold the lab's lock: one process at a time changes disk, bridge and services. Bounded wait."""
    paths.cache().mkdir(parents=True, exist_ok=True)
    with (paths.cache() / "lock").open("a+") as handle:
        until = time.monotonic() + _LOCK_LIMIT
        told = 0.0
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                handle.seek(0)
                owner = handle.read().strip() or "?"
                if time.monotonic() > until:
                    raise LabError(f"the lab is held by process {owner} for too long") from None
                if time.monotonic() - told > 5:
                    told = time.monotonic()
                    say(f"waiting for another lab command (process {owner})")
                time.sleep(0.1)
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def attached() -> bool:
    """True when the lab's disk is mounted."""
    return os.path.ismount(paths.disk())


def attach() -> None:
    """Mount the disk, making it first when there is none."""
    if attached():
        return
    image, disk = paths.image(), paths.disk()
    disk.mkdir(parents=True, exist_ok=True)
    if not image.exists():
        free = shutil.disk_usage(image.parent).free
        size = min(_MOST, free - _LEFT_TO_MACHINE) // GIB * GIB
        if size < 8 * GIB:
            raise LabError(
                f"{image.parent} has {free // GIB} GiB free; the lab needs 12 (or set GB10_LAB_CACHE)"
            )
        part = image.with_suffix(".part")
        with part.open("wb") as handle:
            handle.truncate(size)
        _must(["mkfs.btrfs", "--quiet", "--label", "gb10-lab", str(part)])
        part.replace(image)
    _must(["mount", "-t", "btrfs", "-o", "loop,noatime,discard=async", str(image), str(disk)])
    for folder in ("roots", "hosts", "snapshots"):
        (disk / folder).mkdir(exist_ok=True)


def detach() -> None:
    """Unmount the disk; the loop device goes with it. Raises LabError when something still uses it."""
    if not attached():
        return
    until = time.monotonic() + 10
    while True:
        done = subprocess.run(["umount", str(paths.disk())], capture_output=True, text=True, check=False)
        if not done.returncode or not attached():
            return
        if time.monotonic() > until:
            raise LabError(f"{paths.disk()} cannot be unmounted: {done.stderr.strip()}")
        time.sleep(0.2)


def create(subvolume: Path) -> None:
    """Make an empty subvolume."""
    _must(["btrfs", "subvolume", "create", str(subvolume)])


def snapshot(source: Path, target: Path, *, read_only: bool = False) -> None:
    """Make `target` a snapshot of the subvolume `source`."""
    flags = ["-r"] if read_only else []
    target.parent.mkdir(parents=True, exist_ok=True)
    _must(["btrfs", "subvolume", "snapshot", *flags, str(source), str(target)])


def seal(part: Path, final: Path) -> None:
    """Give a finished subvolume its name and make it read-only; until then nobody finds it."""
    part.rename(final)
    _must(["btrfs", "property", "set", "-ts", str(final), "ro", "true"])


def delete(subvolume: Path) -> None:
    """Delete a subvolume and those inside it; nothing happens when it is not there."""
    if not subvolume.exists():
        return
    # systemd makes /var/lib/machines and the like as subvolumes of their own.
    listing = _must(["btrfs", "subvolume", "list", "-o", str(subvolume)])
    inside = [paths.disk() / line.split(" path ", 1)[1] for line in listing.splitlines()]
    for nested in sorted(inside, key=lambda path: len(path.parts), reverse=True):
        if nested.is_relative_to(subvolume):
            delete(nested)
    _must(["btrfs", "subvolume", "delete", str(subvolume)])


def short_of_space() -> bool:
    """True when the machine or the lab's btrfs has less than 8 GiB left."""
    return min(shutil.disk_usage(place).free for place in (paths.cache(), paths.disk())) < 8 * GIB


def _must(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"{' '.join(command)}: {said[-1] if said else done.returncode}")
    return done.stdout
