"""Two results side by side: what was lost, and what is within the spread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table

from gb10.bench.result import Figure, ModelResult, Rate, Result
from gb10.bench.summary import FRAME

RATE_SLACK = 1  # one task more or less is no finding


@dataclass(frozen=True)
class Change:
    """One figure of one model in both results, as texts; ``share`` in percent of the first, None where
    there is none. ``verdict``: lost, won, within the spread, or not compared with its reason."""

    model: str
    what: str
    before: str
    after: str
    share: float | None
    verdict: str

    @property
    def lost(self) -> bool:
        return self.verdict == "lost"


def compare(first: Result, second: Result) -> list[Change]:
    """Every figure that a model has in one of both; a model of the first that is missing in the second
    too."""
    changes: list[Change] = []
    for model in dict.fromkeys([*first.models, *second.models]):
        one, other = first.models.get(model), second.models.get(model)
        if one is None or other is None:
            where = "second" if other is None else "first"
            changes.append(Change(model, "all", "", "", None, f"not in the {where}"))
            continue
        changes += _model(model, one, other)
    return changes


def _model(model: str, one: ModelResult, other: ModelResult) -> Iterator[Change]:
    if one.speed or other.speed:
        for what in ("prompt", "generation"):
            before = getattr(one.speed, what) if one.speed else None
            after = getattr(other.speed, what) if other.speed else None
            yield _figure(model, f"{what}, tok/s", before, after)
    devices = [found.device.state if found.device else "" for found in (one, other)]
    if devices[0] == "answered" and devices[1] not in ("answered", ""):
        yield Change(model, "device", "accelerator", devices[1], None, "lost")
    if one.load or other.load:
        seconds = [f"{found.load.seconds:.1f}" if found.load else "-" for found in (one, other)]
        yield Change(model, "load, s", seconds[0], seconds[1], None, "one run: not judged")
    rows = [{(row.kind, row.clients): row for row in found.clients} for found in (one, other)]
    for key in dict.fromkeys([*rows[0], *rows[1]]):
        pair = [found.get(key) for found in rows]
        texts = ["-" if row is None or row.aggregate is None else f"{row.aggregate:.1f}" for row in pair]
        failures = [row.failures if row else 0 for row in pair]
        verdict = "lost" if failures[1] > failures[0] else "one run: not judged"
        more = f" ({failures[1]} failed)" if failures[1] else ""
        if texts != ["-", "-"] or failures[1]:
            yield Change(
                model, f"{key[1]} clients, {key[0]}, tok/s", texts[0], texts[1] + more, None, verdict
            )
    for what, rate, later in (("coding", one.coding, other.coding), ("tools", one.tools, other.tools)):
        if rate or later:
            yield _rate(model, what, rate, later)


def _figure(model: str, what: str, before: Figure | None, after: Figure | None) -> Change:
    texts = ["-" if one is None else f"{one.median:.1f} ± {one.spread:.1f}" for one in (before, after)]
    if before is None or after is None:
        # What cannot be measured any more is a loss; what could not be before is none.
        return Change(model, what, texts[0], texts[1], None, "lost" if after is None else "not in the first")
    share = (after.median / before.median - 1) * 100 if before.median else None
    verdict = "within the spread"
    if after.highest < before.lowest:
        verdict = "lost"
    elif after.lowest > before.highest:
        verdict = "won"
    return Change(model, what, texts[0], texts[1], share, verdict)


def _rate(model: str, what: str, before: Rate | None, after: Rate | None) -> Change:
    texts = ["-" if one is None else f"{one.passed}/{one.of}" for one in (before, after)]
    if before is None or after is None or set(before.tasks) != set(after.tasks):
        return Change(model, f"{what} tasks", texts[0], texts[1], None, "other tasks: not compared")
    step = after.passed - before.passed
    verdict = "lost" if step < -RATE_SLACK else "won" if step > RATE_SLACK else "within one task"
    return Change(model, f"{what} tasks", texts[0], texts[1], None, verdict)


_STYLE = {"lost": "bold red", "won": "green"}


def table(first: Result, second: Result, changes: list[Change]) -> Table:
    """The changes for a terminal."""
    made = Table(title=f"{_name(first)} against {_name(second)}", **FRAME)
    for heading in ("model", "what"):
        made.add_column(heading, overflow="fold")
    for heading in ("first", "second", "change"):
        made.add_column(heading, justify="right")
    made.add_column("verdict")
    before = ""
    for change in changes:
        share = "" if change.share is None else f"{change.share:+.1f} %"
        made.add_row(
            change.model if change.model != before else "",
            change.what,
            change.before,
            change.after,
            share,
            change.verdict,
            style=_STYLE.get(change.verdict),
        )
        before = change.model
    made.caption = "lost: even with its spread the second does not reach the first"
    return made


def _name(result: Result) -> str:
    return f"{result.host} {result.started:%Y-%m-%d %H:%M}"
