"""One result for a terminal."""

from __future__ import annotations

from rich.table import Table

from gb10.bench.result import ClientsRow, Figure, Rate, Result


def table(result: Result) -> Table:
    """One line for each model."""
    made = Table(title=f"{result.host} {result.started:%Y-%m-%d %H:%M} UTC", title_justify="left")
    made.add_column("model", overflow="fold")
    for heading in ("load s", "memory\nMiB", "prompt\ntok/s", "generation\ntok/s", "coding", "tools"):
        made.add_column(heading, justify="right")
    made.add_column("runs on")
    for name, found in result.models.items():
        memory = found.load.memory_mib if found.load else None
        made.add_row(
            name,
            f"{found.load.seconds:.1f}" if found.load else "-",
            "-" if memory is None else str(memory),
            _figure(found.speed.prompt if found.speed else None),
            _figure(found.speed.generation if found.speed else None),
            _rate(found.coding),
            _rate(found.tools),
            (found.device.name if found.device else "") or "-",
            style="red" if found.faults else None,
        )
    return made


def clients_table(result: Result) -> Table | None:
    """One line for each number of clients; None where nobody measured them."""
    made = Table(title="Clients at once", title_justify="left")
    made.add_column("model", overflow="fold")
    made.add_column("slots")
    made.add_column("clients x tokens", justify="right")
    for heading in ("tok/s", "with prompts", "first token s", "longest s", "failed"):
        made.add_column(heading, justify="right")
    for name, found in result.models.items():
        for way, rows in (("as set", found.clients), *found.slots.items()):
            for row in rows:
                made.add_row(name, way, f"{row.clients} x {row.prompt_tokens}", *_row(row))
    return made if made.row_count else None


def _row(row: ClientsRow) -> list[str]:
    if row.skipped:
        return [f"skipped: {row.skipped}"]
    first = row.first_token
    return [
        "-" if row.aggregate is None else f"{row.aggregate:.1f}",
        "-" if row.total is None else f"{row.total:.1f}",
        "-" if first is None else f"{first.median:.2f}",
        "-" if first is None else f"{max(first.runs):.2f}",
        str(row.failures),
    ]


def _figure(figure: Figure | None) -> str:
    return "-" if figure is None else f"{figure.median:.1f} ± {figure.spread:.1f}"


def _rate(rate: Rate | None) -> str:
    return "-" if rate is None else f"{rate.passed}/{rate.of}"
