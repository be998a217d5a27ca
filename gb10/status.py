"""What `gb10 status` shows: what the box said, beside what was planned and described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gb10.desired import Desired
from gb10.drift.by_itself import NIGHT_SECONDS
from gb10.memory import MIB
from gb10.plan import total_of

NO_WATCH = "not installed: run the deploy"


class _Part(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


class _Reason(_Part):
    text: str


class _Model(_Part):
    name: str
    state: str
    failed: bool = False
    holds: str | None = None
    requests: int | None = None
    tokens_per_second: float | None = None
    baseline: float | None = None
    baseline_stale: str = ""


class _Probe(_Part):
    answer: str
    text: str


class _Action(_Part):
    model_config = ConfigDict(extra="allow")

    at: str = ""
    action: str = "?"
    target: str = ""


class _About(_Part):
    description: str = ""


class WatchStatus(_Part):
    """What is used here of the watch's status.json. The file belongs to a user with the least rights: there
    may be anything in it."""

    state: Literal["healthy", "degraded", "failed"]
    since: str | None = None
    reasons: list[_Reason] = Field(default_factory=list)
    models: list[_Model] = Field(default_factory=list)
    probe: _Probe | None = None
    actions: list[_Action] = Field(default_factory=list)
    watch: _About = Field(default_factory=_About)


def status_json(box: Desired, said: Mapping[str, Any]) -> dict[str, Any]:
    """One object: ``said`` is the answer of `BoxStatus`. Memory in MiB, speed in tok/s, ages in seconds.

    ``state`` is the watch's word, ``unknown`` where no watch has looked within a minute, and ``failed`` where
    the unit rests and the watch does not say so yet.
    """
    status, odd = None, ""
    try:
        status = WatchStatus.model_validate(said["status"]) if said["status"] is not None else None
    except ValidationError as error:
        first = error.errors()[0]
        odd = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    fresh = said["watch"]["active"] == "active" and (said["status_age_seconds"] or 0) < 60
    now = status if fresh else None
    state, reasons = (now.state, [reason.text for reason in now.reasons]) if now else ("unknown", [])
    # The watch waits before it calls a stop a fault: somebody may be at work. Who asks here is told at once.
    resting = said["lane"]["active"] in ("inactive", "failed") and not said["deploy"]
    if state == "healthy" and resting:
        state, reasons = "failed", [f"the unit is {said['lane']['active']}"]
    models = _models(box, said, now)
    planned = [model["planned_mib"] for model in models if model["state"] in ("loaded", "sleeping")]
    plan = box.plan
    return {
        "state": state,
        "since": now.since if now else None,
        "reasons": reasons,
        "deploy": said["deploy"],
        "lane": {
            "unit": box.unit,
            **said["lane"],
            "address": f"{box.data.lane_address}:{box.data.lane_port}",
        },
        "image": {
            "running": said["image"],
            "described": box.image,
            "same": said["image"] == box.image if said["image"] else None,
        },
        "models": models,
        "router": (said["router"] or {}).get("error") or None,
        "memory": {
            **said["memory"],
            "planned_loaded": None if None in planned else sum(planned),
            "planned_worst": round(total_of(plan.worst(plan.models_max)) / MIB) if plan.models_max else None,
            "budget": box.data.memory_total_mib - box.data.memory_reserve_mib,
            "reserve": box.data.watch_memory_reserve_mib,
        },
        "watch": {
            "active": said["watch"]["active"],
            "seconds": said["watch"]["seconds"],
            "restarts": said["watch"]["restarts"],
            "described": now is not None and now.watch.description == box.watch_description,
            "probe": now.probe.model_dump() if now and now.probe else None,
            "note": None if now else _watch_note(said, odd if fresh else ""),
        },
        "drift": _night(said["night"]),
        "actions": [action.model_dump() for action in status.actions] if status else [],
        "uptime_seconds": said["uptime_seconds"],
    }


def _night(night: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the box's look at night for drift has found (files/gb10_drift.py); None when the first one since
    the deploy is still to come. One that is old, or that ended badly, is no "clean"."""
    found, result = night["found"], night["result"]
    age = night["deploy_age_seconds"] if night["age_seconds"] is None else night["age_seconds"]
    failed = result not in ("", "success")
    late = age is None or age > NIGHT_SECONDS
    if night["age_seconds"] is None and not failed and not late:
        return None
    found = found or {}
    state, reason = str(found.get("state", "unknown")), str(found.get("reason", ""))
    if late:
        state = "unknown"
        reason = (
            "no deploy is recorded" if age is None else f"it has not looked at itself for {age // 3600} h"
        )
    elif failed or state not in ("clean", "drift"):
        state, reason = "unknown", reason or f"gb10-drift.service ended with {result or 'nothing'}"
    return {
        "time": str(found.get("time", "")),
        "state": state,
        "reason": reason,
        "items": [str(item.get("item", "")) for item in found.get("items", [])],
        "untold": "untold" in found,
    }


def _watch_note(said: Mapping[str, Any], odd: str) -> str:
    if said["status"] is None and said["watch"]["enabled"] == "":
        return NO_WATCH
    if said["watch"]["active"] != "active":
        return f"{said['watch']['active']}: gb10 logs --watch says why"
    if odd:
        return f"what it has written has another shape ({odd}): run the deploy"
    return "it has not looked for a minute: gb10 logs --watch says why"


def _models(box: Desired, said: Mapping[str, Any], status: WatchStatus | None) -> list[dict[str, Any]]:
    planned = {preset.name: round(preset.total / MIB) for preset in box.plan.known}
    catalogued = {model.name for model in box.catalogue.models}
    baselines = {name: one.tokens_per_second for name, one in box.baselines.items()}
    if status:
        seen = status.models
    else:
        states = (said["router"] or {}).get("models", {})
        seen = [
            _Model(name=name, state=state, baseline=baselines.get(name)) for name, state in states.items()
        ]
    return [
        {
            "name": model.name,
            "state": model.state,
            "failed": model.failed,
            "on_accelerator": None if model.holds is None else bool(model.holds),
            "tokens_per_second": model.tokens_per_second,
            "baseline": model.baseline,
            "baseline_stale": model.baseline_stale,
            "requests": model.requests,
            "planned_mib": planned.get(model.name),
            "in_catalogue": model.name in catalogued,
        }
        for model in seen
    ]
