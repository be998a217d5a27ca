"""A lab host: a real Debian system, from a snapshot of the bare root to power cuts."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path
from types import TracebackType

from tests.lab import bare, disk, login, network, paths, process, services, supervisor
from tests.lab.errors import LabError
from tests.lab.progress import say

# "lab host" plus bridge prefix must fit an interface name of 15 characters.
_NAME = re.compile(r"[a-z][a-z0-9-]{1,10}[a-z0-9]|[a-z][a-z0-9]")
_BOOT_LIMIT = 90.0
_STOP_LIMIT = 45.0


class LabHost:
    """One host of the lab, by name.

    As a context manager it is up inside and down after. Methods raise LabError, in one line, when the
    machine cannot do what they ask; every wait has a bound.
    """

    def __init__(self, name: str = "box") -> None:
        if not _NAME.fullmatch(name):
            raise LabError(f"host name {name!r}: use 2 to 12 of a-z, 0-9 and -, a letter first")
        self.name = name

    def __enter__(self) -> LabHost:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def root(self) -> Path:
        """The host's file system on this machine (there while the lab's disk is mounted)."""
        return paths.disk() / "hosts" / self.name

    @property
    def address(self) -> IPv4Address:
        """The host's fixed address. Raises LabError when the name was never up."""
        try:
            return network.host_address(json.loads(self._record.read_text())["index"])
        except OSError:
            raise LabError(f"{self.name} has no address yet: python -m tests.lab up {self.name}") from None

    @property
    def running(self) -> bool:
        """True while the host is powered on."""
        return "supervisor" in process.read_refs(supervisor.refs_file(self.name))

    @property
    def console(self) -> Path:
        """The host's console log."""
        return paths.host_dir(self.name) / "console.log"

    @property
    def _record(self) -> Path:
        return paths.host_dir(self.name) / "host.json"

    def up(self) -> LabHost:
        """Power the host on (made from the bare root the first time) and wait until systemd says running."""
        begun = time.monotonic()
        disk.require_machine()
        with disk.lock(), _ReleasedOnFailure():
            disk.attach()
            if not self.root.exists():
                self._make(bare.ensure())
            self._power_on()
        self.wait_ready()
        say(f"{self.name} is up at {self.address} ({time.monotonic() - begun:.1f} s)")
        return self

    def down(self) -> None:
        """Shut down in order; the last one down unmounts the disk and ends bridge and services."""
        with disk.lock():
            self._power_off(orderly=True)
            release_if_idle()

    def kill(self) -> None:
        """Cut the power: SIGKILL to everything in the host at once. `up` boots the same disk again."""
        # Now, not when another lab command has come to its end; the tidying can wait for that.
        if init := process.read_refs(supervisor.refs_file(self.name)).get("init"):
            init.send(signal.SIGKILL)
        with disk.lock():
            self._power_off(orderly=False)

    def reset(self, to: str | None = None) -> LabHost:
        """Back to the bare root, or to the snapshot `to`, and up."""
        begun = time.monotonic()
        disk.require_machine()
        with disk.lock(), _ReleasedOnFailure():
            disk.attach()
            source = bare.ensure() if to is None else self._snapshot(to)
            if not source.exists():
                raise LabError(
                    f"{self.name} has no snapshot {to!r}; it has: {' '.join(self.snapshots()) or 'none'}"
                )
            self._power_off(orderly=False)
            disk.delete(self.root)
            self._make(source)
            self._power_on()
        self.wait_ready()
        say(f"{self.name} is back to {to or 'bare'} ({time.monotonic() - begun:.1f} s)")
        return self

    def snapshot(self, tag: str) -> None:
        """Keep the disk as it is now under `tag`; of a running host it is what a power cut would leave."""
        if not re.fullmatch(r"[a-zA-Z0-9._-]+", tag):
            raise LabError(f"snapshot {tag!r}: use letters, digits, . _ -")
        with disk.lock(), _ReleasedOnFailure():
            disk.attach()
            if not self.root.exists():
                raise LabError(f"{self.name} has no disk yet: python -m tests.lab up {self.name}")
            subprocess.run(["sync", "--file-system", str(self.root)], check=True)
            disk.delete(self._snapshot(tag))
            disk.snapshot(self.root, self._snapshot(tag), read_only=True)
            release_if_idle()

    def snapshots(self) -> list[str]:
        """Tags of the snapshots of this host (the disk must be mounted)."""
        folder = self._snapshot("any").parent
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def forget_snapshots(self, prefix: str) -> None:
        """Delete the snapshots of this host whose tag begins with `prefix`."""
        with disk.lock(), _ReleasedOnFailure():
            disk.attach()
            for tag in self.snapshots():
                if tag.startswith(prefix):
                    disk.delete(self._snapshot(tag))
            release_if_idle()

    def discard(self) -> None:
        """Power off and delete the host's disk and snapshots; its address and ssh host key are remembered."""
        with disk.lock(), _ReleasedOnFailure():
            self._power_off(orderly=False)
            disk.attach()
            disk.delete(self.root)
            for tag in self.snapshots():
                disk.delete(self._snapshot(tag))
            release_if_idle()

    def reboot(self) -> None:
        """Reboot from the inside and wait until the host is up again."""
        before = self._boot_id()
        self.ssh("systemctl reboot", sudo=True, check=False)
        until = time.monotonic() + _BOOT_LIMIT
        while True:
            if time.monotonic() > until:
                raise LabError(
                    f"{self.name} did not reboot within {_BOOT_LIMIT:.0f} s (console: {self.console})"
                )
            if self._answers() and self._boot_id(check=False) not in ("", before):
                break
            time.sleep(0.1)
        self.wait_ready()

    def ssh(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        sudo: bool = False,
        stdin: str | None = None,
        limit: float = 300.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command (a shell line, or words to quote) as the lab's user, or as root with `sudo`.

        `limit` in seconds. With `check`, a status other than 0 raises LabError with the last line of stderr.
        """
        line = command if isinstance(command, str) else shlex.join(command)
        if sudo:
            line = f"sudo -n sh -c {shlex.quote(line)}"
        try:
            done = subprocess.run(
                [*self.ssh_command(), line],
                input=stdin or "",
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"{self.name}: not done after {limit:.0f} s: {line}") from None
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise LabError(
                f"{self.name}: {line}: status {done.returncode}: {said[-1] if said else 'no output'}"
            )
        return done

    def ssh_command(self) -> list[str]:
        """The ssh command line up to the remote command, with strict host key checking."""
        return login.ssh_command(self.address)

    def wait_ready(self) -> None:
        """Wait for sshd and for systemd to say running. LabError names failed units or the console."""
        until = time.monotonic() + _BOOT_LIMIT
        told = time.monotonic()
        while not self._answers():
            if not self.running:
                raise LabError(f"{self.name} did not boot (console: {self.console})")
            if time.monotonic() > until:
                raise LabError(f"{self.name}: no ssh after {_BOOT_LIMIT:.0f} s (console: {self.console})")
            if time.monotonic() - told > 3:
                told = time.monotonic()
                say(f"waiting for sshd of {self.name}")
            time.sleep(0.05)
        left = max(5.0, until - time.monotonic())
        state = self.ssh("systemctl is-system-running --wait", check=False, limit=left).stdout.strip()
        if state != "running":
            failed = self.ssh("systemctl --failed --plain --no-legend", check=False, limit=20).stdout
            units = " ".join(line.split()[0] for line in failed.splitlines() if line.strip())
            raise LabError(f"{self.name} is {state or 'not ready'}, failed units: {units or 'none'}")

    def _answers(self) -> bool:
        try:
            with socket.create_connection((str(self.address), 22), timeout=1) as wire:
                return wire.recv(3) == b"SSH"
        except OSError:
            return False

    def _boot_id(self, *, check: bool = True) -> str:
        return self.ssh("cat /proc/sys/kernel/random/boot_id", check=check, limit=20).stdout.strip()

    def _snapshot(self, tag: str) -> Path:
        return paths.disk() / "snapshots" / self.name / tag

    def _make(self, source: Path) -> None:
        """Give the host a disk from `source`, with its own name, address and keys."""
        folder = paths.host_dir(self.name)
        folder.mkdir(parents=True, exist_ok=True)
        if not self._record.exists():
            self._record.write_text(json.dumps({"index": _free_index()}))
        login.make_keys(self.name, self.address)
        disk.snapshot(source, self.root)
        bare.write_identity(self.root, self.name)
        prefix = network.NETWORK.prefixlen
        (self.root / "etc/lab-address").write_text(f"ADDRESS={self.address}/{prefix}\n")
        login.install_keys(self.name, self.root)

    def _power_on(self) -> None:
        """Start the supervisor, unless it runs; end what a dead supervisor left first."""
        network.bring_up()
        services.ensure()
        refs = process.read_refs(supervisor.refs_file(self.name))
        if "supervisor" in refs:
            return
        self._power_off(orderly=False)
        with process.uninterrupted():
            self._begin()

    def _begin(self) -> None:
        """Start the supervisor, and wait until it and nspawn are known."""
        with self.console.open("ab") as log:
            command = [sys.executable, "-m", "tests.lab.supervisor", self.name, str(self.root)]
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=paths.REPOSITORY,
                check=True,
                timeout=20,
            )
        until = time.monotonic() + 20
        while "nspawn" not in process.read_refs(supervisor.refs_file(self.name)):
            if time.monotonic() > until:
                raise LabError(f"{self.name} did not start (console: {self.console})")
            time.sleep(0.02)

    def _power_off(self, *, orderly: bool) -> None:
        refs = process.read_refs(supervisor.refs_file(self.name))
        over, inner, init = (refs.get(role) for role in ("supervisor", "nspawn", "init"))
        if orderly and over:
            say(f"shutting down {self.name}")
            over.send(signal.SIGTERM)
            if not over.wait_gone(_STOP_LIMIT):
                say(f"{self.name} is not down after {_STOP_LIMIT:.0f} s: cutting its power")
        # The host's own PID 1 goes first: the kernel ends everything in it, nspawn tidies up after it, and
        # the supervisor sees an end that is no reboot. The other way round PID 1 would live on without them.
        if init:
            init.send(signal.SIGKILL)
        for ref in (init, inner, over):
            if ref and not ref.wait_gone(5):
                ref.send(signal.SIGKILL)
                if not ref.wait_gone(10):
                    raise LabError(f"{self.name}: process {ref.pid} does not end")
        self._unplug()
        supervisor.remove_cgroups(self.name)
        supervisor.refs_file(self.name).unlink(missing_ok=True)

    def _unplug(self) -> None:
        """The kernel takes a dead host's wire away when it comes to it: the next one needs the name now."""
        wire = f"vb-{self.name}"[:15]
        if Path("/sys/class/net", wire).exists():
            subprocess.run(["ip", "link", "delete", wire], capture_output=True, check=False)


class _ReleasedOnFailure:
    """Leaves no mount, bridge or service behind when the block fails (Ctrl-C too) and no host runs."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            release_if_idle()


def known_hosts() -> list[LabHost]:
    """Every host that was ever up, by name."""
    folder = paths.cache() / "hosts"
    return [LabHost(path.name) for path in sorted(folder.iterdir())] if folder.exists() else []


def release_if_idle() -> None:
    """Unmount the disk, remove the bridge, end the services, unless a host runs. The lock must be held."""
    if any(host.running for host in known_hosts()):
        return
    services.end()
    network.tear_down()
    disk.detach()


def _free_index() -> int:
    taken = set()
    for record in (paths.cache() / "hosts").glob("*/host.json"):
        taken.add(json.loads(record.read_text())["index"])
    for index in range(network.FIRST_HOST, network.LAST_HOST + 1):
        if index not in taken:
            return index
    raise LabError("no address left: python -m tests.lab clean")
