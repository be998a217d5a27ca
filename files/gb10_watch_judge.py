"""What the watch makes of what it sees: a pure state machine, no clock, no file, no network of its own.

`judge` takes what is remembered, one observation and the settings, and says what the lane's state is, why,
and what to do. Imported by gb10_watch.py; python3 standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gb10_watch_speed import canaries_wanted, remembered_speeds, slow_reason
from gb10_watch_state import (
    DEGRADED,
    FAILED,
    HEALTHY,
    RANK,
    Action,
    History,
    Model,
    Observation,
    Raised,
    Reason,
    Recovery,
    Settings,
    Verdict,
)

HOLD_SECONDS = 600  # how long an event (an OOM kill, a driver error) is a reason
DEATH_SECONDS = 600  # the window in which a model's deaths are counted
HOUR = 3600
HUNG_SECONDS = 20  # a router that answered before and does not now
SILENT_SECONDS = 300  # a model that gives no figures: a long prompt may keep it from that for a while
START_SECONDS = 180  # a unit that has just started
BLIND_SECONDS = 60
SWAPPED_MIB = 256
IDLE_SECONDS = 10  # before a model may be unloaded
UNLOAD_PAUSE_SECONDS = 20  # what an unload gives back must be seen before the next
RECOVER_SECONDS = 60  # after a restart: a speed that has not come by then is not waited for


def judge(history: History, now: Observation, settings: Settings) -> Verdict:
    """One step. The same input gives the same output."""
    history = _remember(history, now, settings)
    found = {reason.key: reason for reason in _reasons(history, now, settings)}
    history = _raise(history, found, now, settings)
    history, recovered = _recovery(history, now, settings)
    history, actions = _actions(history, now, settings)
    history, canaries = canaries_wanted(history, now, settings)
    reasons = tuple(
        sorted((r.reason for r in history.raised.values()), key=lambda r: (-RANK[r.state], r.key))
    )
    state = max((reason.state for reason in reasons), key=RANK.__getitem__, default=HEALTHY)
    return Verdict(history, state, reasons, actions, canaries, recovered)


# -- memory of what was seen ------------------------------------------------------------------------


def _remember(history: History, now: Observation, settings: Settings) -> History:
    unit = now.unit
    crashes = tuple(at for at in history.crashes if now.at - at < HOUR)
    # What happened before the first look may be days old: it is not counted.
    if history.restarts is not None and unit.restarts > history.restarts:
        crashes += (now.at,) * (unit.restarts - history.restarts)
    died = frozenset(model.name for model in now.models if model.failed)
    deaths = {
        name: tuple(at for at in times if now.at - at < DEATH_SECONDS)
        for name, times in history.deaths.items()
    }
    for name in died - history.dead:
        deaths[name] = (*deaths.get(name, ()), now.at)
    stopped, answered, proven = history.stopped, history.answered, history.proven
    if unit.active == "active":
        if not now.busy:
            stopped = ""  # somebody has started it again
        if not now.router_fault:
            answered = unit.invocation
    if now.probe is not None and now.probe.answer == "yes" and now.probe.at >= unit.since:
        proven = now.container or proven
    return replace(
        history,
        crashes=crashes,
        restarts=unit.restarts,
        deaths={name: times for name, times in deaths.items() if times},
        dead=died if now.models else history.dead,
        attempts=tuple(at for at in history.attempts if now.at - at < HOUR),
        stopped=stopped,
        answered=answered,
        proven=proven,
        speeds=remembered_speeds(history.speeds, now, settings),
    )


# -- reasons ----------------------------------------------------------------------------------------


def _reasons(history: History, now: Observation, settings: Settings) -> Iterator[Reason]:
    """What is wrong in this one look; whether it counts is decided by how long it lasts."""
    yield from _lane_reasons(history, now, settings)
    if now.unit.active == "active":
        yield from _accelerator_reasons(history, now)
        for model in now.models:
            yield from _model_reasons(history, model, settings)
    yield from _memory_reasons(history, now, settings)
    for event in now.events:
        yield Reason(f"{event.kind}:{event.text[:40]}", DEGRADED, event.text)
    for rival in now.rivals:
        yield Reason(
            f"rival:{rival}", DEGRADED, f"{rival} runs beside the lane and may reserve its memory", 5.0
        )


def _lane_reasons(history: History, now: Observation, settings: Settings) -> Iterator[Reason]:
    unit = now.unit
    if history.stopped and unit.active != "active":
        yield Reason("lane.stopped", FAILED, f"the watch has stopped the lane: {history.stopped}")
    elif unit.active == "failed":
        yield Reason("lane.failed", FAILED, f"the unit has failed ({unit.result}): its journal says why")
    elif unit.active == "inactive":
        yield Reason("lane.down", FAILED, "the unit is stopped", settings.settle_seconds)
    if history.recovery is not None:
        text = f"restarted by the watch ({history.recovery.why}): whether it helped is not known yet"
        yield Reason("lane.recovering", DEGRADED, text)
    if len(history.crashes) >= settings.crash_restarts:
        yield Reason("lane.crashing", FAILED, f"the unit has crashed {len(history.crashes)} times in an hour")
    if unit.active == "active" and now.router_fault:
        waited = HUNG_SECONDS if history.answered == unit.invocation else START_SECONDS
        yield Reason("router.silent", FAILED, f"the router does not answer: {now.router_fault}", waited)
    if unit.active == "active" and now.refusal:
        yield Reason("router.refuses", DEGRADED, f"the router's answer is of no use: {now.refusal}", 15.0)


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
        if not _proven(history, now):
            text += " (the probe never succeeded in this container)"
        yield Reason("accelerator.new", DEGRADED, text)  # two processes have met it already
    else:
        text = f"whether a new process gets the accelerator is not known: {now.probe.text}"
        yield Reason("accelerator.unknown", DEGRADED, text, BLIND_SECONDS)


def _model_reasons(history: History, model: Model, settings: Settings) -> Iterator[Reason]:
    name = model.name
    if model.failed:
        times = len(history.deaths.get(name, ()))
        often = f", {times} times in {DEATH_SECONDS // 60} minutes" if times > 1 else ""
        yield Reason(
            f"model.failed:{name}",
            DEGRADED,
            f"{name} died or did not load{often}: the lane's journal says why",
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
        yield Reason(f"speed:{name}", DEGRADED, slow)


def _memory_reasons(history: History, now: Observation, settings: Settings) -> Iterator[Reason]:
    if now.available_mib is not None and now.available_mib < settings.reserve_mib:
        text = f"{now.available_mib} MiB are available, less than the reserve of {settings.reserve_mib}"
        if "unload" in settings.actions and _unload_candidate(history, now) is None:
            text += ", and no idle model is left to unload"
        yield Reason("memory.reserve", DEGRADED, text, 1.0)
    if now.pressure_percent is not None and now.pressure_percent >= settings.pressure_percent:
        text = f"all processes wait for memory {now.pressure_percent:.0f} % of the time"
        yield Reason("memory.pressure", DEGRADED, text, 15.0)


def _raise(history: History, found: Mapping[str, Reason], now: Observation, settings: Settings) -> History:
    """Hysteresis: a reason counts once it has lasted, and counts until it has been away for a while."""
    waiting: dict[str, tuple[float, int]] = {}
    raised = dict(history.raised)
    for key, reason in found.items():
        since, looks = history.waiting.get(key, (now.at, 0))
        waiting[key] = (since, looks + 1)
        if key in raised:
            raised[key] = Raised(reason, raised[key].since, now.at)
        elif reason.confirm == 0 or (looks >= 1 and now.at - since >= reason.confirm):
            raised[key] = Raised(reason, now.at, now.at)
    for key, one in history.raised.items():
        held = HOLD_SECONDS if key.partition(":")[0] in ("oom", "driver") else settings.clear_seconds
        if key not in found and now.at - one.seen >= held:
            del raised[key]
    if history.stopped and "lane.stopped" in raised:
        # What led to the stop is in its text; a lane that is stopped has no other fault.
        raised = {
            key: one for key, one in raised.items() if not key.startswith(("accelerator.", "lane.failed"))
        }
    return replace(history, waiting=waiting, raised=raised)


# -- what to do -------------------------------------------------------------------------------------


def _proven(history: History, now: Observation) -> bool:
    return history.proven == now.container or history.recovery is not None


def _lost(history: History, now: Observation) -> str:
    """Why a restart is called for, or nothing. What is only remembered for a while calls for none."""
    for key, one in history.raised.items():
        if one.seen < now.at:
            continue
        if key.startswith("accelerator.model:") or (key == "accelerator.new" and _proven(history, now)):
            return one.reason.text
    recovery = history.recovery
    if recovery is not None and now.unit.active in ("failed", "inactive"):
        return f"the lane did not come back from a restart ({recovery.why})"
    return ""


def _actions(history: History, now: Observation, settings: Settings) -> tuple[History, tuple[Action, ...]]:
    if now.busy:
        return history, ()
    seen = {key: one for key, one in history.raised.items() if one.seen == now.at}
    crash = seen.get("lane.crashing")
    if crash and "stop-crash-loop" in settings.actions and now.unit.active not in ("inactive", "failed"):
        text = crash.reason.text
        # The crashes are dealt with: whoever starts the lane again gets as many anew.
        return replace(history, stopped=text, recovery=None, crashes=()), (Action("stop", text),)
    why = _lost(history, now) if "restart-lost" in settings.actions else ""
    silent = seen.get("router.silent")
    if not why and silent and "restart-hung" in settings.actions:
        why = silent.reason.text
    if why and not history.stopped:
        return _restart(history, now, settings, why)
    if "memory.reserve" in seen and "unload" in settings.actions:
        model = _unload_candidate(history, now)
        if model is not None and now.at - history.unloaded >= UNLOAD_PAUSE_SECONDS:
            text = seen["memory.reserve"].reason.text
            return replace(history, unloaded=now.at), (Action("unload", text, model),)
    return history, ()


def _restart(
    history: History, now: Observation, settings: Settings, why: str
) -> tuple[History, tuple[Action, ...]]:
    attempts = len(history.attempts)
    if attempts:
        pause = settings.backoff_seconds * 2.0 ** (attempts - 1)
        if now.at - history.attempts[-1] < pause:
            return history, ()
    if attempts >= settings.restarts_an_hour:
        text = f"{why}; {attempts} restarts in an hour have not helped"
        return replace(history, stopped=text, recovery=None), (Action("stop", text),)
    started = now.unit.active == "active" and now.at - now.unit.since < settings.settle_seconds
    if started and history.recovery is None:
        return history, ()  # by somebody else: a deploy, a person. Their work is not interrupted.
    history = replace(
        history, attempts=(*history.attempts, now.at), recovery=Recovery(now.at, why), waiting={}
    )
    return history, (Action("restart", why),)


def _recovery(history: History, now: Observation, settings: Settings) -> tuple[History, str]:
    """Whether a restart by the watch has helped: accelerator and, where it can be known, speed."""
    recovery = history.recovery
    if recovery is None or now.busy or now.unit.active != "active" or now.unit.since < recovery.began:
        return history, ""
    probe = now.probe
    if now.router_fault or probe is None or probe.answer != "yes" or probe.at < now.unit.since:
        return history, ""
    loaded = [model for model in now.models if model.loaded]
    if any(model.state == "loading" or (model.loaded and model.holder == "") for model in now.models):
        return history, ""
    speeds = [(model.name, history.speeds.get(model.name)) for model in loaded]
    known = [(name, s.figure) for name, s in speeds if s and s.figure is not None]
    awaited = {name for name, _ in speeds if name in settings.baselines}
    late = now.at - now.unit.since >= RECOVER_SECONDS
    if awaited and not awaited & {name for name, _ in known} and settings.canary_seconds and not late:
        return history, ""
    shown = ", ".join(
        f"{name} {figure:.1f}"
        + (f" of {settings.baselines[name]:.1f}" if name in settings.baselines else "")
        + " tok/s"
        for name, figure in known
    )
    text = f"the lane is back on its accelerator after {now.at - recovery.began:.0f} s"
    return replace(history, recovery=None), f"{text}; {shown}" if shown else f"{text}; no speed is known yet"


def _unload_candidate(history: History, now: Observation) -> str | None:
    """The loaded model that has been idle longest, in the order in which they were used."""
    idle = [
        (history.speeds[model.name].used, model.name)
        for model in now.models
        if model.loaded
        and model.requests == 0
        and model.name in history.speeds
        and now.at - history.speeds[model.name].used >= IDLE_SECONDS
    ]
    return min(idle)[1] if idle else None
