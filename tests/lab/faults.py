"""What goes wrong on the stand-in hub when a test wants it: by path, from Python or by a control file."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """What goes wrong for one path. The fields combine.

    status: answer with this HTTP status. close_after: cut the connection after so many bytes of the body.
    corrupt: flip the file's first byte. bytes_per_s: slow down to that many bytes a second. drop_headers:
    leave out the X-Linked-* headers, as for a file that is not in LFS. wrong_etag: announce another sha256.
    times: so many requests are hit, then the path heals (None: all).
    """

    status: int | None = None
    close_after: int | None = None
    corrupt: bool = False
    bytes_per_s: int | None = None
    drop_headers: bool = False
    wrong_etag: bool = False
    times: int | None = None


class Faults:
    """Faults by path suffix, set in the process or by a control file (JSON: suffix to the fields of a Fault).

    A suffix such as "tiny-a.gguf" hits the resolve path and the CDN path of that file alike; "/cdn/…" or
    "resolve/main/tiny-a.gguf" hit one of them. The control file is read anew whenever it changes.
    """

    def __init__(self, control: Path | None = None) -> None:
        self._control = control
        self._seen = -1
        self._faults: dict[str, Fault] = {}
        self._hits: dict[str, int] = {}
        self._lock = threading.Lock()

    def set(self, suffix: str, fault: Fault) -> None:
        """Let requests whose path ends with `suffix` go wrong."""
        with self._lock:
            self._faults[suffix] = fault
            self._hits[suffix] = 0

    def clear(self) -> None:
        """Heal everything."""
        with self._lock:
            self._faults.clear()

    def hit(self, path: str) -> Fault:
        """The fault for this request, counted; an empty one when nothing is wrong."""
        with self._lock:
            self._read_control()
            for suffix, fault in self._faults.items():
                if path.endswith(suffix) and (fault.times is None or self._hits[suffix] < fault.times):
                    self._hits[suffix] += 1
                    return fault
        return Fault()

    def _read_control(self) -> None:
        if self._control is None:
            return
        try:
            changed = self._control.stat().st_mtime_ns
            raw = self._control.read_text()
        except OSError:
            changed, raw = 0, "{}"
        if changed != self._seen:
            self._seen = changed
            self._faults = {suffix: Fault(**fields) for suffix, fields in json.loads(raw).items()}
            self._hits = dict.fromkeys(self._faults, 0)


def write_faults(control: Path, faults: dict[str, Fault]) -> None:
    """Write the control file of a running hub, atomically; an empty dict heals everything."""
    beside = control.with_suffix(".new")
    beside.write_text(json.dumps({suffix: asdict(fault) for suffix, fault in faults.items()}))
    beside.replace(control)
