"""What `gb10 status` shows: what the box said, beside what was planned and described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gb10.desired import Desired
from gb10.drift.by_itself import NIGHT_SECONDS
from gb10.memory import MIB
from gb10.plan import total_of

NO_WATCH = "not installed: run the deploy"


def status_json(box: Desired, said: Mapping[str, Any]) -> dict[str, Any]:
    """One object: ``said`` is the answer of `BoxStatus`. Memory in MiB, speed in tok/s, ages in seconds.

    ``state`` is the watch's word, or ``unknown`` where no watch has looked within a minute.
    """
    status = said["status"] or {}
    watching = said["watch"]["active"] == "active" and (said["status_age_seconds"] or 0) < 60 and bool(status)
    models = _models(box, said, status if watching else {})
    planned = [model["planned_mib"] for model in models if model["state"] in ("loaded", "sleeping")]
    plan = box.plan
    return {
        "state": status.get("state", "unknown") if watching else "unknown",
        "since": status.get("since") if watching else None,
        "reasons": [reason["text"] for reason in status.get("reasons", [])] if watching else [],
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
            "described": watching and status.get("watch", {}).get("description") == box.watch_description,
            "probe": status.get("probe") if watching else None,
            "note": _watch_note(said, watching),
        },
        "drift": _night(said["night"]),
        "actions": status.get("actions", []),
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


def _watch_note(said: Mapping[str, Any], watching: bool) -> str | None:
    if watching:
        return None
    if said["status"] is None and said["watch"]["enabled"] == "":
        return NO_WATCH
    if said["watch"]["active"] != "active":
        return f"{said['watch']['active']}: gb10 logs --watch says why"
    return "it has not looked for a minute: gb10 logs --watch says why"


def _models(box: Desired, said: Mapping[str, Any], status: Mapping[str, Any]) -> list[dict[str, Any]]:
    planned = {preset.name: round(preset.total / MIB) for preset in box.plan.known}
    baselines = {name: one.tokens_per_second for name, one in box.baselines.items()}
    if status:
        seen = {model["name"]: model for model in status.get("models", [])}
    else:
        seen = {
            name: {"name": name, "state": state}
            for name, state in (said["router"] or {}).get("models", {}).items()
        }
    return [
        {
            "name": name,
            "state": model["state"],
            "failed": model.get("failed", False),
            "on_accelerator": None if model.get("holds") is None else bool(model["holds"]),
            "tokens_per_second": model.get("tokens_per_second"),
            "baseline": model.get("baseline", baselines.get(name)),
            "baseline_stale": model.get("baseline_stale", ""),
            "requests": model.get("requests"),
            "planned_mib": planned.get(name),
        }
        for name, model in seen.items()
    ]
