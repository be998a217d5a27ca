"""The lane's container: what its unit describes, and where a running one differs. Pure."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from typing import Any

from gb10.desired import Desired
from gb10.presets import sections_of

# What the router adds to each model's settings by itself, out of its own command line.
ROUTERS_OWN = frozenset({"metrics", "offline", "webui", "log-colors", "host", "port", "alias", "tags"})
UNSUPPORTED = "unsupported"


def described(box: Desired) -> dict[str, Any]:
    """The container as the unit's own ``docker run`` makes it, in the words of the drift_state probe.

    Read from the very options of the unit: what is added there is compared here too.
    """
    options: dict[str, list[str]] = {}
    for line in box.docker_options:
        flag, _, value = line.partition(" ")
        options.setdefault(flag.removeprefix("--"), []).append("".join(shlex.split(value)))
    mounts = []
    for volume in options.get("volume", []):
        source, target, mode = [*volume.split(":"), "rw"][:3]
        mounts.append(f"{source}:{target}:{mode}")
    for mount in options.get("mount", []):
        fields = dict(field.partition("=")[::2] for field in mount.split(","))
        mounts.append(f"{fields['source']}:{fields['target']}:{'ro' if 'readonly' in fields else 'rw'}")
    published = []
    for publish in options.get("publish", []):
        address, host_port, port = publish.split(":")
        published.append(f"{address}:{host_port}->{port}/tcp")
    return {
        "status": "running",
        "entrypoint": [],  # the image's own
        "command": [word for line in box.router_arguments for word in shlex.split(line)],
        "user": options["user"][0],
        "environment": {
            name: hashlib.sha256(value.encode()).hexdigest()
            for name, _, value in (entry.partition("=") for entry in options.get("env", []))
        },
        "mounts": sorted(mounts),
        "tmpfs": sorted(options.get("tmpfs", [])),
        "devices": sorted(options.get("device", [])),
        "published": sorted(published),
        "pids": int(options["pids-limit"][0]),
        "memory": 0,
        "cpus": [0, ""],
        "read_only": "read-only" in options,
        "privileged": False,
        "capabilities": [[], sorted(options.get("cap-drop", []))],
        "security": sorted(options.get("security-opt", [])),
        "restart": "no",
        "log": options["log-driver"][0],
        "init": True,
        "networks": ["bridge"],
        "other": {},
        "label": box.lane_hash,
    }


def differences(box: Desired, container: Mapping[str, Any], image_id: str) -> dict[str, tuple[Any, Any]]:
    """Where ``container`` (as the probe says) differs: what to (should, is). ``image_id`` is the tag's."""
    should = {**described(box), "image": image_id}
    return {
        what: (wanted, container.get(what))
        for what, wanted in should.items()
        if container.get(what) not in (wanted, UNSUPPORTED)
    }


def preset_differences(
    box: Desired, running: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, tuple[str, str]]]:
    """Where the router runs models with other settings than the preset file has: model to key to (should,
    is).

    A model that is there on one side only has the key "".
    """
    shared, *models = sections_of(box.presets_file.content)
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for name, keys in models:
        if name not in running:
            found[name] = {"": ("served", "unknown to the router")}
            continue
        is_ = running[name]
        should = {**shared[1], **keys}
        wrong = {
            key: (should.get(key, ""), is_.get(key, ""))
            for key in (should.keys() | is_.keys()) - ROUTERS_OWN
            if should.get(key, "") != is_.get(key, "")
        }
        aliases = ",".join(sorted(filter(None, should.get("alias", "").split(","))))
        if aliases != is_.get("alias", ""):
            wrong["alias"] = (aliases, is_.get("alias", ""))
        if wrong:
            found[name] = wrong
    for name in running.keys() - {name for name, _ in models}:
        found[name] = {"": ("not served", "served")}
    return found
