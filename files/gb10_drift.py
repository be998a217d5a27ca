#!/usr/bin/env python3
"""The nightly look: is this box still what the last deploy left?

It takes the same look as `gb10 drift` does from outside (drift_state.py beside this file) and compares it
with the one that the deploy recorded: files, unit, container, key, versions, ports, model files. What only
the repository can say (is this still what is wanted?) is not known here.

Usage: gb10_drift.py RECORD.json
The result lies where the record says: {"version": 1, "time": text, "state": "clean" | "drift" | "unknown",
"reason": text, "items": [{"item", "was", "is"}]}. When it is another one than before, the record's
notify_command gets {"host", "source", "state", "reason", "new", "gone", "items"} on its standard input.
Exit status: 0 clean or drift, 1 could not tell, 2 bad usage.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

LOOK_SECONDS = 900
NOTIFY_SECONDS = 60
UNDER_WAY = "a deploy was under way"
TEXT = 300  # characters of one value that are shown

Item = dict[str, str]


def flat(facts: dict[str, Any]) -> dict[str, str]:
    """Each value as text; a mapping gives an entry for each of its keys."""
    found = {}
    for key, value in facts.items():
        if isinstance(value, dict):
            found.update({f"{key} {name}": shown(inner) for name, inner in value.items()})
        else:
            found[key] = shown(value)
    return found


def shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return " ".join(text.split())[:TEXT]


def differences(before: dict[str, str], now: dict[str, str]) -> list[Item]:
    return [
        {"item": key, "was": before.get(key, "nothing"), "is": now.get(key, "nothing")}
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def since(record: dict[str, Any], readings: dict[str, Any], name: str) -> int:
    """How often it happened since the record; the counters begin anew at a boot."""
    before, now = int(record["counters"][name]), int(readings[name])
    fresh = now < before or (record["boot"] != readings["boot"] and now != before)
    return now if fresh else now - before


def of_readings(record: dict[str, Any], readings: dict[str, Any]) -> list[Item]:
    """What came up by itself: crashes, full disks, a reboot that is wanted, packages that would move."""
    found = []
    for name, item in (("oom_kills", "box: OOM kills"), ("restarts", "router: restarts")):
        if count := since(record, readings, name):
            found.append({"item": item, "was": "0 since the deploy", "is": f"{count} since the deploy"})
    percent = record["nightly"]["disk_percent"]
    for path, (free, size) in readings["disks"].items():
        if size and 100 * (size - free) / size > percent:
            is_ = f"{100 * (size - free) / size:.0f} % full"
            found.append({"item": f"box: disk {path}", "was": f"at most {percent} % full", "is": is_})
    if readings["reboot"] is not None:
        found.append({"item": "box: reboot", "was": "not wanted", "is": shown(readings["reboot"])})
    for package, (installed, candidate) in readings["would_move"].items():
        found.append({"item": f"toolkit: apt would move {package}", "was": installed, "is": candidate})
    return found


def judge(record: dict[str, Any], seen: dict[str, Any], today: str) -> list[Item]:
    """Every difference, without those that the data ignores until a later day than ``today``."""
    files = {f"file {path}": state for path, state in record["files"].items()}
    now = {f"file {path}": state for path, state in seen["files"].items()}
    items = [
        *differences(flat(record["facts"]), flat(seen["facts"])),
        *differences(files, now),
        *of_readings(record, seen["readings"]),
    ]
    ignored = {entry["item"] for entry in record["nightly"]["ignore"] if entry["expires"] > today}
    return [item for item in items if item["item"] not in ignored]


def look(record: dict[str, Any]) -> dict[str, Any]:
    """The box as it is. Raises OSError or ValueError where that cannot be told."""
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "drift_state.py")
    command = [sys.executable, "-I", program, json.dumps(record["question"])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"the look took longer than {LOOK_SECONDS} s") from None
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or ["the look failed"])[-1])
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def read(path: str) -> dict[str, Any]:
    """A JSON object. Raises OSError, ValueError."""
    with open(path, encoding="utf-8") as file:
        found = json.load(file)
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")
    return found


def write(path: str, result: dict[str, Any]) -> None:
    """Whole or not at all."""
    new = f"{path}.new"
    with open(new, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), 0o644)
        json.dump(result, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def result_of(record: dict[str, Any]) -> dict[str, Any]:
    try:
        seen = look(record)
        if seen["lock"] is not None:
            return {"state": "unknown", "reason": UNDER_WAY, "items": []}
        items = judge(record, seen, time.strftime("%Y-%m-%d", time.gmtime()))
    except (OSError, ValueError, LookupError, TypeError) as error:
        return {"state": "unknown", "reason": shown(str(error)), "items": []}
    return {"state": "drift" if items else "clean", "reason": "", "items": items}


def told(command: list[str], before: dict[str, Any], now: dict[str, Any]) -> str:
    """Tell ``command`` what has changed; why that did not work, or an empty text."""
    old, new = ({json.dumps(item, sort_keys=True) for item in one.get("items", [])} for one in (before, now))
    message = {
        "host": socket.gethostname(),
        "source": "gb10 drift",
        "state": now["state"],
        "reason": now["reason"],
        "new": [json.loads(item) for item in sorted(new - old)],
        "gone": [json.loads(item) for item in sorted(old - new)],
        "items": now["items"],
    }
    try:
        done = subprocess.run(
            command,
            input=json.dumps(message),
            text=True,
            timeout=NOTIFY_SECONDS,
            capture_output=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return f"{command[0]} ended with {done.returncode}" if done.returncode else ""


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        record = read(arguments[0])
        path, command = str(record["nightly"]["result"]), list(record["nightly"]["notify_command"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        print(f"{arguments[0]} cannot be read: {error}: run the deploy again", file=sys.stderr)
        return 1
    with open(f"{path}.lock", "w", encoding="utf-8") as lock:
        # One at a time: a start by hand may meet the timer's.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            before = read(path)
        except (OSError, ValueError):
            before = {"state": "clean", "reason": "", "items": []}
        result = {
            "version": 1,
            "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            **result_of(record),
        }
        # A look that a deploy got in the way of is no news.
        waits = result["reason"] == UNDER_WAY
        if not waits:
            write(path, result)
            news = any(result[key] != before.get(key) for key in ("state", "reason", "items"))
            failure = told(command, before, result) if command and news else ""
            if failure:
                print(f"the notification failed: {failure}", file=sys.stderr)
    for item in result["items"]:
        print(f"{item['item']}: was {item['was']}, is {item['is']}")
    print(f"{result['state']}{': ' if result['reason'] else ''}{result['reason']}")
    return 1 if result["state"] == "unknown" and not waits else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
