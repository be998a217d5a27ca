"""Part of several probes: what the watch has written, which runs as another user than root."""

from __future__ import annotations

import os
import stat

MOST_BYTES = 1 << 20


def others_text(path: str) -> str:
    """The text of a small file. Raises OSError, also for what is none: a pipe would hold root up, and a link
    could lead anywhere."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(file, encoding="utf-8", errors="replace") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise OSError(f"{path} is no small file")
        return opened.read(MOST_BYTES)
