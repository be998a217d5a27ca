#!/usr/bin/env python3
"""The nightly look: is this box still what the last deploy left?

It takes the same look as `gb10 drift` does from outside (drift_state.py beside this file) and compares it
with the one that the deploy recorded: files, unit, container, key, versions, ports, model files. What only
the repository can say (is this still what is wanted?) is not known here. Secrets are masked as `gb10 drift`
masks them (gb10_mask.py beside this file).

Usage: gb10_drift.py SETTINGS.json RECORD.json RESULT.json
SETTINGS: {"notify_command": [...], "ignore": [{"item", "expires", ...}], "disk_percent": number,
"names": {path or fact: item as `gb10 drift` names it}, "secrets": [paths of files that hold one]}.
RESULT: {"version": 1, "time": text, "state": "clean" | "drift" | "unknown", "reason": text,
"items": [{"item", "was", "is"}]}, and "untold" (what was told last) until notify_command has taken it. When
it is another one than was told last, notify_command gets {"host", "source", "state", "reason", "new",
"gone", "items"} on its standard input.
Exit status: 0 clean or drift, 1 could not tell, or the result could not be written, 2 bad usage.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = 1  # of the record
LOOK_SECONDS = 900
NOTIFY_SECONDS = 60
CLOCK_STEP_SECONDS = 5  # that a clock may be put right by, without another boot
UNDER_WAY = "a deploy was under way"
TEXT = 300  # characters of one value that are shown
BEFORE = 40  # of them before the place where two long values differ
# `gb10 drift` has an item for each of these.
SINGULAR = {
    "lanes: vLLM units": "lanes: vLLM unit",
    "lanes: vLLM containers": "lanes: vLLM container",
    "lanes: vLLM processes": "lanes: vLLM process",
    "toolkit: apt sources": "toolkit: apt source",
    "router: drop-ins": "router: drop-in",
    "watch: drop-ins": "watch: drop-in",
    "record: drop-ins": "record: drop-in",
    "box: open ports": "box: open port",
}
# A key may stand in them, under whatever option: at night only whether they are the same.
PRIVATE = ("router: container command", "router: container entrypoint")

Item = dict[str, str]
Mask = Callable[[str], str]


# -- what differs ------------------------------------------------------------------------------------------


def parts_of(key: str, value: object) -> object:
    """A list of things that have a name as a mapping of names."""
    if key not in SINGULAR or not isinstance(value, list):
        return value
    if key == "box: open ports":
        return {port: process for port, _, process in (str(entry).partition(" ") for entry in value)}
    return dict.fromkeys(map(str, value), "there")


def differing(key: str, was: Any, is_: Any, whole: bool = True) -> Iterator[tuple[str, Any, Any]]:
    """Each part of a fact that is another one: its name, what it was, and is. ``whole`` for the fact itself:
    of its parts only an environment has parts again."""
    was, is_ = parts_of(key, was), parts_of(key, is_)
    if was == is_:
        return
    if isinstance(was, dict) and isinstance(is_, dict) and (whole or key.endswith(" environment")):
        for part in sorted(was.keys() | is_.keys()):
            yield from differing(f"{SINGULAR.get(key, key)} {part}", was.get(part), is_.get(part), False)
    else:
        yield key, was, is_


def shown(value: object) -> str:
    """The whole value as one line."""
    if value is None or value == "":
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return " ".join(text.split())


def pair(key: str, was: Any, is_: Any) -> tuple[str, str]:
    """Two values that differ, in a form in which that can be seen and nothing secret is."""
    if " environment " in key:
        return (
            "set" if was else "not set",
            "not set" if not is_ else "set to something else" if was else "set",
        )
    if key in PRIVATE:
        one, other = (
            "nothing"
            if value is None
            else f"sha256 {hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]}"
            for value in (was, is_)
        )
        return one, other
    if (was is None or is_ is None) and (isinstance(was, dict) or isinstance(is_, dict)):
        return ("there" if was else "nothing", "there" if is_ else "nothing")
    return shown(was), shown(is_)


def cut(one: str, other: str) -> tuple[str, str]:
    """Both short enough to be read, with the place where they begin to differ in it."""
    unlike = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    at = next(unlike, min(len(one), len(other)))
    start = max(0, at - BEFORE) if max(len(one), len(other)) > TEXT else 0
    short = []
    for text in (one, other):
        piece = text[start : start + TEXT]
        short.append(f"{'…' if start else ''}{piece}{'…' if start + TEXT < len(text) else ''}")
    return short[0], short[1]


def since(record: dict[str, Any], readings: dict[str, Any], name: str) -> int:
    """How often it happened since the record; the counters begin anew at a boot."""
    before, now = int(record["counters"][name]), int(readings[name])
    anew = record["boot"] != readings["boot"]
    if name == "oom_kills":
        # A system in a container boots on a kernel that goes on counting.
        anew = anew and abs(readings["kernel"] - record.get("kernel", 0)) > CLOCK_STEP_SECONDS
    return now if now < before or anew else now - before


def of_readings(record: dict[str, Any], readings: dict[str, Any], percent: int) -> list[Item]:
    """What came up by itself: crashes, full disks, a reboot that is wanted, packages that would move."""
    found = []
    for name, item in (("oom_kills", "box: OOM kills"), ("restarts", "router: restarts")):
        if count := since(record, readings, name):
            found.append({"item": item, "was": "0 since the deploy", "is": f"{count} since the deploy"})
    for path, (free, size) in readings["disks"].items():
        if size and 100 * (size - free) / size > percent:
            is_ = f"{100 * (size - free) / size:.0f} % full"
            found.append({"item": f"box: disk {path}", "was": f"at most {percent} % full", "is": is_})
    if readings["reboot"] is not None:
        found.append({"item": "box: reboot", "was": "not wanted", "is": shown(readings["reboot"])})
    if readings["apt"]:
        found.append({"item": "toolkit: apt", "was": "can read its lists", "is": readings["apt"]})
    for package, (installed, candidate) in readings["would_move"].items():
        found.append({"item": f"toolkit: apt would move {package}", "was": installed, "is": candidate})
    return found


def named(key: str, names: dict[str, str]) -> str:
    """As `gb10 drift` calls it, so that an entry of its ignore list holds at night too."""
    whole = key.rpartition(" ")[0]  # of a part: the fact
    return names.get(key) or names.get(whole) or key


def accepted(facts: dict[str, Any], open_ports: list[str]) -> dict[str, Any]:
    """The facts of the record without what no deploy makes right by taking note of it: a stranger's vLLM, a
    port that is open for all and not in the data."""
    return {
        key: []
        if key.startswith("lanes: vLLM ")
        else [entry for entry in value if str(entry).partition(" ")[0] in open_ports]
        if key == "box: open ports"
        else value
        for key, value in facts.items()
    }


def judge(
    settings: dict[str, Any], record: dict[str, Any], seen: dict[str, Any], today: str, mask: Mask = str
) -> list[Item]:
    """Every difference, without those that the data ignores until a later day than ``today``. What is
    compared are whole values; what is shown of them is masked and cut."""
    changes: list[tuple[str, Any, Any]] = []
    facts = accepted(record["facts"], settings["open_ports"])
    for before, now in ((facts, seen["facts"]), (record["files"], seen["files"])):
        for key in sorted(before.keys() | now.keys()):
            changes += differing(key, before.get(key), now.get(key))
    items = []
    for key, was, is_ in changes:
        one, other = pair(key, was, is_)
        one, other = cut(mask(one), mask(other))
        items.append({"item": mask(named(key, settings["names"])), "was": one, "is": other})
    for item in of_readings(record, seen["readings"], settings["disk_percent"]):
        items.append({name: mask(text) for name, text in item.items()})
    ignored = {entry["item"] for entry in settings["ignore"] if entry["expires"] > today}
    return [item for item in items if item["item"] not in ignored]


# -- reading -----------------------------------------------------------------------------------------------


def look(record: dict[str, Any]) -> dict[str, Any]:
    """The box as it is. Raises OSError or ValueError where that cannot be told."""
    command = [sys.executable, "-I", os.path.join(HERE, "drift_state.py"), json.dumps(record["question"])]
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


def needed(path: str) -> dict[str, Any]:
    """A JSON object that a deploy has left. Raises OSError."""
    try:
        return read(path)
    except (OSError, ValueError) as error:
        raise OSError(f"{path} cannot be read: {error}: run the deploy again") from None


def mask_of(settings: dict[str, Any]) -> Mask:
    """Raises whatever the file beside this one raises: without it nothing of the box may be told."""
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location("gb10_mask", os.path.join(HERE, "gb10_mask.py"))
    if spec is None or spec.loader is None:
        raise ImportError("gb10_mask.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    known = list(module.known_secrets({}, settings["notify_command"]))
    for path in settings["secrets"]:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                known += [line for line in file.read().split() if len(line) >= 4]
        except OSError:
            continue
    return lambda text: str(module.masked(text, known))


def unknown(reason: str) -> dict[str, Any]:
    return {"state": "unknown", "reason": cut(shown(reason), "")[0], "items": []}


def result_of(settings_file: str, record_file: str) -> tuple[dict[str, Any], list[str]]:
    """State, reason and items; and the command that is to hear of it, as far as it is known. Whatever goes
    wrong is "unknown"."""
    command: list[str] = []
    try:
        settings = needed(settings_file)
        command = [str(word) for word in settings["notify_command"]]
    except (OSError, LookupError, TypeError) as error:
        return unknown(str(error)), command
    try:
        mask = mask_of(settings)
    except Exception:  # a damaged file raises what it likes
        return unknown("gb10_mask.py cannot be read: run the deploy again"), command
    try:
        record = needed(record_file)
        if record.get("version") != VERSION:
            raise OSError(f"{record_file} is of another version: run the deploy again")
        seen = look(record)
        if seen["lock"] is not None:
            return unknown(UNDER_WAY), command
        if seen["failed"]:
            raise OSError("; ".join(seen["failed"]))
        items = judge(settings, record, seen, time.strftime("%Y-%m-%d", time.gmtime()), mask)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return unknown(mask(f"{error}" if isinstance(error, OSError) else f"{error!r}")), command
    return {"state": "drift" if items else "clean", "reason": "", "items": items}, command


# -- writing and telling -----------------------------------------------------------------------------------


def write(path: str, result: dict[str, Any]) -> str:
    """Whole or not at all; why not, or an empty text."""
    new = f"{path}.new"
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o640)
            json.dump(result, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        return f"{path} could not be written: {error}"
    return ""


def told(command: list[str], before: dict[str, Any], now: dict[str, Any]) -> str:
    """Tell ``command`` what has changed; why that did not work, or an empty text."""
    old, new = ({json.dumps(item, sort_keys=True) for item in one["items"]} for one in (before, now))
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
        return f"{command[0]}: {type(error).__name__}"
    return f"{command[0]} ended with {done.returncode}" if done.returncode else ""


def told_last(path: str) -> dict[str, Any]:
    """State, reason and items that notify_command has taken last; at first as if all had been well."""
    try:
        last = read(path)
        last = last.get("untold", last)
        return {"state": str(last["state"]), "reason": str(last["reason"]), "items": list(last["items"])}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {"state": "clean", "reason": "", "items": []}


def keep(path: str, found: dict[str, Any], command: list[str]) -> bool:
    """Write the result and tell it, each also where the other does not work. True when it is written."""
    last = told_last(path)
    result = {"version": 1, "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), **found}
    news = bool(command) and found != last
    # First with the mark: whoever cuts the power now has not heard of it.
    failure = write(path, {**result, "untold": last} if news else result)
    if failure:
        print(failure, file=sys.stderr)
        found = {**found, "reason": "; ".join(filter(None, (found["reason"], failure)))}
    if command and (news or failure):
        if not_told := told(command, last, found):
            print(f"the notification failed, it is tried again next time: {not_told}", file=sys.stderr)
        elif not failure and (failure := write(path, result)):
            print(failure, file=sys.stderr)
    return not failure


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    settings_file, record_file, result_file = arguments
    with open(os.path.abspath(__file__), encoding="utf-8") as lock:
        # One at a time: a start by hand may meet the timer's. A full disk has no room for a file of its own.
        fcntl.flock(lock, fcntl.LOCK_EX)
        found, command = result_of(settings_file, record_file)
        # A look that a deploy got in the way of is no news.
        waits = found["reason"] == UNDER_WAY
        written = waits or keep(result_file, found, command)
    for item in found["items"]:
        print(f"{item['item']}: was {item['was']}, is {item['is']}")
    print(f"{found['state']}{': ' if found['reason'] else ''}{found['reason']}")
    return 0 if written and (waits or found["state"] != "unknown") else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
