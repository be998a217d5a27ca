"""Part of the drift probe: what a file is, in one line that can be compared."""

from __future__ import annotations

import hashlib
import os
import re
import stat

KEY_LENGTH = 16  # characters
DANGLING = "0777 0:0"


def digest(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def file_state(path: str) -> str:
    """``MODE UID:GID SHA256`` of a file, with `` -> TARGET`` behind it where a link leads there; ``MODE
    UID:GID`` of a folder, empty where there is nothing."""
    try:
        status = os.stat(path)
    except OSError:
        return f"{DANGLING} -> {os.readlink(path)}" if os.path.islink(path) else ""
    shown = f"{status.st_mode & 0o7777:04o} {status.st_uid}:{status.st_gid}"
    if not stat.S_ISREG(status.st_mode):
        return shown
    link = f" -> {os.readlink(path)}" if os.path.islink(path) else ""
    return f"{shown} {digest(content(path) or b'')}{link}"


def key_state(path: str) -> str:
    """As `file_state`, and of the content no more than "empty" where there is no key in it, "short" where one
    could be guessed."""
    state, link, target = file_state(path).partition(" -> ")
    mode, _, owner = " ".join(state.split()[:2]).partition(" ")
    keys = re.findall(rb"^[^#\s].*", content(path) or b"", re.MULTILINE)
    said = " empty" if not keys else " short" if min(map(len, keys)) < KEY_LENGTH else ""
    return f"{mode} {owner}{said}{link}{target}" if mode else ""
