#!/usr/bin/env python3
"""Refuse to start the lane without its accelerator.

Run by the lane's unit before the router (ExecStartPre). It starts a short container with the lane's own
image, device and environment and reads which devices llama.cpp lists there: the one look that cannot
be wrong, because it takes the same way as the server. After a boot the driver may come later than
Docker, so it looks again until ``wait_seconds`` are over.

Without an API key it refuses as well: llama.cpp would serve whoever asks.

It also makes the folders that the container mounts and that may have gone, as somebody else's cache may:
each with the owner of the folder it lies in, so that its user can go on using it.

Usage: gb10_gate.py LANE.json
Exit status: 0 the accelerator is there; 1 it is not, with the reason on standard error; 2 bad usage.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from typing import Any

LOOK_TIMEOUT_SECONDS = 60
PAUSE_SECONDS = 2
# Docker ends its errors with a hint to its own help, an abort with the calls that led to it.
_TELLS_NOTHING = re.compile(r"docker run --help|\[0x[0-9a-f]+\]$|^Aborted")


def listed_devices(output: str) -> list[str]:
    """Names of the devices in the output of ``llama-server --list-devices``: ``['CUDA0']`` or ``[]``."""
    names = []
    _, _, listing = output.partition("Available devices:")
    for line in listing.splitlines():
        name, colon, _ = line.strip().partition(": ")
        if colon and " " not in name:
            names.append(name)
    return names


def container(lane: dict[str, Any]) -> str:
    """The name of the container that looks."""
    return f"{lane['lane']}-gate"


def look_command(lane: dict[str, Any]) -> list[str]:
    """The ``docker run`` that lists the devices as the lane's own container would see them."""
    command = ["docker", "run", "--rm", "--name", container(lane), "--pull", "never", "--device", lane["cdi"]]
    for name, value in lane["environment"].items():
        command += ["--env", f"{name}={value}"]
    return [*command, "--entrypoint", "llama-server", lane["image"], "--list-devices"]


def reason_against(lane: dict[str, Any], status: int, output: str, errors: str) -> tuple[str, bool]:
    """Why the lane must not start, or an empty text when it may; and whether waiting can help."""
    device = lane["device"]
    lines = [line for line in errors.splitlines() if line.strip()]
    telling = [line for line in lines if not _TELLS_NOTHING.search(line)]
    last_line = (telling or lines or ["no message"])[-1]
    if "No such image" in errors or "Unable to find image" in errors:
        return f"image {lane['image']} is not on this host: run the deploy again", False
    if 'device driver "cdi"' in errors and status == 125:
        return (
            "Docker's CDI devices are switched off (features.cdi in daemon.json): run the deploy again",
            False,
        )
    if "CDI" in errors and status == 125:
        return (
            f"Docker knows no CDI device {lane['cdi']}: look at /var/run/cdi and run "
            "'systemctl start nvidia-cdi-refresh.service'",
            True,
        )
    if status == 125:
        return f"Docker could not start a container: {last_line}", True
    devices = listed_devices(output)
    if device in devices:
        return "", False
    if status != 0:
        return f"no accelerator {device}: llama-server --list-devices ended with {status}: {last_line}", True
    return f"no accelerator {device}: llama.cpp lists {', '.join(devices) or 'none'}", True


def look(lane: dict[str, Any]) -> tuple[str, bool]:
    """One look: see `reason_against`."""
    remove = ["docker", "rm", "--force", container(lane)]
    try:
        # One whose client was killed goes on holding the accelerator and the name.
        subprocess.run(remove, capture_output=True, timeout=LOOK_TIMEOUT_SECONDS, check=False)
        result = subprocess.run(
            look_command(lane), capture_output=True, text=True, timeout=LOOK_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        subprocess.Popen(remove, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return f"no answer from Docker or llama.cpp in {LOOK_TIMEOUT_SECONDS} s", True
    except OSError as error:
        return f"docker cannot be run: {error.strerror}", False
    return reason_against(lane, result.returncode, result.stdout, result.stderr)


def has_key(path: str) -> bool:
    """Whether llama.cpp finds a key in the file: a line that is not empty and does not begin with #."""
    try:
        with open(path, "rb") as file:
            return re.search(rb"^[^#\s]", file.read(65536), re.MULTILINE) is not None
    except OSError:
        return False


def make_folder(path: str) -> None:
    """Make ``path`` and what is missing above it, all owned as the nearest folder that is there."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    owner = os.stat(path)
    for folder in reversed(missing):
        os.mkdir(folder, 0o755)
        # A link that somebody puts in its place in between is not followed.
        os.chown(folder, owner.st_uid, owner.st_gid, follow_symlinks=False)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(arguments[0], encoding="utf-8") as file:
            return guard(json.load(file))
    except (OSError, ValueError) as error:
        reason = f"cannot be read ({error})"
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"is not what this program expects ({type(error).__name__}: {error})"
    print(f"REFUSING to start: {arguments[0]} {reason}: run the deploy again", file=sys.stderr)
    return 1


def guard(lane: dict[str, Any]) -> int:
    """Wait for the accelerator of ``lane``; the exit status."""
    for folder in lane.get("folders", ()):
        try:
            make_folder(folder)
        except OSError as error:
            reason = f"{folder} cannot be made: {error.strerror}"
            print(f"REFUSING to start {lane['lane']}: {reason}", file=sys.stderr)
            return 1
    if not has_key(lane["key_file"]):
        reason = f"{lane['key_file']} holds no API key, anybody would be served: run the deploy again"
        print(f"REFUSING to start {lane['lane']}: {reason}", file=sys.stderr)
        return 1
    deadline = time.monotonic() + lane["wait_seconds"]
    said = False
    while True:
        reason, waiting_helps = look(lane)
        if not reason:
            print(f"accelerator {lane['device']} is there", flush=True)
            return 0
        if not waiting_helps or time.monotonic() >= deadline:
            break
        if not said:
            print(f"waiting up to {lane['wait_seconds']} s: {reason}", flush=True)
            said = True
        time.sleep(PAUSE_SECONDS)
    print(f"REFUSING to start {lane['lane']}: {reason}. Nothing is served from the CPU.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
