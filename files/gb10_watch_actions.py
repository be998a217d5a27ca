"""What the watch does about it, and whether it has helped.

Pure, like gb10_watch_judge.py, which imports it. python3 standard library only.
"""

from __future__ import annotations

from dataclasses import replace

from gb10_watch_state import Action, History, Observation, Recovery, Settings

IDLE_SECONDS = 10  # before a model may be unloaded
UNLOAD_PAUSE_SECONDS = 20  # what an unload gives back must be seen before the next
KEPT_SECONDS = 600  # how long a model whose unload has failed comes after the others
STOP_PAUSE_SECONDS = 60  # after a stop that failed; then twice that, and so on
MOST_STOP_PAUSE_SECONDS = 600
FULL_SECONDS = 600
RECOVER_SECONDS = 60  # after a restart: a speed that has not come by then is not waited for


def proven(history: History, now: Observation) -> bool:
    """Whether the probe's "no" counts: it has succeeded in this container, or in the one before a restart by
    the watch. For llama.cpp's own list the driver's tool is proof enough: it needs less."""
    full = now.probe is not None and now.probe.full
    return _proven(history, now) or (full and bool(now.container) and history.proven_full == now.container)


def _proven(history: History, now: Observation) -> bool:
    if history.recovery is not None and history.recovery.proven:
        return True
    return bool(now.container) and history.proven == now.container


def asks_fully(history: History, now: Observation) -> bool:
    """Whether the next probe should be llama.cpp's own list of devices: it knows more than the driver's tool,
    and takes half a second and half a GiB for a moment."""
    probe = now.probe
    if history.recovery is not None or (probe is not None and probe.full and probe.answer != "yes"):
        return True
    if now.unit.active != "active" or now.busy or now.router_fault or now.refusal:
        return False
    # A loaded model shows by itself that it holds the accelerator.
    unloaded = not any(model.state in ("loaded", "loading") for model in now.models)
    return unloaded and now.at - history.full >= FULL_SECONDS and "memory.reserve" not in history.raised


def _lost(history: History, now: Observation) -> str:
    """Why a restart is called for, or nothing. What is only remembered for a while calls for none."""
    for key, one in history.raised.items():
        if one.seen < now.at:
            continue
        if key.startswith("accelerator.model:") or (key == "accelerator.new" and proven(history, now)):
            return one.reason.text
    recovery = history.recovery
    if recovery is not None and now.unit.active in ("failed", "inactive"):
        return f"the lane did not come back from a restart ({recovery.why})"
    return ""


def actions_of(history: History, now: Observation, settings: Settings) -> tuple[History, tuple[Action, ...]]:
    if now.busy:
        return history, ()
    seen = {key: one for key, one in history.raised.items() if one.seen == now.at}
    crash = seen.get("lane.crashing")
    down = history.stopped or now.unit.active in ("inactive", "failed")
    if crash and "stop-crash-loop" in settings.actions and not down:
        return _stop(history, now, crash.reason.text)
    why = _lost(history, now) if "restart-lost" in settings.actions else ""
    silent = seen.get("router.silent")
    if not why and silent and "restart-hung" in settings.actions:
        why = silent.reason.text
    if why and not history.stopped:
        history, actions = _restart(history, now, settings, why)
        if actions:
            return history, actions
    # Also while a restart waits for its time, as long as there is a router to ask.
    if "memory.reserve" in seen and "unload" in settings.actions and not now.router_fault:
        model = unload_candidate(history, now)
        if model is not None and now.at - history.unloaded >= UNLOAD_PAUSE_SECONDS:
            text = seen["memory.reserve"].reason.text
            return replace(history, unloaded=now.at), (Action("unload", text, model),)
    return history, ()


def _restart(
    history: History, now: Observation, settings: Settings, why: str
) -> tuple[History, tuple[Action, ...]]:
    started = now.unit.active == "active" and now.at - now.unit.since < settings.settle_seconds
    if started and history.recovery is None:
        return history, ()  # by somebody else: a deploy, a person. Their work is not interrupted.
    # Only those that have not helped: see `recovery_of`.
    attempts = len(history.attempts)
    if attempts:
        pause = settings.backoff_seconds * 2.0 ** (attempts - 1)
        if now.at - history.attempts[-1] < pause:
            return history, ()
    if attempts >= settings.restarts_an_hour:
        return _stop(history, now, f"{why}; {attempts} restarts in an hour have not helped")
    # One that did not come back is tried again for the reason of the first.
    gone = history.recovery is not None and now.unit.active != "active"
    first = history.recovery.why if history.recovery is not None and gone else why
    history = replace(
        history,
        attempts=(*history.attempts, now.at),
        recovery=Recovery(now.at, first, _proven(history, now)),
        waiting={},
    )
    return history, (Action("restart", why),)


def _stop(history: History, now: Observation, text: str) -> tuple[History, tuple[Action, ...]]:
    if stop_waits(history, now):
        return history, ()
    # Where it fails, the probe's "no" must go on to count in this container.
    known = now.container if _proven(history, now) else history.proven
    return replace(history, stopped=text, recovery=None, proven=known), (Action("stop", text),)


def stop_waits(history: History, now: Observation) -> bool:
    """Whether a stop has failed so lately that none is tried."""
    if not history.unstopped:
        return False
    pause = STOP_PAUSE_SECONDS * 2.0 ** (len(history.unstopped) - 1)
    return now.at - history.unstopped[-1][0] < min(pause, MOST_STOP_PAUSE_SECONDS)


def recovery_of(history: History, now: Observation, settings: Settings) -> tuple[History, str]:
    """Whether a restart by the watch has helped: accelerator and, where it can be known, speed."""
    recovery = history.recovery
    if recovery is None or now.busy or now.unit.active != "active" or now.unit.since < recovery.began:
        return history, ""
    probe = now.probe
    if now.router_fault or now.refusal or probe is None or probe.at < now.unit.since:
        return history, ""
    # A probe that did not succeed before either is no witness against the restart.
    witness = probe.answer == "yes"
    if not probe.full or (not witness and proven(history, now)):
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
    what = "the lane is back on its accelerator" if witness else "the lane answers again"
    text = f"{what} after {now.at - recovery.began:.0f} s"
    if not witness:
        text += f" (the probe did not succeed before either: {probe.text})"
    # It has helped: a later loss is another one.
    history = replace(history, recovery=None, attempts=())
    return history, f"{text}; {shown}" if shown else f"{text}; no speed is known yet"


def unload_candidate(history: History, now: Observation) -> str | None:
    """The loaded model that has been idle longest, in the order in which they were used.

    Those whose unload has failed lately come last: none of them keeps another from being unloaded.
    """
    idle = [
        (history.kept.get(model.name, float("-inf")), history.speeds[model.name].used, model.name)
        for model in now.models
        if model.loaded
        and model.requests == 0
        and model.name in history.speeds
        and now.at - history.speeds[model.name].used >= IDLE_SECONDS
    ]
    return min(idle)[-1] if idle else None
