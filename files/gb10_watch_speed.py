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
SLOW_WITHIN = 120  # seconds; figures from further back are forgotten
SLOW_CANARIES = 2  # on an idle lane, in a row
WRITTEN_SECONDS = 4  # of an answer that is being written, for a figure
SPARE_STEPS = 2  # of another model between two looks (an embedding now and then): no work beside, unless
SPARE_PROMPT = 256  # tokens were read in them
CLEAR_STEPS = 4  # times as many steps as rounding could hide, for a figure
ROUNDED = 1e-5  # of a figure with six digits, the most by which two of them are wrong together
EXACT = 9e4  # up to here a sum over steps is a whole number again, see gb10_watch_signals.py
MOST = 2e4  # tokens per second: more is no speed


def remembered_speeds(known: Mapping[str, Speed], now: Observation, settings: Settings) -> dict[str, Speed]:
    """The speeds of the models that are loaded now, and when those that sleep were used."""
    if now.router_fault or now.refusal:
        return dict(known)
    # On the whole lane, those that have come and gone since the last look among them. The canary's own is
    # nobody's work.
    each = {m.name: _requests(m) + _came_and_went(known, m, now, settings) for m in now.models}
    requests = sum(each.values()) - bool(now.asking)
    speeds = {}
    for seen in now.models:
        model = seen if seen.read is not None else replace(seen, read=now.at)
        before = known.get(model.name)
        if model.state == "sleeping" and before is not None:
            speeds[model.name] = before
        if not model.loaded:
            continue
        if model.tokens is None or model.seconds is None:
            if before is not None:
                speeds[model.name] = replace(before, company_at=now.at) if requests > 1 else before
        elif before is None or before.seen.pid != model.pid or model.tokens < (before.seen.tokens or 0):
            at = now.at
            speeds[model.name] = Speed(model, model, model, at, at, used=at, worked=at, company_at=at)
        else:
            others = requests - each[model.name]
            speeds[model.name] = _speed(before, model, (requests, others), now, settings)
    return speeds


def _requests(model: Model) -> int:
    """A model that gives no figures, or that is on its way in or out, is busy."""
    if model.requests is not None:
        return model.requests
    return int(model.loaded or model.changing)


def _came_and_went(known: Mapping[str, Speed], model: Model, now: Observation, settings: Settings) -> bool:
    """Whether somebody has worked on the model since the last look who is not there now."""
    before = known.get(model.name)
    return before is not None and not model.requests and _worked(before, model, now, settings)


def _worked(before: Speed, model: Model, now: Observation, settings: Settings) -> bool:
    """Whether the model has worked since the last look for anybody but the canary."""
    if model.tokens is None:
        return False
    tokens = model.tokens - (before.seen.tokens or 0)
    steps = (model.decodes or 0) - (before.seen.decodes or 0)
    prompts = (model.prompts or 0) - (before.seen.prompts or 0)
    if prompts > SPARE_PROMPT + _grain(model.prompts or 0):
        return True
    if model.name in now.asking or model.name in now.canaries:
        own = settings.minimum_tokens
        return tokens > own + _grain(model.tokens) or steps > own + SPARE_STEPS + _grain(model.decodes or 0)
    return tokens > 0 or steps > SPARE_STEPS


def _grain(counter: float) -> float:
    """What a counter is rounded to: it is printed with six digits."""
    return 0.0 if counter < 1e6 else float(10 ** (math.floor(math.log10(counter)) - 5))


def _speed(
    before: Speed, model: Model, requests: tuple[int, int], now: Observation, settings: Settings
) -> Speed:
    """``requests`` since the last look, without a canary's: on the whole lane, and on the other models."""
    assert model.tokens is not None
    assert model.seconds is not None
    canary = now.canaries.get(model.name)
    asked = model.name in now.asking or canary is not None
    # One who asks the model itself after the canary has not slowed it, and who was beside it is counted.
    after = canary is not None and _hidden(model) == 0
    company = requests[1 if after else 0] > (0 if asked else 1) or _crowded(before.seen, model)
    worked = (model.requests and not asked) or _worked(before, model, now, settings)
    used = worked or (not asked and model.decodes != before.seen.decodes)
    speed = replace(
        before,
        company_at=now.at if company else before.company_at,
        deepest=max(before.deepest, model.depth or 0),
        used=now.at if used else before.used,
        worked=now.at if worked else before.worked,
    )
    if model.name in now.asking:
        return speed  # its figure is on the way
    baseline = settings.baselines.get(model.name)
    if canary is not None:
        # Its tokens are in the counters too.
        return _with_canary(_counted(speed, model, now), canary, baseline, now, settings)
    speed = _quick(_gathered(speed, model), model, baseline, settings)
    if _enough(speed, model, settings):
        # An answer may have begun as long ago as all of them took.
        alone = speed.company_at < speed.counted_at - speed.took
        alone = alone and _slow_without_prompts(speed, model, baseline, settings)
        deepest = max(speed.deepest, (model.prompts or 0) - (speed.counted.prompts or 0))
        figure = speed.steps / speed.took
        counted = _follow(_counted(speed, model, now), model, now)
        return _with_figure(counted, figure, alone, deepest, baseline, now, settings)
    written = _written(speed, model)
    following = _follow(replace(speed, seen=model), model, now)
    if written is None or speed.company_at >= speed.followed_at or _read_prompts(speed.followed, model):
        return following
    return _with_figure(following, written, True, speed.deepest, baseline, now, settings)


def _crowded(before: Model, model: Model) -> bool:
    """Whether there were steps for more than one client at once."""
    if before.busy is None or before.decodes is None or model.busy is None or model.decodes is None:
        return False
    return (model.busy - before.busy) - (model.decodes - before.decodes) > _hidden(model)


