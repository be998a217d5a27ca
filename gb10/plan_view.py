"""The plan as a table, as JSON, and as bars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
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
_MOST_BARS = 12
_BAR_WIDTH = 60


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
        parts.append(_ways(plan))
    if plan.known:
        parts.append(_bars(plan))
    parts += _notes(plan)
    parts += [Text(f"REFUSED {fault}", style="bold red") for fault in faults]
    return Group(*parts)


def _table(plan: Plan) -> Table:
    table = Table(title="Memory of each preset, MiB", title_justify="left", pad_edge=False)
    table.add_column("preset")
    for name in (*PARTS[:6], "other", "total", "KV bytes/token", "clients that fit"):
        table.add_column(name, justify="right")
    for preset in plan.presets:
        if preset.child is None:
            table.add_row(preset.name, *[""] * 7, "unknown")
            continue
        child = preset.child
        other = sum(child.bytes_of(name) for name in PARTS[6:])
        figures = [*(child.bytes_of(name) for name in PARTS[:6]), other, child.total]
        clients = f"{preset.clients_fit:.2f} of {preset.tokens}"
        table.add_row(
            preset.name, *(str(mib(size)) for size in figures), str(child.kv_bytes_per_token), clients
        )
    return table


def _ways(plan: Plan) -> Table:
    table = Table(title="Three ways to share the cells", title_justify="left", pad_edge=False)
    for name in ("preset", "slots", "MiB", "longest request", "when it overflows"):
        table.add_column(name)
    for preset in plan.presets:
        for way in preset.ways if preset.slots.parallel > 1 else ():
            chosen = " (chosen)" if way.slots.way == preset.slots.way else ""
            table.add_row(
                preset.name,
                f"{way.slots.parallel} {way.slots.way}{chosen}",
                str(mib(way.child.total)),
                f"{way.longest} tokens",
                way.slots.overflow,
            )
    return table


def _bars(plan: Plan) -> Group:
    count = plan.models_max
    sets = plan.sets(count) if count else []
    budget = plan.budget.bytes
    scale = max([budget, *(total_of(chosen) for chosen in sets)], default=budget)
    lines = [Text(f"Sets of {count} of {len(plan.known)} models, the heaviest first; | is the budget")]
    for chosen in sets[:_MOST_BARS]:
        total = total_of(chosen)
        bar = Text()
        for name, colour, mark in zip(PARTS, _COLOURS, _MARKS, strict=True):
            size = sum(preset.child.bytes_of(name) for preset in chosen if preset.child)
            bar.append(mark * round(size / scale * _BAR_WIDTH), style=colour)
        bar = bar[:_BAR_WIDTH]
        place = min(round(budget / scale * _BAR_WIDTH), _BAR_WIDTH)
        bar.append(" " * (_BAR_WIDTH - len(bar)))
        bar = bar[:place].append("|").append_text(bar[place:])
        fits = "" if total <= budget else "  DOES NOT FIT"
        bar.append(f" {mib(total)} MiB  {' + '.join(preset.name for preset in chosen)}{fits}")
        lines.append(bar)
    if len(sets) > _MOST_BARS:
        lines.append(Text(f"and {len(sets) - _MOST_BARS} lighter ones"))
    legend = ", ".join(f"{mark} {name}" for mark, name in zip(_MARKS, PARTS, strict=True))
    return Group(*lines, Text(legend, style="dim"))


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
    if plan.unknown:
        lines.append("The sums lack the models that are unknown.")
        lines += [f"{preset.name}: {preset.unknown}" for preset in plan.unknown]
    lines += [f"Off: {name}: {reason}" for name, reason in plan.off]
    return [Text(line) for line in lines]


def _key(name: str) -> str:
    return name.lower().replace(" ", "_")
