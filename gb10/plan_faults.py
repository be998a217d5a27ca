"""Why a catalogue must not be deployed, by its plan, and what would fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gb10.faults import Fault
from gb10.memory import MIB, Part, refuse_cache
from gb10.model import Catalogue
from gb10.plan import Plan, PresetPlan, mib, total_of
from gb10.preset_rules import refuse_startup
from gb10.slots import CELLS, pad


def plan_faults(plan: Plan, catalogue: Catalogue, *, where: str = "models-max") -> list[Fault]:
    """Why this catalogue must not be deployed.

    Its worst case does not fit, a model's memory is not known, the router would leave at its start, or
    clients ask for more than a model was trained for.
    """
    faults = [
        Fault(
            preset.model.where if preset.model else preset.name,
            f"its memory is {preset.unknown}",
            preset.remedy,
        )
        for preset in plan.unknown
    ]
    count = plan.models_max
    why = refuse_startup(len(catalogue.on_startup), count)
    if alone := _alone_faults(plan, where):
        faults += alone
    elif total_of(plan.worst(count)) > plan.budget.bytes:
        names = " + ".join(preset.name for preset in plan.worst(count))
        smaller = _smaller(plan, count)
        do = f"set models-max to {plan.largest}" + (f", or {smaller}" if smaller else "")
        others = _without_found(plan.worst(count))
        do += f", or {others}" if others else ""
        faults.append(
            Fault(where, f"models-max {count} can need {_need(plan, plan.worst(count))} ({names})", do)
        )
    elif why:
        faults.append(Fault(where, why, f"load at most {count} on startup"))
    return faults + _cache_faults(plan) + _training_faults(plan)


def _alone_faults(plan: Plan, where: str) -> list[Fault]:
    """Every model that does not fit even alone, with the part of it that takes most."""
    faults = []
    for preset in plan.known:
        over = preset.total - plan.budget.bytes
        if over <= 0 or preset.child is None:
            continue
        largest = max(preset.child.parts, key=lambda part: part.bytes)
        most = f"{mib(largest.bytes)} MiB of that are its {largest.name}"
        what = f"{preset.name} alone needs {_need(plan, [preset])}, {most}"
        do = _without_found([preset]) or _less(plan, preset, largest, over)
        faults.append(Fault(preset.model.where if preset.model else where, what, do))
    return faults


def _less(plan: Plan, preset: PresetPlan, part: Part, over: int) -> str:
    """What makes a model's largest part smaller, by how much where that is enough. ``over`` in bytes."""
    context = largest_context(replace(plan, presets=(preset,)), preset.name, 1)
    enough = f"give it `ctx-size: {context}`" if context else ""
    if part.name == "prompt cache":
        left = (part.bytes - over) // MIB
        return f"set its `cache-ram` to {left} at most" if left >= 0 else "set its `cache-ram` to 0"
    do = {
        "weights": "take a smaller file",
        "KV cache": enough or "give it less `ctx-size`, or a smaller `cache-type`",
        "recurrent state": "give it less `parallel`",
        "compute": enough or "give it less `ctx-size` or `ubatch-size`",
        "overhead": "measure memory_overhead_mib: it is more than there is",
        "projector": "leave its projector out",
        "draft": "leave its draft out",
    }[part.name]
    return f"{do}, or {enough}" if enough and enough != do else do


def _need(plan: Plan, presets: Sequence[PresetPlan]) -> str:
    budget = plan.budget
    return (
        f"{mib(total_of(presets))} MiB of {budget.total_mib - budget.reserve_mib} MiB"
        f" ({budget.total_mib} less {budget.reserve_mib} reserved)"
    )


def _cache_faults(plan: Plan) -> list[Fault]:
    faults = []
    for preset in plan.presets:
        why = refuse_cache(preset.shape, preset.settings) if preset.shape and preset.settings else None
        if why:
            where = preset.model.where if preset.model else preset.name
            faults.append(Fault(where, f"llama.cpp would not load it: {why}", "set `cache-type: f16`"))
    return faults


def _training_faults(plan: Plan) -> list[Fault]:
    faults = []
    for preset in plan.presets:
        model, shape = preset.model, preset.shape
        if model and model.clients and shape and 0 < shape.context_length < model.clients.tokens:
            trained = shape.context_length
            what = f"clients of {model.clients.tokens} tokens, and the model was trained for {trained}"
            faults.append(Fault(model.where, what, f"set `tokens` to {trained} at most"))
    return faults


def _smaller(plan: Plan, count: int) -> str | None:
    """The first model of the worst set that fits with a smaller context, as an advice."""
    for preset in plan.worst(count):
        context = largest_context(plan, preset.name, count)
        if context and preset.in_catalogue:
            return f"give {preset.name} `ctx-size: {context}`"
    return None


def _without_found(presets: Sequence[PresetPlan]) -> str:
    """How to keep the models from being served that are there only because they lie on the box."""
    found = [preset for preset in presets if not preset.in_catalogue]
    if not found:
        return ""
    named = " and ".join(f"{preset.name} ({preset.place})" for preset in found)
    return (
        f"keep {named} from being served: write it into the catalogue with `enabled: false`, remove the file,"
        ' or set models_found_cache or models_found_folder to ""'
    )


def largest_context(plan: Plan, name: str, count: int) -> int | None:
    """The largest ctx-size of one model with which the worst set of ``count`` fits, all others as they are.

    A multiple of 256, at most what the model has now. None when no context is small enough, or the one that
    is would be too small for the model's clients.
    """
    preset = next((p for p in plan.known if p.name == name), None)
    if preset is None or preset.sized is None or preset.slots.per_slot is not None:
        return None
    sized, slots = preset.sized, preset.slots
    others = [other for other in plan.known if other.name != name]

    def fits(steps: int) -> bool:
        smaller = replace(preset, child=sized(replace(slots, ctx_size=steps * CELLS)))
        worst = sorted([smaller, *others], key=lambda p: -p.total)[:count]
        return total_of(worst) <= plan.budget.bytes

    low, high = 0, pad(slots.ctx_size) // CELLS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    if low == 0:
        return None
    clients = preset.model.clients if preset.model else None
    if clients and replace(slots, ctx_size=low * CELLS).refuse(clients):
        return None
    return low * CELLS
