"""The speed of each loaded model, from the counters of real traffic and from canaries, against its baseline.

Pure, like gb10_watch_judge.py, which imports it. A slow figure is not a fault by itself: beside other work,
or far into a long context, a model is slow and sound. It makes a suspicion. What counts is an idle lane on
which canaries (gb10_watch_canary.py) are slow too; or, where there is no pause for one, a client alone that
is much slower yet, several times, and with a context that does not explain it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from gb10_watch_state import Model, Observation, Settings, Speed

BUSY_SHARE = 0.8  # of the slow ratio: below it, traffic alone counts
DEEP_TOKENS = 16384  # beyond it a model may be slow by nature, and traffic alone says nothing
SLOW_FIGURES = 3  # of one client alone; their mean counts, since each is noisy for itself
SLOW_SECONDS = 25  # at least from the first to the last of them: a moment's work of others is no fault
SLOW_WITHIN = 45  # seconds; figures from further back are forgotten
SLOW_CANARIES = 2  # on an idle lane, in a row
WRITTEN_SECONDS = 4  # of an answer that is being written, for a figure
ALONE = 1.2  # tokens for each step of the model: with two clients there are two
GRAINS = 20  # a difference of counters must be so many times as large as what they are rounded to


def remembered_speeds(known: Mapping[str, Speed], now: Observation, settings: Settings) -> dict[str, Speed]:
    """The speeds of the models that are loaded now, and when those that sleep were used."""
    if now.router_fault or now.refusal:
        return dict(known)
    requests = sum(model.requests or 0 for model in now.models)
    # The canary's own request is nobody's work.
    present = max(0, requests - bool(now.asking))
    passed = max(0, requests + _came_and_went(known, now) - bool(now.asking))
    speeds = {}
    for model in now.models:
        before = known.get(model.name)
        if model.state == "sleeping" and before is not None:
            speeds[model.name] = before
        if not model.loaded:
            continue
        if model.tokens is None or model.seconds is None:
            if before is not None:
                speeds[model.name] = before
            continue
        if before is None or before.pid != model.pid or model.tokens < before.tokens:
            fresh = Speed(model.pid, model.tokens, model.seconds, used=now.at, most=present)
            speed = replace(fresh, decodes=model.decodes, guessed=model.guessed, written=_so_far(model))
        else:
            speed = _speed(before, model, (passed, present), now, settings)
        speeds[model.name] = replace(speed, seen=(model.tokens, model.decodes))
    return speeds


def _came_and_went(known: Mapping[str, Speed], now: Observation) -> int:
    """On how many models somebody has worked since the last look who is not there now."""
    found = 0
    for model in now.models:
        before = known.get(model.name)
        asked = model.name in now.asking or model.name in now.canaries
        if before is None or asked or model.tokens is None or model.requests:
            continue
        found += before.seen != (model.tokens, model.decodes)
    return found


def _speed(
    before: Speed, model: Model, requests: tuple[int, int], now: Observation, settings: Settings
) -> Speed:
    """``requests`` on the whole lane: since the last look, as far as can be told, and now."""
    assert model.tokens is not None
    assert model.seconds is not None
    baseline = settings.baselines.get(model.name)
    most, deepest = max(before.most, requests[0]), max(before.deepest, model.depth or 0)
    speed = replace(before, most=most, deepest=deepest, beside=max(before.beside, requests[0]))
    counted = replace(
        speed,
        tokens=model.tokens,
        seconds=model.seconds,
        decodes=model.decodes,
        guessed=model.guessed,
        written=_so_far(model),
        most=requests[1],
        deepest=model.depth or 0,
    )
    canary = now.canaries.get(model.name)
    if canary is not None:
        # Its tokens are in the counters too, and it is nobody's use of the model.
        return _with_canary(
            replace(counted, figure=canary, figure_at=now.at), speed.most, baseline, now, settings
        )
    if model.name in now.asking:
        return speed  # its figure is on the way
    tokens, seconds = model.tokens - before.tokens, model.seconds - before.seconds
    if tokens > 0 or model.requests:
        speed, counted = replace(speed, used=now.at), replace(counted, used=now.at)
    enough = max(settings.minimum_tokens, GRAINS * _grain(model.tokens))
    if tokens >= enough and seconds > 0 and seconds >= GRAINS * _grain(model.seconds):
        alone = speed.most <= 1 and _one_by_one(before, model, tokens)
        following = _follow(counted, model, requests[1], now)
        return _with_figure(following, tokens / seconds, alone, speed.deepest, baseline, now, settings)
    # Who came and went before this part of the answer has not slowed it.
    written = _written(speed, model, now) if speed.beside <= 1 else None
    following = _follow(speed, model, requests[1], now)
    if written is None:
        return following
    return _with_figure(following, written, True, speed.deepest, baseline, now, settings)


def _grain(counter: float) -> float:
    """What a counter is rounded to: it is printed with six digits."""
    return 0.0 if counter < 1e6 else float(10 ** (math.floor(math.log10(counter)) - 5))


def _one_by_one(before: Speed, model: Model, tokens: float) -> bool:
    """False when clients came and went between two looks: their tokens were made several at a step."""
    if before.decodes is None or model.decodes is None:
        return True
    # The steps of an answer count at once, its tokens when it ends.
    made = tokens + _so_far(model) - before.written - (model.guessed - before.guessed)
    return made <= ALONE * (model.decodes - before.decodes)


def _so_far(model: Model) -> int:
    return model.answer[1] if model.answer is not None else 0


def _with_canary(
    speed: Speed, beside: int, baseline: float | None, now: Observation, settings: Settings
) -> Speed:
    if baseline is None or beside or speed.figure is None:
        return speed  # beside other work its figure says nothing
    if speed.figure < settings.slow_ratio * baseline:
        return replace(speed, suspect=True, canaries=speed.canaries + 1)
    return replace(speed, suspect=False, canaries=0, low=(), slow=False, cleared=now.at)


def _with_figure(
    speed: Speed,
    figure: float,
    alone: bool,
    deepest: int,
    baseline: float | None,
    now: Observation,
    settings: Settings,
) -> Speed:
    speed = replace(speed, figure=figure, figure_at=now.at)
    if baseline is None:
        return speed
    if figure >= settings.slow_ratio * baseline:
        return replace(speed, suspect=False, low=(), slow=False, canaries=0)
    if not alone:
        return replace(speed, suspect=True, low=(), slow=False)
    if deepest > DEEP_TOKENS:
        return replace(speed, suspect=True, low=())
    low = (*(one for one in speed.low if now.at - one[0] <= SLOW_WITHIN), (now.at, figure))
    lasts = len(low) >= SLOW_FIGURES and low[-1][0] - low[0][0] >= SLOW_SECONDS
    slow = lasts and sum(one[1] for one in low) / len(low) < BUSY_SHARE * settings.slow_ratio * baseline
    # What counts already goes on to count until it is fast again.
    return replace(speed, suspect=True, low=low, slow=speed.slow or slow)


def _written(speed: Speed, model: Model, now: Observation) -> float | None:
    """The speed of an answer that is being written since an earlier look, None for another answer."""
    if model.answer is None or speed.answer is None or model.answer[0] != speed.answer[0]:
        return None
    seconds, tokens = now.at - speed.answer_at, model.answer[1] - speed.answer[1]
    return tokens / seconds if seconds >= WRITTEN_SECONDS and tokens > 0 else None


def _follow(speed: Speed, model: Model, requests: int, now: Observation) -> Speed:
    """Remember how far the answer is, from its first look on and anew after each figure."""
    same = model.answer is not None and speed.answer is not None and model.answer[0] == speed.answer[0]
    if same and now.at - speed.answer_at < WRITTEN_SECONDS:
        return speed
    return replace(speed, answer=model.answer, answer_at=now.at, beside=requests)


def slow_reason(speed: Speed | None, name: str, settings: Settings) -> str:
    """Why ``name`` counts as slow, or nothing. Without a baseline nothing is slow."""
    baseline = settings.baselines.get(name)
    if speed is None or baseline is None or speed.figure is None:
        return ""
    if not speed.slow and speed.canaries < SLOW_CANARIES:
        return ""
    share = 100 * speed.figure / baseline
    return f"{name} makes {speed.figure:.1f} tok/s, {share:.0f} % of its {baseline:.1f}"
