"""One result for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gb10.bench.result import ClientsRow, Figure, Rate, Result

FRAME: dict[str, Any] = {
    "box": SIMPLE_HEAD,
    "padding": (0, 1, 0, 0),
    "pad_edge": False,
    "show_edge": False,
    "title_justify": "left",
}


def cell(text: str) -> Text:
    """``text`` as it is: a bracket in a model's name is no markup, and nothing in it moves the cursor."""
    return Text("".join(c if c.isprintable() else " " for c in text))


def table(result: Result) -> Table:
    """One line for each model."""
    broken_off = ", broken off" if result.interrupted else ""
    made = Table(title=cell(f"{result.host} {result.started:%Y-%m-%d %H:%M} UTC{broken_off}"), **FRAME)
    made.add_column("model", overflow="fold")
    for heading in ("load\ns", "memory\nMiB", "prompt\ntok/s", "generation\ntok/s", "coding", "tools"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("runs on", overflow="fold")
    for name, found in result.models.items():
        memory = found.load.memory_mib if found.load else None
        made.add_row(
            cell(name),
            f"{found.load.seconds:.1f}" if found.load else "-",
            "-" if memory is None else str(memory),
            _figure(found.speed.prompt if found.speed else None),
            _figure(found.speed.generation if found.speed else None),
            _rate(found.coding),
            _rate(found.tools),
            cell((found.device.name if found.device else "") or "-"),
            style="red" if found.faults else None,
        )
    return made


def clients_view(result: Result) -> Iterator[RenderableType]:
    """One line for each number of clients, then what was skipped; nothing where nobody measured them."""
    made = Table(title="Clients at once", **FRAME)
    made.add_column("model", overflow="fold")
    made.add_column("slots")
    headings = ("clients\nx tokens", "tok/s", "tok/s with\nprompts", "first\ntoken s", "slowest\ns", "failed")
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    skipped: dict[str, list[str]] = {}
    for name, found in result.models.items():
        for way, rows in (("as set", found.clients), *found.slots.items()):
            for row in rows:
                what = f"{row.clients} x {row.prompt_tokens}"
                if row.skipped:
                    skipped.setdefault(f"{name} ({way}): {row.skipped}", []).append(what)
                else:
                    made.add_row(cell(name), cell(way), what, *_row(row))
    if made.row_count:
        yield made
    for why, loads in skipped.items():
        skip = cell(f"skipped {', '.join(loads)} of {why}")
        skip.stylize("dim")
        yield skip


def _row(row: ClientsRow) -> list[str]:
    first = row.first_token
    return [
        "-" if row.aggregate is None else f"{row.aggregate:.1f}",
        "-" if row.total is None else f"{row.total:.1f}",
        "-" if first is None else f"{first.median:.2f}",
        "-" if first is None else f"{max(first.runs):.2f}",
        str(row.failures),
    ]


def _figure(figure: Figure | None) -> str:
    return "-" if figure is None else figure.words


def _rate(rate: Rate | None) -> str:
    return "-" if rate is None else rate.words
