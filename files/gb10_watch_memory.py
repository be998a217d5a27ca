"""What outlives a restart of the watch: how often it has acted, what it was waiting for, what it has told.

Imported by gb10_watch.py; python3 standard library only.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from gb10_watch_report import say
from gb10_watch_state import RANK, History, Raised, Reason, Recovery

HOUR = 3600
DAY = 86400
MOST = 10**6  # restarts of a unit


class Told(NamedTuple):
    """What everybody knows: the lane's state, since when (UTC), and the keys of its reasons."""

    state: str
    since: str
    keys: frozenset[str]


def remembered(path: str) -> tuple[History, Told | None]:
    """What an earlier run has kept. Anything else than what it writes counts as nothing, and is said.

    Its times are of the same clock: the folder does not outlive a boot.
    """
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        told = kept["told"]
        return _history(kept), Told(
            _state(told["state"]), str(told["since"]), frozenset(map(str, told["keys"]))
        )
    except FileNotFoundError:
        return History(), None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        say(4, f"what an earlier watch has kept in {path} cannot be used: it begins anew")
        return History(), None


def _history(kept: dict[str, Any]) -> History:
    recovery = kept["recovery"]
    # By the clock on the wall, which goes on over a boot. What systemd has counted since an old look, or one
    # of another boot, is no news: its figure is only where to count from.
    lately = 0 <= time.time() - float(kept.get("looked", 0)) < HOUR
    return History(
        attempts=tuple(_time(at) for at in kept["attempts"]),
        crashes=tuple(_time(at) for at in kept["crashes"]),
        restarts=_count(kept["restarts"]) if lately and kept["restarts"] is not None else None,
        stopped=str(kept["stopped"]),
        proven=str(kept["proven"]),
        proven_full=str(kept["proven_full"]),
        invocation=str(kept["invocation"]),
        answered=str(kept["answered"]),
        ran=str(kept.get("ran", "")),
        container=str(kept["container"]),
        recovery=None
        if recovery is None
        else Recovery(
            _time(recovery["began"]), str(recovery["why"]), bool(recovery["proven"]), bool(recovery["ended"])
        ),
        raised={
            str(key): Raised(
                Reason(str(key), _state(one["state"]), str(one["text"])),
                _time(one["since"]),
                _time(one["seen"]),
            )
            for key, one in kept["raised"].items()
        },
    )


def _time(value: Any) -> float:
    """Seconds of the watch's clock. Raises ValueError for what it cannot have shown (NaN among it)."""
    at = float(value)
    if not 0 <= at <= time.monotonic() + DAY:
        raise ValueError(value)
    return at


def _count(value: Any) -> int:
    count = int(value)
    if not 0 <= count <= MOST:
        raise ValueError(value)
    return count


def _state(text: str) -> str:
    if text not in RANK:
        raise ValueError(text)
    return text


def to_remember(history: History, told: Told) -> str:
    """As a text. Without it the watch would forget how often it has acted, and tell everything again."""
    recovery = history.recovery
    kept = {
        # To the minute: the file is written when something has changed.
        "looked": int(time.time()) // 60 * 60,
        "attempts": history.attempts,
        "crashes": history.crashes,
        "restarts": history.restarts,
        "stopped": history.stopped,
        "proven": history.proven,
        "proven_full": history.proven_full,
        "invocation": history.invocation,
        "answered": history.answered,
        "ran": history.ran,
        "container": history.container,
        "recovery": None
        if recovery is None
        else {
            "began": recovery.began,
            "why": recovery.why,
            "proven": recovery.proven,
            "ended": recovery.ended,
        },
        "raised": {
            key: {
                "state": one.reason.state,
                "text": one.reason.text,
                "since": one.since,
                "seen": one.seen,
            }
            for key, one in history.raised.items()
        },
        "told": {"state": told.state, "since": told.since, "keys": sorted(told.keys)},
    }
    return json.dumps(kept) + "\n"
