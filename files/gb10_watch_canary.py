"""When a canary is asked: a short completion that tells a model's speed on an idle lane.

Pure, like gb10_watch_judge.py, which imports it. python3 standard library only.
"""

from __future__ import annotations

from dataclasses import replace

from gb10_watch_speed import SLOW_CANARIES
from gb10_watch_state import History, Observation, Settings, Speed

IDLE_SECONDS = 5  # without a request, before a canary asks a model that is under suspicion
AGAIN_SECONDS = 10
CLEARED_SECONDS = 600  # after a good canary: what looks slow since is its long context, as it was before
CONFIRMED_SECONDS = 60  # once so many were slow that it counts: what is known needs no haste


def canaries_wanted(
    history: History, now: Observation, settings: Settings
) -> tuple[History, tuple[str, ...]]:
    """The models that a canary should ask now, the least recently used first, or none.

    It asks all that are loaded and in that order, so that the router's own order of use, by which it picks
    the model to evict, stays as it was.
    """
    loaded = [model for model in now.models if model.loaded]
    idle = bool(loaded) and all(model.requests == 0 and model.name in history.speeds for model in loaded)
    changing = any(model.changing for model in now.models)
    if not settings.canary_seconds or not idle or changing or now.busy or now.asking or now.router_fault:
        return history, ()
    speeds = {model.name: history.speeds[model.name] for model in loaded}
    # A sleeping model is not woken. Where it was used after one that is loaded, the order would change.
    asleep = (history.speeds.get(model.name) for model in now.models if model.state == "sleeping")
    if any(one is not None and one.used > min(speed.used for speed in speeds.values()) for one in asleep):
        return history, ()
    if now.at - max(speed.worked for speed in speeds.values()) < IDLE_SECONDS:
        return history, ()
    if not any(_due(name, speed, history, now, settings) for name, speed in speeds.items()):
        return history, ()
    order = tuple(sorted(speeds, key=lambda name: (speeds[name].used, name)))
    asked = {name: replace(speed, asked=now.at) for name, speed in speeds.items()}
    return replace(history, speeds=asked), order


def _due(name: str, speed: Speed, history: History, now: Observation, settings: Settings) -> bool:
    if now.at - speed.asked < (AGAIN_SECONDS if speed.canaries < SLOW_CANARIES else CONFIRMED_SECONDS):
        return False
    if speed.suspect:
        confirmed = speed.slow or speed.canaries > 0
        return confirmed or now.at - speed.cleared >= CLEARED_SECONDS
    if history.recovery is not None and name in settings.baselines and speed.figure is None:
        return True
    return now.at - max(speed.figure_at, speed.worked, speed.asked) >= settings.canary_seconds
