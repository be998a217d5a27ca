"""One small process for each running host: holds nspawn, starts it again after a reboot inside, ends with it.

Run as `python -m tests.lab.supervisor NAME ROOT`. It leaves the caller's session, so it outlives the command
that started it. SIGTERM is an orderly shutdown of the host. After a power cut nspawn is not started again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from tests.lab import nspawn, paths, process

_CGROUPS = Path("/sys/fs/cgroup")


def refs_file(name: str) -> Path:
    """Where the processes of a running host are written."""
    return paths.host_dir(name) / "processes.json"


def cgroup_paths(name: str) -> list[Path]:
    """The host's own cgroup in each hierarchy that systemd inside may manage.

    Two hosts that started in one cgroup would share the subtree and end each other's services. Empty where
    systemd runs this machine: there nspawn gets a scope.
    """
    if Path("/run/systemd/system").exists():
        return []
    roots = [_CGROUPS / "unified", _CGROUPS / "systemd"]
    if (_CGROUPS / "cgroup.procs").exists():
        roots = [_CGROUPS]
    return [root / "gb10-lab" / name for root in roots if (root / "cgroup.procs").exists()]


def remove_cgroups(name: str) -> None:
    """Remove what is left of the host's cgroups, deepest first; then their parent when it is empty."""
    for top in cgroup_paths(name):
        if top.is_dir():
            for folder, _, _ in os.walk(top, topdown=False):
                _rmdir(Path(folder))
        _rmdir(top.parent)


def _rmdir(folder: Path) -> None:
    for _ in range(50):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if folder.name == "gb10-lab":
                return  # another host's cgroup is in it
            time.sleep(0.02)  # the kernel lets go of a cgroup a moment after its last process
        else:
            return


class Supervisor:
    """Keeps one nspawn running until it ends for another reason than a reboot."""

    def __init__(self, name: str, root: Path) -> None:
        self._name = name
        self._root = root
        self._stopping = False
        self._running: subprocess.Popen[bytes] | None = None

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: shut the host down in order."""
        self._stopping = True
        if self._running:
            self._running.terminate()

    def run(self) -> int:
        """Boot until the host is off; the exit status of the last nspawn."""
        for cgroup in cgroup_paths(self._name):
            cgroup.mkdir(parents=True, exist_ok=True)
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
        command = nspawn.boot(self._root, self._name, network=True)
        status = nspawn.REBOOT
        while status == nspawn.REBOOT and not self._stopping:
            self._running = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=nspawn.environment())
            self._write_refs()
            if self._stopping:
                self._running.terminate()
            init = self._find_init()
            self._write_refs(**({"init": init.pid} if init else {}))
            status = self._running.wait()
            if init:
                init.send(signal.SIGKILL)  # outlives a nspawn that was killed, and holds disk and network
                init.wait_gone(10)
            print(f"nspawn ended: {status}", flush=True)
        self._leave()
        return status

    def _write_refs(self, **more: int) -> None:
        assert self._running
        process.write_refs(refs_file(self._name), supervisor=os.getpid(), nspawn=self._running.pid, **more)

    def _find_init(self) -> process.ProcessRef | None:
        """The host's PID 1, as this machine sees it: nspawn's child that is 1 in its own pid namespace."""
        assert self._running
        until = time.monotonic() + 20
        while self._running.poll() is None and time.monotonic() < until:
            for child in process.children(self._running.pid):
                try:
                    status = Path(f"/proc/{child}/status").read_text()
                except OSError:
                    continue
                inside = next(line for line in status.splitlines() if line.startswith("NSpid:"))
                if inside.split()[-1] == "1":
                    return process.ProcessRef.of(child)
            time.sleep(0.02)
        return None

    def _leave(self) -> None:
        for cgroup in cgroup_paths(self._name):
            (cgroup.parents[1] / "cgroup.procs").write_text(str(os.getpid()))
        remove_cgroups(self._name)
        refs_file(self._name).unlink(missing_ok=True)


def main() -> int:
    """Detach from the caller and supervise."""
    name, root = sys.argv[1], Path(sys.argv[2])
    if os.fork():
        os._exit(0)
    os.setsid()
    supervisor = Supervisor(name, root)
    signal.signal(signal.SIGTERM, supervisor.stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
