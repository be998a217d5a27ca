"""What the watch makes of what it sees: a pure state machine, no clock, no file, no network of its own.

`judge` takes what is remembered, one observation and the settings, and says what the lane's state is, why
(gb10_watch_reasons.py), and what to do (gb10_watch_actions.py). Imported by gb10_watch.py; python3 standard
library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gb10_watch_actions import KEPT_SECONDS, actions_of, asks_fully, recovery_of
from gb10_watch_canary import canaries_wanted
from gb10_watch_reasons import DEATH_SECONDS, reasons_of
from gb10_watch_speed import remembered_speeds
from gb10_watch_state import HEALTHY, RANK, History, Observation, Raised, Reason, Settings, Verdict

HOLD_SECONDS = 600  # how long an event (an OOM kill, a driver error) is a reason
MOST_EVENTS = 20  # that are reasons at a time, the latest: a storm of them fills no screen
HOUR = 3600
AGAIN = frozenset({125, 132, 134, 135, 136, 137, 139})  # RestartForceExitStatus of the lane's unit
LIMIT_CRASHES, LIMIT_SECONDS = 4, 600  # its StartLimitBurst (less the first start), StartLimitIntervalSec
ENDED = 143  # by SIGTERM, as a stop does it; systemd does not start it again after that either
OUT_SECONDS = 30  # an ask that is still out belongs to a silence no older than this
OWN_START_SECONDS = 15  # after a crash: the start that follows is systemd's own


def judge(history: History, now: Observation, settings: Settings) -> Verdict:
    """One step. The same input gives the same output."""
    history = _remember(history, now, settings)
    history, given_up = _others_work(history, now)
    found = {reason.key: reason for reason in reasons_of(history, now, settings)}
    history = _raise(history, found, now, settings)
    history, recovered = recovery_of(history, now, settings)
    history, actions = actions_of(history, now, settings)
    history, canaries = canaries_wanted(history, now, settings)
    reasons = tuple(
        sorted((r.reason for r in history.raised.values()), key=lambda r: (-RANK[r.state], r.key))
    )
    state = max((reason.state for reason in reasons), key=RANK.__getitem__, default=HEALTHY)
    fully = asks_fully(history, now)
    return Verdict(history, state, reasons, actions, canaries, recovered or given_up, fully)


# -- memory of what was seen ------------------------------------------------------------------------


def _remember(history: History, now: Observation, settings: Settings) -> History:
    unit = now.unit
    crashes = tuple(at for at in history.crashes if now.at - at < HOUR)
    restarts = history.restarts if unit.active == "unknown" else unit.restarts
    # What happened before the first look may be days old: it is not counted.
    if history.restarts is not None and restarts is not None:
        # A start by hand begins a new count.
        since = history.restarts if restarts >= history.restarts else 0
        crashes += (now.at,) * (restarts - since)
    if _other_container(history, now):
        crashes += (now.at,)
    died = frozenset(model.name for model in now.models if model.failed)
    deaths = {
        name: tuple(at for at in times if now.at - at < DEATH_SECONDS)
        for name, times in history.deaths.items()
    }
    for name in died - history.dead:
        deaths[name] = (*deaths.get(name, ()), now.at)
    stopped, answered, proven = history.stopped, history.answered, history.proven
    down = unit.active in ("inactive", "failed")
    unstopped = tuple(one for one in history.unstopped if now.at - one[0] < HOUR and not down)
    if stopped and not down:  # what has ended now was the stop
        unstopped += tuple((now.at, done.error) for done in now.done if done.error)
    over = down or any(not done.error for done in now.done)
    if over and (stopped or history.unstopped):
        crashes = ()  # they are dealt with: whoever starts the lane again gets as many anew
    if unit.active == "active":
        if not now.busy:
            stopped = ""  # somebody has started it again, or it could not be stopped
        if not (now.router_fault or now.refusal or now.waiting):
            answered = unit.invocation
    probe = now.probe
    full = history.proven_full
    if probe is not None and probe.answer == "yes" and probe.at >= unit.since and now.container:
        proven, full = (proven, now.container) if probe.full else (now.container, full)
    return replace(
        history,
        crashes=crashes,
        restarts=restarts,
        # One of another start is none to compare with.
        container=now.container or (history.container if unit.invocation == history.invocation else ""),
        deaths={name: times for name, times in deaths.items() if times},
        dead=died if now.models else history.dead,
        attempts=tuple(at for at in history.attempts if now.at - at < HOUR),
        stopped=stopped,
        unstopped=unstopped,
        kept={
            **{name: at for name, at in history.kept.items() if now.at - at < KEPT_SECONDS},
            **{done.target: now.at for done in now.done if done.kind == "unload" and done.error},
        },
        answered=answered,
        unanswered=now.at if now.router_fault else history.unanswered,
        ran=unit.invocation if unit.active == "active" else history.ran,
        proven=proven,
        proven_full=full,
        full=probe.at if probe is not None and probe.full else history.full,
        speeds=remembered_speeds(history.speeds, now, settings),
    )


def _other_container(history: History, now: Observation) -> bool:
    """Another container in the same start of the unit: nobody has asked for it."""
    same_start = now.unit.active == "active" and now.unit.invocation == history.invocation != ""
    other = now.container != history.container and bool(now.container and history.container)
    return same_start and other and not now.busy


def _others_work(history: History, now: Observation) -> tuple[History, str]:
    """A start or a clean stop by somebody else: what the watch had begun is over, and its count too.

    The text is what became of a restart by the watch of which nothing was known yet.
    """
    if now.busy:
        return history, ""  # what changes meanwhile may be the action's
    unit, before = now.unit, history
    history = replace(history, invocation=unit.invocation or history.invocation)
    if any(done.left for done in now.done):
        return replace(history, recovery=None, attempts=history.attempts[:-1]), ""
    if history.recovery is not None and any(done.kind == "restart" for done in now.done):
        history = replace(history, recovery=replace(history.recovery, ended=True))
    if _was_stopped(history, now) and not history.stopped:
        return _let_go(history, "somebody has stopped the lane")
    if not before.invocation or unit.invocation in ("", before.invocation) or now.done:
        return history, ""
    if before.recovery is not None and not before.recovery.ended:
        # The watch itself was started anew while its restart went on.
        return replace(history, recovery=replace(before.recovery, ended=True)), ""
    if history.crashes and now.at - history.crashes[-1] < OWN_START_SECONDS:
        return history, ""
    return _let_go(history, "somebody else has started the lane")


def _was_stopped(history: History, now: Observation) -> bool:
    """Whether the unit rests because somebody has stopped it, and not of itself.

    After a death by a signal, a time that ran out, or one of `AGAIN`, systemd starts it again: one that rests
    all the same was to be stopped. (A stop ends the gate by a signal, and a router by force if it must.) One
    that `ENDED` was told to.
    """
    unit = now.unit
    if unit.active != "failed":
        return unit.active == "inactive" and unit.result == "success"
    # What the main process ended with is of this start only if it has run in it. After so many crashes it was
    # systemd that gave up.
    ran = history.ran == unit.invocation != ""
    gave_up = len([at for at in history.crashes if now.at - at < LIMIT_SECONDS]) >= LIMIT_CRASHES
    forced = unit.result == "exit-code" and unit.status in (*AGAIN, ENDED)
    return unit.result in ("signal", "core-dump", "timeout") or (ran and forced and not gave_up)


def _let_go(history: History, text: str) -> tuple[History, str]:
    pending = history.recovery is not None
    crashes = () if history.unstopped else history.crashes
    history = replace(history, recovery=None, attempts=(), crashes=crashes, unstopped=())
    return history, text if pending else ""


def _raise(history: History, found: Mapping[str, Reason], now: Observation, settings: Settings) -> History:
    """Hysteresis: a reason counts once it has lasted, and counts until it has been away for a while."""
    waiting: dict[str, tuple[float, int]] = {}
    silence = history.waiting.get("router.silent")
    if silence is not None and now.waiting and now.at - history.unanswered <= OUT_SECONDS:
        waiting["router.silent"] = silence  # an ask that is still out ends no silence: an answer does
    raised = dict(history.raised)
    for key, reason in found.items():
        since, looks = history.waiting.get(key, (now.at, 0))
        waiting[key] = (since, looks + 1)
        if key in raised:
            raised[key] = Raised(reason, raised[key].since, now.at)
        elif reason.confirm == 0 or (looks >= 1 and now.at - since >= reason.confirm):
            raised[key] = Raised(reason, now.at, now.at)
    for key, one in history.raised.items():
        held = HOLD_SECONDS if _is_event(key) else settings.clear_seconds
        if key not in found and now.at - one.seen >= held:
            del raised[key]
    for key in sorted(filter(_is_event, raised), key=lambda key: raised[key].seen)[:-MOST_EVENTS]:
        del raised[key]
    if history.stopped and "lane.stopped" in raised:
        # What led to the stop is in its text; a lane that is stopped has no other fault.
        raised = {
            key: one for key, one in raised.items() if not key.startswith(("accelerator.", "lane.failed"))
        }
    return replace(history, waiting=waiting, raised=raised)


def _is_event(key: str) -> bool:
    return key.startswith(("oom:", "driver:"))
