"""Taking one repository out of somebody else's apt source file, so that it is named only once."""

from __future__ import annotations

import re

NOTE = "# taken over by gb10: "


def without_repository(path: str, content: str, repository: str) -> str:
    """``content`` with every source that names ``repository`` switched off, all else to the letter.

    Works on the one-line format (``.list``: the line becomes a comment) and on deb822 (``.sources``: the
    stanza gets ``Enabled: no``).
    """
    if path.endswith(".sources"):
        # A stanza ends at an empty line; the separators are kept as they are.
        parts = re.split(r"(\n[ \t]*\n)", content)
        return "".join(_switched_off(part) if _names(part, repository) else part for part in parts)
    lines = content.splitlines(keepends=True)
    return "".join(NOTE + line if _names(line, repository) else line for line in lines)


def _names(text: str, repository: str) -> bool:
    return any(repository in line and not line.lstrip().startswith("#") for line in text.splitlines())


def _switched_off(stanza: str) -> str:
    lines = stanza.split("\n")
    kept = [line for line in lines if not re.match(r"enabled\s*:", line, re.IGNORECASE)]
    first = next(number for number, line in enumerate(kept) if line and not line.lstrip().startswith("#"))
    return "\n".join([*kept[:first], "Enabled: no", *kept[first:]])
