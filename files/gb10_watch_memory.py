"""What outlives a restart of the watch: how often it has acted, what it was waiting for, what it has told.

Imported by gb10_watch.py; python3 standard library only.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from gb10_watch_state import RANK, History, Raised, Reason, Recovery


class Told(NamedTuple):
    """What everybody knows: the lane's state, since when (UTC), and the keys of its reasons."""

    state: str
    since: str
    keys: frozenset[str]


def remembered(path: str) -> tuple[History, Told | None]:
    """What an earlier run has kept. Anything else than what it writes counts as nothing.

    Its times are of the same clock: the folder does not outlive a boot.
    """
    try:
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        told = kept["told"]
        return _history(kept), Told(
            _state(told["state"]), str(told["since"]), frozenset(map(str, told["keys"]))
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return History(), None


def _history(kept: dict[str, Any]) -> History:
    recovery = kept["recovery"]
    return History(
        attempts=tuple(float(at) for at in kept["attempts"]),
        crashes=tuple(float(at) for at in kept["crashes"]),
        restarts=int(kept["restarts"]) if kept["restarts"] is not None else None,
        stopped=str(kept["stopped"]),
        proven=str(kept["proven"]),
        proven_full=str(kept["proven_full"]),
        invocation=str(kept["invocation"]),
        answered=str(kept["answered"]),
        container=str(kept["container"]),
        recovery=None
        if recovery is None
        else Recovery(
            float(recovery["began"]), str(recovery["why"]), bool(recovery["proven"]), bool(recovery["ended"])
        ),
        raised={
            str(key): Raised(
                Reason(str(key), _state(one["state"]), str(one["text"])),
                float(one["since"]),
                float(one["seen"]),
            )
            for key, one in kept["raised"].items()
        },
    )


def _state(text: str) -> str:
    if text not in RANK:
        raise ValueError(text)
    return text


def to_remember(history: History, told: Told) -> str:
    """As a text. Without it the watch would forget how often it has acted, and tell everything again."""
    recovery = history.recovery
    kept = {
        "attempts": history.attempts,
        "crashes": history.crashes,
        "restarts": history.restarts,
        "stopped": history.stopped,
        "proven": history.proven,
        "proven_full": history.proven_full,
        "invocation": history.invocation,
        "answered": history.answered,
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
