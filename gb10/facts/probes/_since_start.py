"""Part of several probes: what is newer than the start of the lane's service."""

from __future__ import annotations

import json
import os
import time


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
