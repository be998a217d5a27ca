"""Files and folders put in place so that a power cut leaves the old one or the new one, never half.

pyinfra's own ``files.put`` copies over the target; here the content goes to a temporary name in the
target's folder, gets its owner and mode there, is synced, and then takes the name in one step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from io import BytesIO
from uuid import uuid4

from pyinfra.api.command import FileUploadCommand, QuoteString, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from gb10.facts.files import PathReport
from gb10.facts.shared import look
from gb10.operations import Commands
from gb10.rendering import PlacedFile

UPLOAD = "/tmp/gb10-upload-"  # noqa: S108  (and a name of its own for each)
# $1 upload, $2 target, $3 owner, $4 mode. Two deploys at once share the temporary name: the folder is locked.
_INTO_PLACE = (
    'set -e; new="$2.gb10-new"; mkdir -p "$(dirname "$2")"; exec 9< "$(dirname "$2")"; flock 9; '
    'cp "$1" "$new"; rm -f "$1"; '
    'chown "$3" "$new"; chmod "$4" "$new"; sync "$new"; mv -T "$new" "$2"; sync "$(dirname "$2")"'
)


# From /: cp of coreutils 9.1 loses the leading slash of a path with --parents.
SET_ASIDE = (
    'set -e; aside="$1"; shift; mkdir -p "$aside"; cd /; '
    'for file; do cp -a --parents "$file" "$aside"; rm -f "$file"; done'
)


# $1 path, $2 owner. Another deploy may have made the key just now: its router has read that one. A link's
# target is nowhere in the container: the key itself comes in its place.
_KEY_MADE = (
    'set -e; umask 077; mkdir -p "$(dirname "$1")"; exec 9< "$(dirname "$1")"; flock 9; '
    "if LC_ALL=C grep -q '^[^#[:space:]]' \"$1\" 2>/dev/null; then "
    '[ -L "$1" ] || exit 0; cat "$1" > "$1.gb10-new"; else '
    '[ ! -s "$1" ] || mv -T "$1" "$1.set-aside-$(date -u +%Y%m%dT%H%M%SZ)"; '
    "python3 -I -c 'import secrets; print(secrets.token_urlsafe(32))' > \"$1.gb10-new\"; fi; "
    'chown "$2" "$1.gb10-new"; chmod 0600 "$1.gb10-new"; sync "$1.gb10-new"; mv -T "$1.gb10-new" "$1"'
)


def set_aside(folder: str, paths: Iterable[str]) -> StringCommand:
    """Moves files below ``folder``, each with its whole path. For use inside an operation."""
    words = (QuoteString(path) for path in paths)
    return StringCommand("sh", "-c", QuoteString(SET_ASIDE), "-", QuoteString(folder), *words)


def file_commands(placed: PlacedFile) -> Commands:
    """The commands that make ``placed`` so, none when it is. For use inside an operation."""
    state = look(host, PathReport, path=placed.path)
    content = placed.content.encode()
    if state is None or state.sha256 != hashlib.sha256(content).hexdigest():
        # A name of its own: two runs at once must not write into each other's upload.
        upload = f"{UPLOAD}{uuid4().hex}"
        # Uploaded as the login user, whatever becomes of it later is root's.
        yield FileUploadCommand(BytesIO(content), upload, _sudo=False)
        yield StringCommand(
            "sh",
            "-c",
            QuoteString(_INTO_PLACE),
            "-",
            *(QuoteString(part) for part in (upload, placed.path, placed.owner, placed.mode)),
        )
        return
    if state.owner != placed.owner:
        yield StringCommand("chown", placed.owner, QuoteString(placed.path))
    if state.mode != placed.mode:
        yield StringCommand("chmod", placed.mode, QuoteString(placed.path))


@operation()
def file(placed: PlacedFile) -> Commands:
    """``placed`` has this content, owner and mode."""
    yield from file_commands(placed)


@operation()
def folder(path: str, mode: str = "0755", owner: str = "0:0") -> Commands:
    """The folder exists with this owner (``uid:gid``) and mode; what is in it is left alone."""
    state = look(host, PathReport, path=path)
    if state is None:
        yield StringCommand("mkdir", "-p", QuoteString(path))
        state_owner, state_mode = "", ""
    else:
        state_owner, state_mode = state.owner, state.mode
    if state_owner != owner:
        yield StringCommand("chown", owner, QuoteString(path))
    if state_mode != mode:
        yield StringCommand("chmod", mode, QuoteString(path))


@operation()
def secret(path: str, owner: str) -> Commands:
    """A random secret, made on the host and never seen here: 0600, 256 bits as text.

    One that is there is kept. An empty file is what a full disk leaves behind; one of comments alone would
    be a lane without a key: that is set aside, and a key is made.
    """
    state = look(host, PathReport, path=path)
    empty = hashlib.sha256(b"").hexdigest()
    if state is None or state.sha256 == empty or state.kind == "symbolic link":
        yield StringCommand("sh", "-c", QuoteString(_KEY_MADE), "-", QuoteString(path), owner)
        return
    if state.owner != owner:
        yield StringCommand("chown", owner, QuoteString(path))
    if state.mode != "0600":
        yield StringCommand("chmod", "0600", QuoteString(path))
