"""The lane as it is: see LaneState in gb10/facts/probe.py for question and answer."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time


def run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def properties(text: str) -> dict[str, str]:
    """``Key=value`` lines as a mapping."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def digest_of(path: str) -> str:
    """sha256 of a file, empty when there is none."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def recorded_digest(path: str) -> str:
    """The digest that ``sha256sum`` wrote into a file, empty when there is none."""
    try:
        with open(path, encoding="ascii") as file:
            return (file.read().split() or [""])[0]
    except OSError:
        return ""


def key_state(path: str) -> dict[str, object] | None:
    """Mode, owner and size in bytes of the key file; its content is not read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return {
        "mode": f"{status.st_mode & 0o7777:04o}",
        "owner": f"{status.st_uid}:{status.st_gid}",
        "size": status.st_size,
    }


def key_newer(path: str, started_monotonic: str) -> bool:
    """True when the key was written after the service started: the router still has the old one.

    ``started_monotonic`` is systemd's figure: microseconds since boot, 0 when it does not run.
    """
    if not started_monotonic.isdigit() or started_monotonic == "0":
        return False
    started = time.time() - (time.clock_gettime(time.CLOCK_MONOTONIC) - int(started_monotonic) / 1e6)
    try:
        return os.stat(path).st_mtime > started
    except OSError:
        return False


def models_newer(models_dir: str, started_monotonic: str) -> bool:
    """True when a model file took another one's place after the service started: the router may hold what it
    read of that one. Both times are microseconds since boot."""
    try:
        with open(f"{models_dir}/.gb10-replaced.json", encoding="utf-8") as file:
            moment = json.load(file)
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            same_boot = moment["boot"] == file.read().strip()
        return bool(same_boot and 0 < int(started_monotonic) < int(moment["monotonic_us"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def main(question: dict[str, str]) -> dict[str, object]:
    wanted = "--property=LoadState,ActiveState,UnitFileState,NeedDaemonReload,ExecMainStartTimestampMonotonic"
    shown = properties(run("systemctl", "show", question["unit"], wanted))
    started = shown.get("ExecMainStartTimestampMonotonic", "0")
    label = run(
        "docker", "container", "inspect", "--format", '{{index .Config.Labels "gb10.lane"}}', question["lane"]
    )
    return {
        "loaded": shown.get("LoadState", "not-found"),
        "active": shown.get("ActiveState", "inactive"),
        "enabled": shown.get("UnitFileState", ""),
        "needs_reload": shown.get("NeedDaemonReload") == "yes",
        "container_hash": label,
        "presets_read": recorded_digest(f"/run/{question['lane']}/presets.sha256"),
        "presets_file": digest_of(question["presets"]),
        "key": key_state(question["key"]),
        "key_newer": key_newer(question["key"], started),
        "models_newer": models_newer(question["models_dir"], started),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
