"""The lane as it is: see LaneState in gb10/facts/probe.py for question and answer."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

from gb10.facts.probes._since_start import key_newer, models_newer


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
