"""What a box answers to a look for drift, when it is just as a deploy has left it."""

from __future__ import annotations

import copy
import json
from typing import Any

from gb10.container import described
from gb10.desired import Desired
from gb10.presets import sections_of
from gb10.record import make, state_of, text
from gb10.revision import Revision

NOW = 1_800_000_000.0
IMAGE = "sha256:" + "1" * 64
REVISION = Revision("c0ffee", False)


def models_of(box: Desired) -> dict[str, dict[str, str]]:
    """The models as a router runs them that has read the box's presets."""
    shared, *models = sections_of(box.presets_file.content)
    own = {"metrics": "1", "offline": "1", "webui": "0"}
    return {
        name: {
            **own,
            **shared[1],
            **keys,
            "alias": ",".join(sorted(filter(None, keys.get("alias", "").split(",")))),
        }
        for name, keys in models
    }


def seen(box: Desired, **facts: Any) -> dict[str, Any]:
    """The answer of a settled box without a record, with other ``facts``."""
    container = {**described(box), "image": IMAGE, "label": box.lane_hash}
    answer = {
        "facts": {
            "lanes: old lanes": [],
            "lanes: vLLM units": [],
            "lanes: vLLM containers": [],
            "lanes: vLLM processes": [],
            "toolkit: packages": dict.fromkeys(box.data.toolkit_packages, box.data.toolkit_version),
            "toolkit: daemon.json": "0644 0:0 " + "a" * 64,
            "toolkit: keyring": "0644 0:0 " + "b" * 64,
            "toolkit: apt sources": {},
            "toolkit: CDI specs": ["/var/run/cdi/nvidia.yaml"],
            "image: id": IMAGE,
            "router: unit": {
                "enabled": "enabled",
                "active": "active",
                "loaded": "loaded",
                "file": box.unit_file.path,
                "needs_reload": "no",
            },
            "router: drop-ins": {},
            "watch: drop-ins": {},
            "record: drop-ins": {},
            "router: container": container,
            "router: process environment": dict(container["environment"]),
            "router: presets read": box.presets_digest,
            "router: API key": f"0600 {box.data.lane_user_id}:{box.data.lane_user_id}",
            "record: timer": {
                "enabled": "enabled",
                "active": "active",
                "loaded": "loaded",
                "needs_reload": "no",
            },
            "box: driver": "580.95.05",
            "box: CUDA": "13.0",
            "box: kernel": "6.8.0",
            "box: Docker": "28.1.0",
            "box: firewall": ["-P INPUT ACCEPT"],
            "box: open ports": ["22 sshd"],
            **{f"models: {file['path']}": file["sha256"] for file in box.fetch_manifest["files"]},
            **facts,
        },
        "files": {
            **{placed.path: state_of(placed) for placed in box.files()},
            **dict.fromkeys(box.folders, "0755 0:0"),
        },
        "models": models_of(box),
        "models_error": "",
        "readings": {
            "boot": "one",
            "kernel": NOW - 50_000,
            "time": NOW,
            "took": 0.5,
            "stopped_by_watch": False,
            "oom_kills": 0,
            "restarts": 0,
            "disks": {"/": [50, 100]},
            "reboot": None,
            "would_move": {},
            "apt": "",
            "rolled_back": None,
            "night": {"unit": "success", "result": 3600.0, "deploy": 80_000.0, "timer": 80_000.0},
        },
        "record": None,
        "record_state": "",
        "key_newer": False,
        "models_newer": False,
        "lock": None,
        "failed": [],
    }
    return copy.deepcopy(answer)


def recorded(box: Desired, answer: dict[str, Any], deployed: Desired | None = None) -> dict[str, Any]:
    """``answer`` with the record of a deploy that has left ``deployed`` (or ``box``) in its settled state."""
    before = seen(deployed or box)
    record = make(deployed or box, REVISION, before, "ann@desk")
    return {**answer, "record": json.loads(text(record, "2026-11-29 21:00:00 UTC"))}
