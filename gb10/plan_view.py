"""The plan as a table, as JSON, and as bars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gb10.faults import Fault
from gb10.memory import COMPUTE_SOURCE, MIB, OVERHEAD_SOURCE, Child
from gb10.plan import Plan, PresetPlan, mib, total_of

PARTS = (
    "weights",
    "KV cache",
    "recurrent state",
    "compute",
    "prompt cache",
    "overhead",
    "projector",
    "draft",
)
_COLOURS = ("blue", "green", "cyan", "yellow", "magenta", "white", "blue", "red")
_MARKS = "WKRCPOMD"
_HEADINGS = {
    "weights": "weights",
    "KV cache": "KV\ncache",
    "recurrent state": "state",
    "compute": "com-\npute",
    "prompt cache": "prompt\ncache",
    "overhead": "over-\nhead",
}
_FRAME: dict[str, Any] = {"box": SIMPLE_HEAD, "padding": 0, "pad_edge": False, "show_edge": False}
_MOST_BARS = 12
_WIDEST_BAR = 120

NOT_COUNTED = "models that only lie on the box are not counted here; `gb10 plan --on-box` and a deploy do"


def child_json(child: Child) -> dict[str, Any]:
    """The figures of one child, in MiB (two decimals), and the KV bytes for each token."""
    return {
        **{f"{_key(name)}_mib": round(child.bytes_of(name) / MIB, 2) for name in PARTS},
        "total_mib": round(child.total / MIB, 2),
        "kv_bytes_per_token": child.kv_bytes_per_token,
        "sources": {_key(part.name): part.source for part in child.parts},
        "notes": list(child.notes),
    }


def plan_json(plan: Plan, faults: Iterable[Fault]) -> dict[str, Any]:
    """The whole plan as one object; ``ok`` says whether it may be deployed."""
    faults = list(faults)
    budget = plan.budget
    return {
        "ok": not faults,
        "faults": [{"where": f.where, "what": f.what, "do": f.do} for f in faults],
        "budget": {
            "total_mib": budget.total_mib,
            "reserve_mib": budget.reserve_mib,
            "models_mib": budget.total_mib - budget.reserve_mib,
            "overhead_mib": budget.overhead_mib,
        },
        "found_counted": plan.looked,
        "models_max": plan.models_max,
        "models_max_auto": budget.models_max is None,
        "models_max_largest": plan.largest,
        "worst": {
            "models": [preset.name for preset in plan.worst(plan.models_max)],
            "total_mib": round(total_of(plan.worst(plan.models_max)) / MIB, 2),
        },
        "presets": [_preset_json(preset) for preset in plan.presets],
        "off": [{"name": name, "reason": reason} for name, reason in plan.off],
    }


def _preset_json(preset: PresetPlan) -> dict[str, Any]:
    slots = preset.slots
    found: dict[str, Any] = {
        "name": preset.name,
        "in_catalogue": preset.in_catalogue,
        "slots": slots.way,
        "ctx_size": slots.ctx_size,
        "parallel": slots.parallel,
        "longest_tokens": slots.longest,
        "overflow": slots.overflow,
    }
    if preset.child is None:
        return {**found, "unknown": preset.unknown}
    return {
        **found,
        **child_json(preset.child),
        "clients_fit": round(preset.clients_fit, 2),
        "clients_tokens": preset.tokens,
        "ways": [
            {
                "slots": way.slots.way,
                "total_mib": round(way.child.total / MIB, 2),
                "longest_tokens": way.longest,
                "overflow": way.slots.overflow,
            }
            for way in preset.ways
        ],
    }


def plan_text(plan: Plan, faults: Iterable[Fault]) -> RenderableType:
    """The plan for a terminal: table, slots, bars, notes, faults."""
    parts: list[RenderableType] = [_table(plan)]
    if any(preset.ways and preset.slots.parallel > 1 for preset in plan.presets):
        parts += ["", _ways(plan)]
    if plan.known:
        parts += ["", _Bars(plan)]
    parts += ["", *_notes(plan)]
    parts += [Text(f"REFUSED {fault}", style="bold red") for fault in faults]
    return Group(*parts)


def _table(plan: Plan) -> Table:
    """One line for each preset; a part that no preset has gets no column, projector and draft have one."""
    table = Table(title="Memory of each preset, MiB", title_justify="left", **_FRAME)
    table.add_column("preset", overflow="fold", min_width=10)
    columns = [*((_HEADINGS[name], (name,)) for name in PARTS[:6]), ("other", PARTS[6:])]
    columns = [(heading, parts) for heading, parts in columns if any(_sum(p, parts) for p in plan.known)]
    for heading in (*(heading for heading, _ in columns), "total", "KV B/\ntoken"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("clients\nx tokens", justify="right", min_width=8)
    for preset in plan.presets:
        if preset.child is None:
            table.add_row(preset.name, *[""] * len(columns), "unknown")
            continue
        table.add_row(
            preset.name,
            *(str(mib(_sum(preset, parts))) for _, parts in columns),
            str(mib(preset.total)),
            str(preset.child.kv_bytes_per_token),
            f"{preset.clients_fit:.2f} x {preset.tokens}",
        )
    return table


def _sum(preset: PresetPlan, parts: Iterable[str]) -> int:
    return sum(preset.child.bytes_of(name) for name in parts) if preset.child else 0


def _ways(plan: Plan) -> Table:
    table = Table(title="Three ways to share the cells", title_justify="left", **_FRAME)
    table.add_column("preset", overflow="fold", min_width=12)
    table.add_column("slots (* chosen)", no_wrap=True)
    table.add_column("MiB", justify="right", no_wrap=True)
    table.add_column("longest\nrequest", justify="right", no_wrap=True)
    table.add_column("when it overflows", min_width=20)
    for preset in plan.presets:
        for number, way in enumerate(preset.ways if preset.slots.parallel > 1 else ()):
            chosen = " *" if way.slots.way == preset.slots.way else ""
            table.add_row(
                preset.name if number == 0 else "",
                f"{way.slots.parallel} {way.slots.way}{chosen}",
                str(mib(way.child.total)),
                str(way.longest),
                way.slots.overflow,
            )
    return table


class _Bars:
    """A bar for each set of models, as wide as the terminal; below it the names of the set."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plan, count = self.plan, self.plan.models_max
        sets = plan.sets(count) if count else []
        scale = max([plan.budget.bytes, *(total_of(chosen) for chosen in sets)])
        yield Text(f"Sets of {count} of {len(plan.known)} models, the heaviest first; | is the budget")
        width = max(10, min(options.max_width, _WIDEST_BAR) - len(f" {mib(scale)} MiB") - 1)
        for chosen in sets[:_MOST_BARS]:
            total = total_of(chosen)
            fits = total <= plan.budget.bytes
            bar = _bar(chosen, plan.budget.bytes, scale, width)
            yield bar.append(f" {mib(total)} MiB", style="" if fits else "bold red")
            names = "" if fits else "DOES NOT FIT: "
            yield Padding(Text(names + " + ".join(preset.name for preset in chosen)), (0, 0, 0, 2))
        if len(sets) > _MOST_BARS:
            yield Text(f"and {len(sets) - _MOST_BARS} lighter ones")
        there = [name for name in PARTS if any(p.child and p.child.bytes_of(name) for p in plan.known)]
        yield Text(", ".join(f"{_MARKS[PARTS.index(name)]} {name}" for name in there), style="dim")


