"""What taking over a hand-made router has to say: what was taken, what not and why, what a deploy changes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gb10.faults import Fault
from gb10.printable import LINES, printable

Kind = Literal["taken", "dropped", "changed", "to do"]
"""``taken``: it is in the new files. ``dropped``: it is not, and nothing is lost by it or nothing can be
done. ``changed``: a deploy will serve otherwise than the old router did, on purpose. ``to do``: only you
know."""

TITLES: dict[Kind, str] = {
    "taken": "Taken",
    "dropped": "Dropped",
    "changed": "What a deploy will change on purpose",
    "to do": "For you to do",
}

_NAME = re.compile(r"(?i)(api[-_]?key(?!s?[-_]?file)|token$|passw|secret)")
_VALUE = re.compile(r"(?i)(\bhf_|\bsk-|\bbearer\s+)[\w.~+/-]{8,}")
_ASSIGNED = re.compile(
    r"(?i)(?P<name>(?:api[-_ ]?key(?!s?[-_ ]?file)|token|passw|secret)\w*[\"']?"
    r"(?:\s*[=:]\s*|\s+(?=\S*\d)))\S+"
)
HIDDEN = "(not shown)"


@dataclass(frozen=True)
class Note:
    """One line of the report: ``where`` is ``file:line`` or the file, ``what`` the thing, ``why`` the
    rest."""

    kind: Kind
    where: str
    what: str
    why: str


def is_secret_name(name: str) -> bool:
    """Whether an option or a variable of this name holds a key, a token or a password."""
    return bool(_NAME.search(name))


def is_secret_value(value: str) -> bool:
    """Whether a value looks like a key or a token, whatever its name is."""
    return bool(_VALUE.search(value))


def masked(text: str) -> str:
    """A text without what looks like a secret in it: nothing of one is ever printed or written."""
    return _ASSIGNED.sub(lambda match: match["name"] + HIDDEN, _VALUE.sub(HIDDEN, text))


def shown(key: str, value: str) -> str:
    """``key = value`` for the report, without the value where it is a secret by its name."""
    return f"{key} = {HIDDEN if is_secret_name(key) else value}"


def report_json(notes: Iterable[Note], faults: Iterable[Fault], files: Iterable[str]) -> dict[str, Any]:
    """The report as one object; ``ok`` says that catalogue and data pass every check."""
    notes, faults = list(notes), list(faults)
    rows: dict[str, Any] = {
        kind.replace(" ", "_"): [
            {"where": note.where, "what": masked(note.what), "why": masked(note.why)}
            for note in notes
            if note.kind == kind
        ]
        for kind in TITLES
    }
    return {"ok": not faults, "files": list(files), **rows, "faults": [asdict(fault) for fault in faults]}


def report_view(notes: Iterable[Note]) -> RenderableType:
    """The report as tables, one for each kind that has a line."""
    notes = list(notes)
    parts: list[RenderableType] = []
    for kind, title in TITLES.items():
        rows = [note for note in notes if note.kind == kind]
        if not rows:
            continue
        table = Table(title=f"{title} ({len(rows)})", title_justify="left", pad_edge=False, expand=False)
        for name in ("where", "what", "to" if kind == "taken" else "why"):
            table.add_column(name, overflow="fold")
        for note in rows:
            # Text: a [section] must not be read as markup.
            table.add_row(
                *(Text(printable(masked(text), LINES)) for text in (note.where, note.what, note.why))
            )
        parts.append(table)
    return Group(*parts)
