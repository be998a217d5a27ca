"""Processes that outlive the command that started them, named so that a recycled pid is never signalled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessRef:
    """A process by pid and start time (clock ticks since boot, field 22 of /proc/PID/stat)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessRef | None:
        """The process that has `pid` now; None when there is none or it is a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """True while this very process runs."""
        return ProcessRef.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_gone(self, seconds: float) -> bool:
        """Wait up to `seconds`; True when the process has ended."""
        until = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def end(self, seconds: float = 5.0) -> None:
        """SIGTERM, then SIGKILL when it has not ended within `seconds`."""
        self.send(signal.SIGTERM)
        if not self.wait_gone(seconds):
            self.send(signal.SIGKILL)
            self.wait_gone(seconds)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait for the end of the block.

    Whoever starts a process that goes into the background must come to know it: one that nobody knows keeps
    its port and its mount.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda number, _frame: came.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def children(pid: int) -> list[int]:
    """The pids of a process's children; empty when it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def write_refs(path: Path, **pids: int) -> None:
    """Write the processes with these pids to `path` (JSON, name to [pid, started]), atomically."""
    refs = {name: ref for name, pid in pids.items() if (ref := ProcessRef.of(pid))}
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({name: [ref.pid, ref.started] for name, ref in refs.items()}))
    beside.replace(path)


def read_refs(path: Path) -> dict[str, ProcessRef]:
    """The processes of a file made by `write_refs` that still run; empty when there is no such file."""
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    refs = {name: ProcessRef(*pair) for name, pair in raw.items()}
    return {name: ref for name, ref in refs.items() if ref.alive}
