"""Why the lane is not well: what is wrong in one look, and how long it must last to count.

Pure, like gb10_watch_judge.py, which imports it. python3 standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gb10_watch_actions import proven, stop_waits, unload_candidate
from gb10_watch_speed import slow_reason
from gb10_watch_state import DEGRADED, FAILED, Event, History, Model, Observation, Reason, Settings

HEALED_SECONDS = 4.0  # less than a look: a death that two looks have seen
DEATH_SECONDS = 600  # the window in which a model's deaths are counted
HUNG_SECONDS = 20  # a router that answered before and does not now
SILENT_SECONDS = 300  # a model that gives no figures: a long prompt may keep it from that for a while
START_SECONDS = 180  # a unit that has just started
BLIND_SECONDS = 60
SWAPPED_MIB = 256
CRASHED_SECONDS = 600  # how long a crash is a reason
# Besides these a unit may be activating, deactivating, reloading and more: it does not serve then.
SETTLED = ("active", "inactive", "failed", "unknown")


def reasons_of(history: History, now: Observation, settings: Settings) -> Iterator[Reason]:
    """What is wrong in this one look; whether it counts is decided by how long it lasts."""
    yield from _lane_reasons(history, now, settings)
    if now.unit.active == "active":
        yield from _accelerator_reasons(history, now)
        for model in now.models:
            yield from _model_reasons(history, model, now, settings)
    yield from _memory_reasons(history, now, settings)
    for what, why in _blind(now, settings).items():
        yield Reason(f"watch.blind:{what}", DEGRADED, f"the watch cannot see {what}: {why}", BLIND_SECONDS)
    for event in now.events:
        yield Reason(f"{event.kind}:{_what(event)}", DEGRADED, event.text)
    for rival in now.rivals:
        yield Reason(
            f"rival:{rival}", DEGRADED, f"{rival} runs beside the lane and may reserve its memory", 5.0
        )


def _what(event: Event) -> str:
    """What tells it from others: the process, the driver's error number, or its words without figures."""
    if event.pid:
        return str(event.pid)
    number = re.search(r"Xid(?: \([^)]*\):)? (\d+)", event.text)
    if number:
        return f"Xid {number[1]}"
    return re.sub(r"[0-9a-fx.:]*\d[0-9a-fx.:]*", "", event.text)[:80]


def _lane_reasons(history: History, now: Observation, settings: Settings) -> Iterator[Reason]:
    unit = now.unit
    if history.stopped and unit.active != "active":
        yield Reason("lane.stopped", FAILED, f"the watch has stopped the lane: {history.stopped}")
    elif unit.active == "failed":
        yield Reason("lane.failed", FAILED, f"the unit has failed ({unit.result}): its journal says why")
    elif unit.active == "inactive":
        yield Reason("lane.down", FAILED, "the unit is stopped", settings.settle_seconds)
    elif unit.active not in SETTLED:
        text = f"the unit has been {unit.active} for long: it does not serve"
        key = "lane.stopping" if unit.active == "deactivating" else "lane.starting"
        yield Reason(key, FAILED, text, _start_seconds(settings))
    elif stop_waits(history, now):
        text = f"the watch could not stop the lane ({history.unstopped[-1][1]}): it tries again"
        yield Reason("lane.unstopped", FAILED, text)
    if history.recovery is not None:
        text = f"restarted by the watch ({history.recovery.why}): whether it helped is not known yet"
        yield Reason("lane.recovering", DEGRADED, text)
    if len(history.crashes) >= settings.crash_restarts:
        yield Reason("lane.crashing", FAILED, f"the unit has crashed {len(history.crashes)} times in an hour")
    elif history.crashes and now.at - history.crashes[-1] < CRASHED_SECONDS:
        count = len(history.crashes)
        text = f"the unit has crashed {count} time{'s' * (count > 1)} in an hour: its journal says why"
        yield Reason("lane.crashed", DEGRADED, text)
    if unit.active == "active" and now.router_fault:
        if history.answered != unit.invocation:
            text = f"the router does not answer yet: {now.router_fault}"
            yield Reason("router.starting", FAILED, text, _start_seconds(settings))
        waited = HUNG_SECONDS if history.answered == unit.invocation else START_SECONDS
        yield Reason("router.silent", FAILED, f"the router does not answer: {now.router_fault}", waited)
    if unit.active == "active" and now.refusal:
        yield Reason("router.refuses", DEGRADED, f"nothing is known of the router: {now.refusal}", 15.0)


