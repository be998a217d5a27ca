"""What the watch reads of the kernel: memory, its pressure, and the kernel's log.

Imported by gb10_watch.py; python3 standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

import gb10_router as router
from gb10_watch_signals import text_of
from gb10_watch_state import Event

_OOM = re.compile(r"[Oo]ut of memory: Killed process (\d+) \(([^)]*)\)")
_DRIVER = re.compile(r"NVRM: .*(?:Xid|GPU has fallen off|RmInitAdapter failed)|nvidia-uvm: .*[Ee]rror")


def memory(proc: str = "/proc") -> dict[str, int | None]:
    """MiB: ``total``, ``available``, ``swap_used``; None for what the kernel does not say."""
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text_of(f"{proc}/meminfo"), re.MULTILINE))

    def mib(key: str) -> int | None:
        return int(values[key]) // 1024 if key in values else None

    total, free = mib("SwapTotal"), mib("SwapFree")
    used = None if total is None or free is None else total - free
    return {"total": mib("MemTotal"), "available": mib("MemAvailable"), "swap_used": used}


def pressure_percent(proc: str = "/proc") -> float | None:
    """Share of the last 60 s in which no process could go on for want of memory."""
    found = re.search(r"^full .*avg60=([0-9.]+)", text_of(f"{proc}/pressure/memory"), re.MULTILINE)
    return float(found[1]) if found else None


class KernelLog:
    """New lines of the kernel's log, from now on. ``path`` is /dev/kmsg or a plain file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = -1
        self.fault = ""  # why it cannot be read
        self.open()

    def open(self) -> None:
        try:
            self.file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self.file, 0, os.SEEK_END)
            self.fault = ""
        except OSError as error:
            self._close(error)

    def _close(self, error: OSError) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file, self.fault = -1, f"{self.path}: {error.strerror}"

    def lines(self) -> Iterator[str]:
        """What has come since the last call; nothing where the log cannot be read."""
        if self.file < 0:
            self.open()
        for _ in range(1000 if self.file >= 0 else 0):
            try:
                record = os.read(self.file, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue  # the kernel has overwritten lines that nobody has read
            except OSError as error:
                self._close(error)
                return
            if not record:
                return
            yield from record.decode(errors="replace").splitlines()


def kernel_events(lines: Iterable[str], children: Mapping[str, int]) -> tuple[Event, ...]:
    """OOM kills and driver errors among lines of the kernel's log. ``children``: model name to process id."""
    names = {pid: name for name, pid in children.items()}
    events = []
    for line in lines:
        text = router.one_line(line.partition(";")[2] or line)
        killed = _OOM.search(text)
        if killed:
            pid = int(killed[1])
            who = f"model {names[pid]}" if pid in names else killed[2]
            events.append(
                Event("oom", f"the kernel has killed {who} (process {pid}) for want of memory", pid)
            )
        elif _DRIVER.search(text):
            events.append(Event("driver", f"the GPU's driver says: {text[:200]}"))
    return tuple(events[:20])
