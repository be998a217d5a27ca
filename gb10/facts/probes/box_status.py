"""The box at a glance: see BoxStatus in gb10/facts/probe.py for question and answer."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

from gb10.facts.probes._deploy_lock import deploy_lock
from gb10.facts.probes._others_file import others_text


def run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def properties(text: str) -> dict[str, str]:
    """``Key=value`` lines as a mapping."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def object_of(path: str) -> dict[str, Any] | None:
    """The JSON object in a file, which may be another user's. None when there is none."""
    try:
        found = json.loads(others_text(path))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def age_of(path: str) -> int | None:
    """Seconds since the file was written, None where there is none."""
    try:
        return max(0, round(time.time() - os.stat(path).st_mtime))
    except OSError:
        return None


def unit_state(name: str) -> dict[str, object]:
    """``active``, ``enabled``, ``restarts`` and since how many seconds it is in its state (or None)."""
    wanted = "--property=ActiveState,UnitFileState,NRestarts,Result,StateChangeTimestampMonotonic"
    shown = properties(run("systemctl", "show", name, wanted))
    since = shown.get("StateChangeTimestampMonotonic", "0")
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    return {
        "active": shown.get("ActiveState", "unknown"),
        "enabled": shown.get("UnitFileState", ""),
        "result": shown.get("Result", ""),
        "restarts": int(shown["NRestarts"]) if shown.get("NRestarts", "").isdigit() else 0,
        "seconds": round(now - int(since) / 1e6) if since.isdigit() and since != "0" else None,
    }


def memory() -> dict[str, int]:
    """MiB: total and available."""
    values = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text_of("/proc/meminfo"), re.MULTILINE))
    return {name: int(values.get(key, 0)) // 1024 for name, key in
            (("total", "MemTotal"), ("available", "MemAvailable"))}  # fmt: skip


def asked_router(programs: str, lane_file: str) -> dict[str, Any]:
    """Model name to state, by the lane's own program; ``error`` when it cannot say."""
    sys.path.insert(0, programs)
    sys.dont_write_bytecode = True  # a look leaves nothing behind
    try:
        # It lies on the box: this program brings nothing but itself.
        try:
            router = importlib.import_module("gb10_router")
        except ModuleNotFoundError:
            return {"error": "nothing is deployed here yet: run the deploy", "models": {}}
        with open(lane_file, encoding="utf-8") as file:
            lane = json.load(file)
        states = router.model_states(router.request(lane, "GET", "/models", timeout=5))
    except Exception as error:  # whatever is wrong there, it is one line here
        return {"error": " ".join(str(error).split())[:300] or type(error).__name__, "models": {}}
    return {"error": "", "models": {name: state for name, (state, _) in states.items()}}


def main(question: dict[str, Any]) -> dict[str, object]:
    lane = question["lane"]
    watch = unit_state("gb10-watch.service")
    status = object_of(question["status"])
    age = None if status is None else age_of(question["status"])
    # A watch that has just looked has asked the router already.
    fresh = watch["active"] == "active" and age is not None and age < 60
    image = run("docker", "container", "inspect", "--format", "{{.Config.Image}}", lane)
    return {
        "deploy": deploy_lock(question["lock"]),
        "uptime_seconds": round(float((text_of("/proc/uptime").split() or ["0"])[0])),
        "lane": unit_state(f"{lane}.service"),
        "image": image,
        "memory": memory(),
        "watch": watch,
        "status": status,
        "status_age_seconds": age,
        "night": {
            "found": object_of(question["drift"]),
            "age_seconds": age_of(question["drift"]),
            "deploy_age_seconds": age_of(question["record"]),
            "result": unit_state("gb10-drift.service")["result"],
        },
        "router": None if fresh else asked_router(question["programs"], question["lane_file"]),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