def _start_seconds(settings: Settings) -> float:
    return max(BLIND_SECONDS, settings.settle_seconds, settings.start_seconds)


def _blind(now: Observation, settings: Settings) -> dict[str, str]:
    """What gives no answer, and why: nothing that is not seen is sound."""
    blind = dict(now.blind)
    if now.unit.active == "unknown":
        blind["the unit"] = "systemd does not answer"
    if now.available_mib is None:
        blind["memory"] = "/proc/meminfo says nothing"
    if now.pressure_percent is None:
        blind["memory pressure"] = "/proc/pressure/memory says nothing"
    if now.unit.active != "active" or now.busy:
        return blind
    probe = now.probe
    if not now.container:
        blind["the container"] = "the unit is active, and no router runs in a container"
    elif probe is None or probe.at < now.unit.since:
        blind["the accelerator"] = "the probe has not answered"
    elif now.at - probe.at > max(settings.probe_seconds, BLIND_SECONDS) + BLIND_SECONDS:
        blind["the accelerator"] = f"the probe has last answered {now.at - probe.at:.0f} s ago"
    return blind


def _accelerator_reasons(history: History, now: Observation) -> Iterator[Reason]:
    for model in now.models:
        if model.loaded and model.holder == "":
            text = f"{model.name} is loaded, and its process does not hold the accelerator"
            yield Reason(f"accelerator.model:{model.name}", DEGRADED, text, 1.0)
        elif model.loaded and model.pid is not None and model.holder is None:
            text = f"whether {model.name} holds the accelerator cannot be seen"
            yield Reason(f"accelerator.unseen:{model.name}", DEGRADED, text, BLIND_SECONDS)
    # One from before the unit's start is about another container.
    if now.probe is None or now.probe.answer == "yes" or now.probe.at < now.unit.since:
        return
    if now.probe.answer == "no":
        text = f"a new process in the container gets no accelerator: {now.probe.text}"
        if not proven(history, now):
            text += " (the probe never succeeded in this container)"
        yield Reason("accelerator.new", DEGRADED, text)  # two processes have met it already
    else:
        text = f"whether a new process gets the accelerator is not known: {now.probe.text}"
        yield Reason("accelerator.unknown", DEGRADED, text, BLIND_SECONDS)


def _model_reasons(history: History, model: Model, now: Observation, settings: Settings) -> Iterator[Reason]:
    name = model.name
    if model.failed:
        times = len(history.deaths.get(name, ()))
        often = f", {times} times in {DEATH_SECONDS // 60} minutes" if times > 1 else ""
        yield Reason(
            f"model.failed:{name}",
            DEGRADED,
            f"{name} died or did not load{often}: the next request tries again, the lane's journal says more",
            # llama.cpp kills one that does not end when another takes its place, and calls it failed just so:
            # once, and loaded again by the next look, that is no state. Again, it is.
            0.0 if often else HEALED_SECONDS,
        )
    if model.file_gone:
        yield Reason(
            f"model.file:{name}", DEGRADED, f"{model.file_gone} is gone: {name} will not load again", 1.0
        )
    if not model.loaded:
        return
    if model.pid is None:
        yield Reason(f"model.gone:{name}", DEGRADED, f"{name} is loaded, and there is no process of it", 15.0)
    elif model.tokens is None:
        yield Reason(
            f"model.silent:{name}", DEGRADED, f"{name} has given no figures for minutes", SILENT_SECONDS
        )
    if model.swap_mib >= SWAPPED_MIB:
        yield Reason(
            f"model.swapped:{name}", DEGRADED, f"{model.swap_mib} MiB of {name} are swapped out", 15.0
        )
    slow = slow_reason(history.speeds.get(name), name, settings)
    if slow:
        slow += f" (measured with {now.stale[name]})" if name in now.stale else ""
        yield Reason(f"speed:{name}", DEGRADED, slow)


def _memory_reasons(history: History, now: Observation, settings: Settings) -> Iterator[Reason]:
    if now.available_mib is not None and now.available_mib < settings.reserve_mib:
        text = f"{now.available_mib} MiB are available, less than the reserve of {settings.reserve_mib}"
        if "unload" in settings.actions and unload_candidate(history, now) is None:
            text += ", and no idle model is left to unload"
        yield Reason("memory.reserve", DEGRADED, text, 1.0)
    if now.pressure_percent is not None and now.pressure_percent >= settings.pressure_percent:
        text = f"all processes wait for memory {now.pressure_percent:.0f} % of the time"
        yield Reason("memory.pressure", DEGRADED, text, 15.0)
