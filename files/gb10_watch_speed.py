"""The speed of each loaded model, from the counters of real traffic and from canaries, against its baseline.

Pure, like gb10_watch_judge.py, which imports it. A slow figure is not a fault by itself: beside other work a
model is slow and sound. It counts when one client alone was slow several times, or an idle lane was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gb10_watch_state import History, Model, Observation, Settings, Speed

SLOW_FIGURES = 3  # slow figures of one client alone, in a row
SLOW_SECONDS = 30  # and from the first to the last of them: a moment's work of others is no fault
SLOW_CANARIES = 2  # on an idle lane, in a row
IDLE_SECONDS = 5  # without a request, before a canary asks a model that is under suspicion
AGAIN_SECONDS = 10
WRITTEN_SECONDS = 4  # of an answer that is being written, for a figure


def remembered_speeds(known: Mapping[str, Speed], now: Observation, settings: Settings) -> dict[str, Speed]:
    """The speeds of the models that are loaded now."""
    if now.router_fault or now.refusal:
        return dict(known)
    # The canary's own request is nobody's work.
    all_requests = max(0, sum(model.requests or 0 for model in now.models) - bool(now.asking))
    speeds = {}
    for model in now.models:
        if not model.loaded:
            continue
        before = known.get(model.name)
        if model.tokens is None or model.seconds is None:
            if before is not None:
                speeds[model.name] = before
            continue
        if before is None or before.pid != model.pid or model.tokens < before.tokens:
            speeds[model.name] = Speed(model.pid, model.tokens, model.seconds, used=now.at, most=all_requests)
            continue
        speeds[model.name] = _speed(before, model, all_requests, now, settings)
    return speeds


def _speed(before: Speed, model: Model, all_requests: int, now: Observation, settings: Settings) -> Speed:
    assert model.tokens is not None
    assert model.seconds is not None
    baseline = settings.baselines.get(model.name)
    speed = replace(before, most=max(before.most, all_requests))
    tokens, seconds = model.tokens - before.tokens, model.seconds - before.seconds
    canary = now.canaries.get(model.name)
    if canary is not None:
        # Its tokens are in the counters too, and it is nobody's use of the model.
        beside_work = speed.most > 0
        speed = replace(
            speed,
            tokens=model.tokens,
            seconds=model.seconds,
            most=all_requests,
            figure=canary,
            figure_at=now.at,
        )
        if baseline is None or beside_work:
            return speed  # beside other work its figure says nothing
        slow = canary < settings.slow_ratio * baseline
        return replace(
            speed,
            suspect=slow,
            canaries=speed.canaries + 1 if slow else 0,
            slow=speed.slow if slow else 0,
        )
    if model.name in now.asking:
        return speed  # its figure is on the way
    if tokens > 0 or model.requests:
        speed = replace(speed, used=now.at)
    alone = speed.most <= 1
    if tokens >= settings.minimum_tokens and seconds > 0:
        figure = tokens / seconds
        speed = replace(speed, tokens=model.tokens, seconds=model.seconds, most=all_requests)
        return _with_figure(_follow(speed, model, now), figure, alone, baseline, now, settings)
    written = _written(speed, model, now) if alone else None
    if written is None:
        return _follow(speed, model, now)
    return _with_figure(_follow(speed, model, now), written, alone, baseline, now, settings)


def _with_figure(
    speed: Speed, figure: float, alone: bool, baseline: float | None, now: Observation, settings: Settings
) -> Speed:
    speed = replace(speed, figure=figure, figure_at=now.at)
    if baseline is None:
        return speed
    if figure >= settings.slow_ratio * baseline:
        return replace(speed, suspect=False, slow=0, canaries=0)
    if not alone:
        return replace(speed, suspect=True)
    since = speed.slow_since if speed.slow else now.at
    return replace(speed, suspect=True, slow=speed.slow + 1, slow_since=since)


def _written(speed: Speed, model: Model, now: Observation) -> float | None:
    """The speed of an answer that is being written since an earlier look, None for another answer."""
    if model.answer is None or speed.answer is None or model.answer[0] != speed.answer[0]:
        return None
    seconds, tokens = now.at - speed.answer_at, model.answer[1] - speed.answer[1]
    return tokens / seconds if seconds >= WRITTEN_SECONDS and tokens > 0 else None


def _follow(speed: Speed, model: Model, now: Observation) -> Speed:
    """Remember how far the answer is, from its first look on and anew after each figure."""
    same = model.answer is not None and speed.answer is not None and model.answer[0] == speed.answer[0]
    if same and now.at - speed.answer_at < WRITTEN_SECONDS:
        return speed
    return replace(speed, answer=model.answer, answer_at=now.at)


def slow_reason(speed: Speed | None, name: str, settings: Settings) -> str:
    """Why ``name`` counts as slow, or nothing. Without a baseline nothing is slow."""
    baseline = settings.baselines.get(name)
    if speed is None or baseline is None or speed.figure is None:
        return ""
    lasting = speed.slow >= SLOW_FIGURES and speed.figure_at - speed.slow_since >= SLOW_SECONDS
    if not lasting and speed.canaries < SLOW_CANARIES:
        return ""
    share = 100 * speed.figure / baseline
    return f"{name} makes {speed.figure:.1f} tok/s, {share:.0f} % of its {baseline:.1f}"


def canaries_wanted(
    history: History, now: Observation, settings: Settings
) -> tuple[History, tuple[str, ...]]:
    """The models that a canary should ask now, the least recently used first, or none.

    It asks all that are loaded and in that order, so that the router's own order of use, by which it picks
    the model to evict, stays as it was.
    """
    loaded = [model for model in now.models if model.loaded]
    idle = bool(loaded) and all(model.requests == 0 and model.name in history.speeds for model in loaded)
    changing = any(model.state not in ("loaded", "unloaded") for model in now.models)
    if not settings.canary_seconds or not idle or changing or now.busy or now.asking or now.router_fault:
        return history, ()
    speeds = {model.name: history.speeds[model.name] for model in loaded}
    if now.at - max(speed.used for speed in speeds.values()) < IDLE_SECONDS:
        return history, ()
    if not any(_due(name, speed, history, now, settings) for name, speed in speeds.items()):
        return history, ()
    order = tuple(sorted(speeds, key=lambda name: (speeds[name].used, name)))
    asked = {name: replace(speed, asked=now.at, most=0) for name, speed in speeds.items()}
    return replace(history, speeds=asked), order


def _due(name: str, speed: Speed, history: History, now: Observation, settings: Settings) -> bool:
    if now.at - speed.asked < AGAIN_SECONDS:
        return False
    if speed.suspect:
        return True
    if history.recovery is not None and name in settings.baselines and speed.figure is None:
        return True
    return now.at - max(speed.figure_at, speed.used, speed.asked) >= settings.canary_seconds
