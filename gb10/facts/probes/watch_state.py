"""The watch as it is: see WatchState in gb10/facts/probe.py for question and answer."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import subprocess
import sys
from typing import Any

from gb10.facts.probes._others_file import others_text


def run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def properties(text: str) -> dict[str, str]:
    """``Key=value`` lines as a mapping."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def path_state(path: str) -> dict[str, str] | None:
    """Mode, owner and sha256 of a file (of a folder an empty text), None when it is not there."""
    try:
        status = os.stat(path)
        digest = ""
        if not os.path.isdir(path):
            with open(path, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None
    return {
        "mode": f"{status.st_mode & 0o7777:04o}",
        "owner": f"{status.st_uid}:{status.st_gid}",
        "sha256": digest,
    }


def user_there(user_id: int) -> bool:
    try:
        pwd.getpwuid(user_id)
    except KeyError:
        return False
    return True


def description(status: str) -> str:
    """What the running watch says that it was started with, empty when it says nothing."""
    try:
        return str(json.loads(others_text(status))["watch"]["description"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def main(question: dict[str, Any]) -> dict[str, object]:
    units = {}
    for unit in question["units"]:
        wanted = "--property=ActiveState,UnitFileState,NeedDaemonReload"
        shown = properties(run("systemctl", "show", unit, wanted))
        units[unit] = {
            "active": shown.get("ActiveState", "inactive"),
            "enabled": shown.get("UnitFileState", ""),
            "needs_reload": shown.get("NeedDaemonReload") == "yes",
        }
    return {
        "paths": {path: path_state(path) for path in question["paths"]},
        "units": units,
        "user": user_there(question["user_id"]),
        "description": description(question["status"]),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
