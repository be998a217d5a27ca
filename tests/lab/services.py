"""The lab's background services on the bridge's address: the first `up` starts, the last `down` ends them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.lab import llama, network, paths, process, recipe
from tests.lab.errors import LabError
from tests.lab.progress import say

_START_LIMIT = 120.0
_LISTEN_LIMIT = 10.0


def _folder() -> Path:
    return paths.cache() / "services"


def _key() -> str:
    """Services of another key were started from other files: they are ended and started anew."""
    modules = [
        paths.HERE / name
        for name in (
            "web.py",
            "hub.py",
            "faults.py",
            "models.py",
            "architectures.py",
            "aptrepo.py",
            "network.py",
        )
    ]
    return recipe.content_key(*modules, paths.STANDINS / "toolkit")


def running() -> dict[str, process.ProcessRef]:
    """The services that run, by name (http, git)."""
    found: dict[str, process.ProcessRef] = {}
    for file in _folder().glob("*.json"):
        found |= process.read_refs(file)
    return found


def ensure() -> None:
    """Start what does not run, and wait until it listens. The bridge must be up and the lock held."""
    _folder().mkdir(parents=True, exist_ok=True)
    mine = {name: _folder() / f"{name}-{_key()}.json" for name in ("http", "git")}
    for file in _folder().glob("*.json"):
        if file not in mine.values():
            _end(file)
    with process.uninterrupted():
        _start_missing(mine)


def _start_missing(mine: dict[str, Path]) -> None:
    if "http" not in process.read_refs(mine["http"]):
        command = [sys.executable, "-m", "tests.lab.web", str(mine["http"])]
        say("start the lab's model hub and package repository")
        _start("http", command, mine["http"])
    if "git" not in process.read_refs(mine["git"]):
        pid_file = _folder() / "git.pid"
        pid_file.unlink(missing_ok=True)
        command = ["git", "daemon", "--reuseaddr", "--detach", "--export-all", f"--pid-file={pid_file}"]
        command += [f"--listen={network.GATEWAY}", f"--port={network.GIT_PORT}"]
        command += [f"--base-path={llama.repository().parent}", "--log-destination=none"]
        _start("git", command, mine["git"], pid_file)


def end() -> None:
    """End what runs."""
    for file in _folder().glob("*.json"):
        _end(file)


def _start(name: str, command: list[str], refs: Path, pid_file: Path | None = None) -> None:
    """Run a command that puts itself into the background, and wait for its process to be known."""
    log = paths.logs() / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        started = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=paths.REPOSITORY,
            check=False,
            timeout=_START_LIMIT,
        )
    if started.returncode:
        raise LabError(f"the lab's {name} service did not start (log: {log})")
    until = time.monotonic() + _LISTEN_LIMIT
    while True:
        if pid_file and pid_file.exists() and pid_file.read_text().strip():
            process.write_refs(refs, **{name: int(pid_file.read_text())})
        if name in process.read_refs(refs):
            return
        if time.monotonic() > until:
            raise LabError(f"the lab's {name} service did not start (log: {log})")
        time.sleep(0.02)


def _end(file: Path) -> None:
    for ref in process.read_refs(file).values():
        ref.end()
    file.unlink(missing_ok=True)
