"""What a path on the host is, without reading more than its hash back."""

from __future__ import annotations

from dataclasses import dataclass

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase


@dataclass(frozen=True)
class PathState:
    """``kind`` as stat names it ("symbolic link" for one in a file's place), ``mode`` four octal digits,
    ``owner`` ``uid:gid``, ``sha256`` of a file."""

    kind: str
    mode: str
    owner: str
    sha256: str


class PathReport(FactBase[PathState | None]):
    """The state of one path, None where there is nothing."""

    def command(self, path: str) -> StringCommand:
        # A link to a folder is as good as the folder. One in place of a file leads nowhere in the container.
        script = (
            'if [ -L "$1" ] && [ ! -d "$1" ]; then stat -c "%a|%u:%g|%F" "$1"; '
            'elif [ -e "$1" ]; then stat -L -c "%a|%u:%g|%F" "$1"; '
            'if [ -f "$1" ]; then sha256sum < "$1"; fi; else echo absent; fi'
        )
        return StringCommand("sh", "-c", QuoteString(script), "-", QuoteString(path))

    def process(self, output: list[str]) -> PathState | None:
        if output[0] == "absent":
            return None
        mode, owner, kind = output[0].split("|")
        digest = output[1].split()[0] if len(output) > 1 else ""
        return PathState(kind, mode.zfill(4), owner, digest)
