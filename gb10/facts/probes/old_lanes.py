"""What is left of old serving lanes: see OldLanes in gb10/facts/probe.py for question and answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys

# Files of packages are never touched: masking them is the administrator's choice.
OURS_TO_REMOVE = ("/etc/systemd/", "/run/systemd/", "/usr/local/lib/systemd/")


def run(*command: str) -> str:
    """Standard output. Raises OSError where the command fails: that is not the same as "nothing there"."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "no such container" not in done.stderr.lower():
        said = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        raise OSError(f"{' '.join(command[:2])}: {said}")
    return done.stdout.strip()


def properties(text: str) -> dict[str, str]:
    """``Key=value`` lines as a mapping."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def unit_files(shown: dict[str, str], unit: str) -> list[str]:
    """Unit file and drop-ins that may be removed, also those that systemd has not read yet."""
    drop_ins = shown.get("DropInPaths", "").split()
    # A template (vllm@.service) and drop-ins of a whole kind (service.d, vllm-.service.d) serve other units.
    found = [path for path in drop_ins if os.path.basename(os.path.dirname(path)) == f"{unit}.d"]
    found += [path for path in [shown.get("FragmentPath", "")] if os.path.basename(path) == unit]
    found += [f"/etc/systemd/system/{unit}"]
    return sorted({path for path in found if path.startswith(OURS_TO_REMOVE) and is_unit_file(path)})


def is_unit_file(path: str) -> bool:
    # A link to /dev/null masks the unit: that keeps a lane out as well, and somebody wanted it.
    return os.path.lexists(path) and os.path.realpath(path) != "/dev/null"


def lane_state(unit: str, container: str) -> dict[str, object]:
    wanted = "--property=LoadState,ActiveState,UnitFileState,FragmentPath,DropInPaths"
    shown = properties(run("systemctl", "show", unit, wanted))
    return {
        "loaded": shown.get("LoadState", "not-found"),
        "active": shown.get("ActiveState", "inactive"),
        "enabled": shown.get("UnitFileState", ""),
        "files": unit_files(shown, unit),
        "container": run("docker", "container", "inspect", "--format", "{{.State.Status}}", container),
    }


def main(question: dict[str, list[dict[str, str]]]) -> dict[str, object]:
    return {lane["unit"]: lane_state(lane["unit"], lane["container"]) for lane in question["lanes"]}


if __name__ == "__main__":
    try:
        print(json.dumps(main(json.loads(sys.argv[1]))))
    except OSError as failure:
        sys.exit(f"old lanes cannot be looked at: {failure}")
