"""What the watch on the box is told: `watch_*` of the box's data, the models and their baselines."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gb10.boxdata import BoxData
from gb10.catalogue import Catalogue
from gb10.faults import BadInput, Fault
from gb10.presets import model_path

CONFIG = "/etc/gb10/watch.json"
USER_FILE = "/etc/sysusers.d/gb10-watch.conf"
RUN = "/run/gb10-watch"
STATUS = f"{RUN}/status.json"
SOCKET = "/run/gb10-watch-hand.socket"
HAND_RUN = "gb10-watch-hand"  # below /run, root's
# What lies in the folder of the on-box programs for the watch, beside gb10_router.py.
PROGRAMS = (
    "gb10_watch.py",
    "gb10_watch_actions.py",
    "gb10_watch_canary.py",
    "gb10_watch_container.py",
    "gb10_watch_eyes.py",
    "gb10_watch_hand.py",
    "gb10_watch_judge.py",
    "gb10_watch_kernel.py",
    "gb10_watch_memory.py",
    "gb10_watch_reasons.py",
    "gb10_watch_report.py",
    "gb10_watch_signals.py",
    "gb10_watch_speed.py",
    "gb10_watch_state.py",
)
UNITS = ("gb10-watch.service", "gb10-watch-hand.service", "gb10-watch-hand.socket")


@dataclass(frozen=True)
class Baseline:
    """What a model made when it was measured, tok/s; with which image and which presets (their sha256), ""
    where the file does not say."""

    tokens_per_second: float
    image: str = ""
    presets: str = ""

    def stale(self, image: str, presets: str | None) -> str:
        """What is another one now, or nothing. ``presets`` is None where they are not known."""
        others = ["another image"] if self.image not in ("", image) else []
        others += ["other presets"] if presets is not None and self.presets not in ("", presets) else []
        return " and ".join(others)


def watch_folder(data: BoxData) -> str:
    """Where the watch keeps its record."""
    return f"{data.state_dir}/watch"


def watch_config(
    data: BoxData, catalogue: Catalogue, baselines: Mapping[str, Baseline], lane_path: str
) -> dict[str, Any]:
    """watch.json. Memory in MiB, speed in tokens per second."""
    models_dir = PurePosixPath(data.models_dir)
    return {
        "lane_file": lane_path,
        "user_id": data.lane_user_id,
        "run": RUN,
        "folder": watch_folder(data),
        "socket": SOCKET,
        "interval_seconds": data.watch_interval_seconds,
        "probe": {
            "command": list(data.watch_probe),
            "expect": data.watch_probe_expect,
            "seconds": data.watch_probe_seconds,
        },
        # llama.cpp's own word: the driver's tool does not need all that CUDA needs.
        "devices": {
            "command": ["llama-server", "--list-devices"],
            "expect": rf"(?m)^\s*{re.escape(data.accelerator_device)}: ",
        },
        "restarts_file": f"/run/{HAND_RUN}/restarts.json",
        "processes": {
            "command": list(data.watch_processes),
            "allowed": list(data.watch_processes_allowed),
            "seconds": 30,
        },
        "rivals": list(data.watch_rivals),
        "units_out": [lane.unit for lane in data.lanes_out],
        "kernel_log": data.watch_kernel_log,
        "canary_tokens": data.watch_canary_tokens,
        "notify_command": list(data.notify_command),
        "webhook": bool(data.watch_webhook_file),
        # A model that is made at home may not be made yet.
        "model_files": {
            model.name: str(model_path(models_dir, model))
            for model in catalogue.enabled
            if model.file is not None and model.conversion is None
        },
        # The watch sees what runs, and so whether a baseline is of something else.
        "measured": {name: {"image": one.image, "presets": one.presets} for name, one in baselines.items()},
        "settings": {
            "reserve_mib": data.watch_memory_reserve_mib,
            "pressure_percent": data.watch_pressure_percent,
            "slow_ratio": data.watch_slow_ratio,
            "minimum_tokens": data.watch_canary_tokens,
            "canary_seconds": data.watch_canary_seconds,
            "baselines": {name: one.tokens_per_second for name, one in baselines.items()},
            "actions": sorted(data.watch_actions),
            "restarts_an_hour": data.watch_restarts_an_hour,
            "backoff_seconds": data.watch_backoff_seconds,
            "crash_restarts": data.watch_crash_restarts,
            "settle_seconds": data.watch_settle_seconds,
            "clear_seconds": data.watch_clear_seconds,
            "start_seconds": data.accelerator_wait_seconds,
            "probe_seconds": data.watch_probe_seconds,
        },
    }


def read_baselines(path: Path, shown: str) -> dict[str, Baseline]:
    """Model name to baseline, from a file that a bench has written; empty when there is none.

    Raises `BadInput`. ``shown`` is the file's name in a fault.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput([Fault(shown, f"cannot be read ({error})", "correct or remove it")]) from None
    try:
        found = json.loads(text)
        if found["version"] != 1:
            raise ValueError(f"version {found['version']!r} is not known")
        baselines = {
            str(name): Baseline(
                float(one["tokens_per_second"]), str(one.get("image", "")), str(one.get("presets", ""))
            )
            for name, one in found["models"].items()
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        what = f"is no file of baselines ({type(error).__name__}: {error})"
        raise BadInput([Fault(shown, what, "measure again, or remove it")]) from None
    faults = [
        Fault(f"{shown} {name}", f"{one.tokens_per_second} tok/s is no speed", "measure the model again")
        for name, one in baselines.items()
        if not math.isfinite(one.tokens_per_second) or one.tokens_per_second <= 0
    ]
    if faults:
        raise BadInput(faults)
    return baselines