def _hidden(model: Model) -> float:
    """So many steps for more than one client may be lost in the rounding of the counters."""
    return ROUNDED * model.busy if model.busy is not None and model.busy > EXACT else 0.0


def _read_prompts(before: Model, model: Model) -> bool:
    """Whether prompts were read, while one and the same answer is written: somebody else's."""
    return (model.prompts or 0) - (before.prompts or 0) > _grain(model.prompts or 0)


def _slow_without_prompts(speed: Speed, model: Model, baseline: float | None, settings: Settings) -> bool:
    """A step that is hidden may have been a long prompt of somebody else: then what counts as slow must be so
    without the seconds of all prompts, too."""
    if baseline is None or not _hidden(model):
        return True
    writing = speed.took - ((model.reading or 0) - (speed.counted.reading or 0))
    return writing > 0 and speed.steps / writing < BUSY_SHARE * settings.slow_ratio * baseline


def _counted(speed: Speed, model: Model, now: Observation) -> Speed:
    """Count from here on."""
    deepest = model.depth or 0
    return replace(speed, seen=model, counted=model, counted_at=now.at, steps=0, took=0, deepest=deepest)


def _gathered(speed: Speed, model: Model) -> Speed:
    """What the answers that have ended since the last look took, in steps and seconds."""
    seconds = (model.seconds or 0) - (speed.seen.seconds or 0)
    if seconds <= 0:
        return speed
    # Where somebody else has just asked for the rate it is 0; tokens make it more, by one for each answer.
    rate = model.rate or ((model.tokens or 0) - (speed.seen.tokens or 0)) / seconds
    if not 0 < rate < MOST:
        return speed  # one token takes no time
    return replace(speed, steps=speed.steps + rate * seconds, took=speed.took + seconds)


def _enough(speed: Speed, model: Model, settings: Settings) -> bool:
    """Whether so much has been gathered that it says something."""
    steps = (model.decodes or 0) - (speed.counted.decodes or 0)
    return speed.steps >= settings.minimum_tokens and steps >= CLEAR_STEPS * _hidden(model)


def _quick(speed: Speed, model: Model, baseline: float | None, settings: Settings) -> Speed:
    """Sound, however many clients there are, where it made so many steps in the time: none is shorter than
    that of a client alone."""
    if baseline is None or speed.seen.decodes is None or model.decodes is None:
        return speed
    steps = model.decodes - speed.seen.decodes - _grain(model.decodes)
    if steps < settings.slow_ratio * baseline * _seconds(speed.seen, model):
        return speed
    return replace(speed, suspect=False, low=(), slow=False, canaries=0)


def _seconds(before: Model, model: Model) -> float:
    """From the figures of one look to those of another."""
    assert before.read is not None
    assert model.read is not None
    return model.read - before.read


def _with_canary(
    speed: Speed, figure: float, baseline: float | None, now: Observation, settings: Settings
) -> Speed:
    speed = replace(speed, figure=figure, figure_at=now.at)
    if baseline is None or speed.company_at > speed.asked:
        return speed  # beside other work its figure says nothing
    if figure < settings.slow_ratio * baseline:
        return replace(speed, suspect=True, canaries=speed.canaries + 1)
    return replace(speed, suspect=False, canaries=0, low=(), slow=False, cleared=now.at)


def _with_figure(
    speed: Speed,
    figure: float,
    alone: bool,
    deepest: float,
    baseline: float | None,
    now: Observation,
    settings: Settings,
) -> Speed:
    speed = replace(speed, figure=figure, figure_at=now.at)
    if baseline is None:
        return speed
    if figure >= settings.slow_ratio * baseline:
        return replace(speed, suspect=False, low=(), slow=False, canaries=0)
    if not alone or deepest > DEEP_TOKENS:
        return replace(speed, suspect=True)
    low = (*(one for one in speed.low if now.at - one[0] <= SLOW_WITHIN), (now.at, figure))
    lasts = len(low) >= SLOW_FIGURES and low[-1][0] - low[0][0] >= SLOW_SECONDS
    slow = lasts and sum(one[1] for one in low) / len(low) < BUSY_SHARE * settings.slow_ratio * baseline
    # What counts already goes on to count until it is fast again.
    return replace(speed, suspect=True, low=low, slow=speed.slow or slow)


def _written(speed: Speed, model: Model) -> float | None:
    """The speed of an answer that is being written since an earlier look, None for another answer."""
    if not _same_answer(speed, model):
        return None
    assert model.answer is not None
    assert speed.followed.answer is not None
    seconds, tokens = _seconds(speed.followed, model), model.answer[1] - speed.followed.answer[1]
    return tokens / seconds if seconds >= WRITTEN_SECONDS and 0 < tokens < MOST * seconds else None


def _follow(speed: Speed, model: Model, now: Observation) -> Speed:
    """Remember how far the answer is, from its first look on and anew after each figure."""
    if _same_answer(speed, model) and _seconds(speed.followed, model) < WRITTEN_SECONDS:
        return speed
    return replace(speed, followed=model, followed_at=now.at)


def _same_answer(speed: Speed, model: Model) -> bool:
    followed = speed.followed.answer
    return model.answer is not None and followed is not None and model.answer[0] == followed[0]


def slow_reason(speed: Speed | None, name: str, settings: Settings) -> str:
    """Why ``name`` counts as slow, or nothing. Without a baseline nothing is slow."""
    baseline = settings.baselines.get(name)
    if speed is None or baseline is None or speed.figure is None:
        return ""
    if not speed.slow and speed.canaries < SLOW_CANARIES:
        return ""
    share = 100 * speed.figure / baseline
    return f"{name} makes {speed.figure:.1f} tok/s, {share:.0f} % of its {baseline:.1f}"
