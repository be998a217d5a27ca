"""A report for people. Pure: a report in, text out."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gb10.drift.report import IN_WORDS, HostReport, Item, Report

COLORS = {"clean": "green", "drift": "yellow", "unknown": "red"}
WIDE = 60  # characters of a value in the table; the whole is in --json and --explain


def headline(host: HostReport) -> str:
    """One line: the box, how it stands, and since which deploy."""
    failed = "the deploy failed" if host.deploy == "failed" else ""
    if host.state == "unknown":
        return f"{host.host}: {failed and f'{failed}; '}could not tell: {host.reason}"
    count = len(host.items)
    word = "clean" if host.state == "clean" else f"{count} difference{'s' if count != 1 else ''}"
    parts = [failed, word, f"{len(host.ignored)} ignored" if host.ignored else "", _deployed(host)]
    return f"{host.host}: {', '.join(part for part in parts if part)}"


def _deployed(host: HostReport) -> str:
    if host.deployed is None:
        return "no deploy recorded"
    revision = host.deployed.revision[:12] or "no revision"
    dirty = " with uncommitted changes" if host.deployed.dirty else ""
    return f"deployed {host.deployed.time} by {host.deployed.by} ({revision}{dirty})"


def table(report: Report) -> RenderableType:
    """Every box: its headline, and a table of what differs."""
    parts: list[RenderableType] = []
    for host in report.hosts:
        color = COLORS["unknown" if host.deploy == "failed" else host.state]
        parts.append(Text(headline(host), style=color))
        if host.items:
            parts.append(_items(host))
        parts += [
            Text(f"  ignored until {one.expires}: {one.item.id} ({one.owner}: {one.reason})", style="dim")
            for one in host.ignored
        ]
        parts += [_diff(item.diff) for item in host.items if item.diff]
    return Group(*parts)


def _items(host: HostReport) -> Table:
    shown = Table("item", "should be", "is", "changed", "put right by", pad_edge=False, box=None)
    for item in host.items:
        cells = (item.id, _cut(item.should), _cut(item.is_), IN_WORDS[item.made], item.do)
        shown.add_row(*(Text(cell) for cell in cells))
    return shown


def _diff(diff: str) -> Text:
    # Not rich's Syntax: it fills every line with blanks, as wide as a pipe is taken to be.
    text = Text(overflow="fold")
    for line in diff.splitlines(keepends=True):
        text.append(line, style={"+": "green", "-": "red", "@": "cyan"}.get(line[:1], ""))
    text.rstrip()
    return text


def _cut(text: str) -> str:
    return text if len(text) <= WIDE else f"{text[: WIDE - 1]}…"


def lines(report: Report) -> Iterator[str]:
    """For cron and mail: one plain line for each difference and each box that is unknown; nothing when all is
    clean."""
    for host in report.hosts:
        if host.state == "unknown" or host.deploy == "failed":
            yield headline(host)
        for item in host.items:
            what = f"should be {_cut(item.should)}, is {_cut(item.is_)}"
            yield f"{host.host}: {item.id}: {what} ({IN_WORDS[item.made]})"


def explained(host: HostReport, item: Item) -> str:
    """Everything about one difference."""
    why = {
        "by-hand": "the box was changed since the last deploy, and what is wanted was not",
        "repository": "what is wanted has changed since the last deploy, and the box was not",
        "both": "since the last deploy the box was changed, and what is wanted too",
        "new": "neither the box's files nor what is wanted: it came up by itself, or no deploy is recorded",
    }[item.made]
    rows = [
        f"{host.host}: {item.id}",
        f"  should be  {item.should}",
        f"  is         {item.is_}",
        f"  changed    {IN_WORDS[item.made]}: {why}",
        f"  last       {_deployed(host)}",
        f"  put right  {item.do}",
        *(f"  would run  {command}" for command in item.commands),
    ]
    if item.diff:
        rows += ["", item.diff.rstrip("\n")]
    return "\n".join(rows)


def print_table(report: Report, err: bool = False) -> None:
    """`table` on standard output (or error), in colors where that is a terminal."""
    # A pipe has no width: lines must not be folded there.
    width = None if Console(stderr=err).is_terminal else 400
    Console(width=width, highlight=False, stderr=err).print(table(report))
