"""Two results side by side: what was lost, and what is within the spread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.table import Table

from gb10.bench.result import ClientsRow, Figure, ModelResult, Rate, Result
from gb10.bench.summary import FRAME, cell
from gb10.faults import BadInput, Fault

RATE_SLACK = 1  # one task more or less is no finding
ONE_RUN_SLACK = 0.2  # of a figure that was run once, and so has no spread
# What shapes a figure. Which parts and models were asked for only decides what there is to compare.
SETTINGS = ("runs", "prompt_tokens", "answer_tokens", "long_tokens", "tasks", "clients", "answer_limit")
NOT_ASKED = "not asked of the second"
NOT_BEFORE = "not in the first"


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
    """Every figure that a model has in one of both. What the second was asked for and does not have is lost.

    Raises `BadInput` where the two say nothing about each other: one did not come to its end, they were
    measured with other lengths and numbers, or one has no model.
    """
    _refuse(first, second)
    changes: list[Change] = []
    named = second.settings.named
    for model in dict.fromkeys([*first.models, *second.models]):
        one, other = first.models.get(model), second.models.get(model)
        if one is None:
            changes.append(Change(model, "all", "", "", None, NOT_BEFORE))
        elif other is None:
            verdict = NOT_ASKED if named and model not in named else "lost"
            changes.append(Change(model, "all", "measured", "-", None, verdict))
        else:
            changes += _model(model, one, other, second.settings.parts)
    if all(change.verdict in (NOT_ASKED, NOT_BEFORE) for change in changes):
        raise BadInput([Fault("the results", "have no figure in common", "name two of the same models")])
    return changes


def _refuse(first: Result, second: Result) -> None:
    faults = []
    for which, result in (("first", first), ("second", second)):
        if result.interrupted:
            faults.append(Fault(f"the {which} result", "did not come to its end", "measure again"))
        elif not result.models:
            faults.append(
                Fault(f"the {which} result", "has no model's figures", "name a result of `gb10 bench`")
            )
    one, other = first.settings, second.settings
    pairs = {key: (getattr(one, key), getattr(other, key)) for key in SETTINGS}
    unequal = [f"{key} {before} and {after}" for key, (before, after) in pairs.items() if before != after]
    if unequal:
        what = f"were measured differently: {', '.join(unequal)}"
        faults.append(Fault("the results", what, "measure again with the options of the first"))
    if faults:
        raise BadInput(faults)


def _change(model: str, what: str, texts: list[str], share: float | None, verdict: str) -> Change:
    return Change(model, what, texts[0], texts[1], share, verdict)


def _model(model: str, one: ModelResult, other: ModelResult, parts: list[str] | None) -> Iterator[Change]:
    def missing(part: str) -> str:
        return "lost" if parts is None or part in parts else NOT_ASKED

    if one.speed or other.speed:
        for what in ("prompt", "generation"):
            before = getattr(one.speed, what) if one.speed else None
            after = getattr(other.speed, what) if other.speed else None
            yield _figure(model, f"{what}, tok/s", before, after, missing("speed"))
    if one.speed and other.speed and one.speed.prompt_tokens != other.speed.prompt_tokens:
        lengths = [f"{speed.prompt_tokens} tokens" for speed in (one.speed, other.speed)]
        shorter = other.speed.prompt_tokens < one.speed.prompt_tokens
        verdict = "lost" if shorter else "longer: the speeds are of other prompts"
        yield _change(model, "prompt that fits", lengths, None, verdict)
    if (other.speed or other.device) and not other.on_accelerator:
        states = [found.device.state if found.device else "unknown" for found in (one, other)]
        had = one.device is None or one.on_accelerator
        yield _change(model, "device", states, None, "lost" if had else "not on the accelerator in both")
    if one.load or other.load:
        seconds = [f"{found.load.seconds:.1f}" if found.load else "-" for found in (one, other)]
        verdict = "one run: not judged" if other.load else missing("load")
        yield _change(model, "load, s", seconds, None, verdict if one.load else NOT_BEFORE)
    yield from _rows(model, "", one.clients, other.clients, missing("clients"))
    for way in dict.fromkeys([*one.slots, *other.slots]):
        rows = [found.slots.get(way, []) for found in (one, other)]
        yield from _rows(model, f", {way}", rows[0], rows[1], missing("slots"))
    for what, rate, later in (("coding", one.coding, other.coding), ("tools", one.tools, other.tools)):
        if rate or later:
            yield _rate(model, what, rate, later, missing(what))


def _figure(model: str, what: str, before: Figure | None, after: Figure | None, missing: str) -> Change:
    texts = ["-" if one is None else one.words for one in (before, after)]
    if before is None or after is None:
        # What cannot be measured any more is a loss; what could not be before is none.
        return _change(model, what, texts, None, missing if after is None else NOT_BEFORE)
    share = (after.median / before.median - 1) * 100 if before.median else None
    margins = [ONE_RUN_SLACK / 2 * one.median if len(one.runs) == 1 else one.usual for one in (before, after)]
    step = after.median - before.median
    verdict = "within the spread"
    if abs(step) > sum(margins):
        verdict = "lost" if step < 0 else "won"
    return _change(model, what, texts, share, verdict)


def _rows(
    model: str, way: str, before: list[ClientsRow], after: list[ClientsRow], missing: str
) -> Iterator[Change]:
    rows = [{(row.kind, row.clients): row for row in found} for found in (before, after)]
    for key in dict.fromkeys([*rows[0], *rows[1]]):
        one, other = (found.get(key) for found in rows)
        texts = [_row_words(row) for row in (one, other)]
        share = None
        if one is None or one.skipped:
            verdict = NOT_BEFORE
        elif other is None:
            verdict = missing
        elif other.skipped or other.failures > one.failures or (one.aggregate and not other.aggregate):
            verdict = "lost"
        elif one.aggregate is None:
            verdict = "failed in both" if other.aggregate is None else "won"
        else:
            step = (other.aggregate or 0.0) - one.aggregate
            share = step / one.aggregate * 100 if one.aggregate else None
            within = abs(step) <= ONE_RUN_SLACK * one.aggregate
            verdict = "within one run's slack" if within else "lost" if step < 0 else "won"
        if not (verdict == NOT_BEFORE and (other is None or other.skipped)):
            yield _change(model, f"{key[1]} clients, {key[0]}{way}, tok/s", texts, share, verdict)


def _row_words(row: ClientsRow | None) -> str:
    if row is None or row.aggregate is None:
        words = "skipped" if row and row.skipped else "-"
    else:
        words = f"{row.aggregate:.1f}"
    return f"{words} ({row.failures} failed)" if row and row.failures else words


def _rate(model: str, what: str, before: Rate | None, after: Rate | None, missing: str) -> Change:
    texts = ["-" if one is None else one.words for one in (before, after)]
    if before is None:
        verdict = NOT_BEFORE
    elif after is None:
        verdict = missing
    elif after.broken_off and not before.broken_off:
        verdict = "lost"
    elif not (both := before.tasks.keys() & after.tasks.keys()):
        verdict = "other tasks: not compared"
    else:
        step = sum(after.tasks[task].passed - before.tasks[task].passed for task in both)
        verdict = "lost" if step < -RATE_SLACK else "won" if step > RATE_SLACK else "within one task"
        if len(both) < max(len(before.tasks), len(after.tasks)):
            texts = [f"{text}, {len(both)} in both" for text in texts]
    return _change(model, f"{what} tasks", texts, None, verdict)


_STYLE = {"lost": "bold red", "won": "green"}


def table(first: Result, second: Result, changes: list[Change]) -> Table:
    """The changes for a terminal."""
    made = Table(title=cell(f"{_name(first)} against {_name(second)}"), **FRAME)
    for heading in ("model", "what"):
        made.add_column(heading, overflow="fold")
    for heading in ("first", "second", "change"):
        made.add_column(heading, justify="right")
    made.add_column("verdict")
    before = ""
    for change in changes:
        share = "" if change.share is None else f"{change.share:+.1f} %"
        made.add_row(
            cell(change.model if change.model != before else ""),
            cell(change.what),
            cell(change.before),
            cell(change.after),
            share,
            change.verdict,
            style=_STYLE.get(change.verdict),
        )
        before = change.model
    if any(change.lost for change in changes):
        made.caption = "lost: even with its spread the second does not reach the first, or has no figure now"
    return made


def _name(result: Result) -> str:
    return f"{result.host} {result.started:%Y-%m-%d %H:%M}"
