"""Which files an operation is about, and what would change in them. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from io import BytesIO

from pyinfra.api.command import FileUploadCommand

from gb10.drift.mask import masked
from gb10.drift.plan import Planned
from gb10.printable import LINES, printable


def targets(one: Planned, paths: Collection[str]) -> list[str]:
    """Those of ``paths`` that the operation puts into place, or gives another owner or mode."""
    found = (Planned(one.name, (command,)).target(paths) for command in one.commands)
    return list(dict.fromkeys(path for path in found if path is not None))


def contents(one: Planned, paths: Collection[str]) -> dict[str, str]:
    """Each of ``paths`` that the operation writes, to what it would hold then: an upload goes to the path of
    the command that takes it."""
    found: dict[str, str] = {}
    upload, content = "", ""
    for command in one.commands:
        if isinstance(command, FileUploadCommand) and isinstance(command.src, BytesIO):
            upload, content = str(command.dest), command.src.getvalue().decode(errors="replace")
            continue
        path = Planned(one.name, (command,)).target(paths)
        if upload and path is not None and upload in str(command):
            found[path] = content
    return found


def unified(path: str, should: str, is_: str | None, known: Sequence[str]) -> str:
    """The diff from what is on the box to what should be, secrets masked."""
    before, after = (
        printable(masked(text, known), LINES).splitlines(keepends=True) for text in (is_ or "", should)
    )
    lines = difflib.unified_diff(before, after, f"{path} (box)", f"{path} (repository)", n=2)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