def _bar(chosen: Iterable[PresetPlan], budget: int, scale: int, width: int) -> Text:
    """The parts of a set, each as long as its share of ``scale`` bytes; ``|`` stands at the budget."""
    chosen, bar = list(chosen), Text()
    for name, colour, mark in zip(PARTS, _COLOURS, _MARKS, strict=True):
        size = sum(preset.child.bytes_of(name) for preset in chosen if preset.child)
        bar.append(mark * round(size / scale * width), style=colour)
    bar = bar[:width]
    bar.append(" " * (width - len(bar)))
    place = min(round(budget / scale * width), width)
    return bar[:place].append("|").append_text(bar[place:])


def _notes(plan: Plan) -> list[Text]:
    budget = plan.budget
    room = (
        f"{budget.total_mib - budget.reserve_mib} MiB ({budget.total_mib} less {budget.reserve_mib} reserved)"
    )
    chosen = " (auto)" if budget.models_max is None else ""
    most = f"the largest that always fits: {plan.largest}" if plan.known else "no model is known yet"
    lines = [
        f"Budget: {room}. models-max {plan.models_max}{chosen}, {most}.",
        f"Compute: {COMPUTE_SOURCE}. Overhead: {OVERHEAD_SOURCE}; {budget.overhead_mib} MiB are planned.",
    ]
    lines += [f"{p.name}: {note}" for p in plan.presets if p.child for note in p.child.notes]
    found = [preset.name for preset in plan.presets if not preset.in_catalogue]
    if found:
        lines.append(f"Found on the box and not in the catalogue: {', '.join(found)}.")
    if not plan.looked:
        lines.append(f"Note: {NOT_COUNTED}.")
    if plan.unknown:
        lines.append("The sums lack the models that are unknown.")  # each of them is a fault below
    lines += [f"Off: {name}: {reason}" for name, reason in plan.off]
    lines += plan.notes
    return [Text(line) for line in lines]


def _key(name: str) -> str:
    return name.lower().replace(" ", "_")
