"""Texts that came from a box, made harmless for a terminal.

Whoever has a process, a container or a file on the box chooses its name, and so what a table here shows: an
escape sequence in it would move the cursor over other lines, and could turn a red line green.
"""

from __future__ import annotations

import re
from typing import Any

# C0, DEL and C1; line and paragraph separators; what turns the direction of writing; halves of characters,
# which no output can take.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LINES = "\n\t"  # what a text of several lines keeps


def printable(text: str, keep: str = "") -> str:
    """``text`` with every control character but those in ``keep`` as people write it: ``\\x1b``."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else _named(match[0]), text)


def _named(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def all_printable(value: Any, keep: str = LINES) -> Any:
    """The same for every text, name and key of a JSON value."""
    if isinstance(value, str):
        return printable(value, keep)
    if isinstance(value, dict):
        return {all_printable(name, keep): all_printable(inner, keep) for name, inner in value.items()}
    if isinstance(value, list):
        return [all_printable(inner, keep) for inner in value]
    return value
