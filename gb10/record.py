"""The record of a deploy: what was wanted, and what the box was like when it had been done.

Pure. It lies on the box (``deployed.json``). Later it says of each difference who made it: the box is not
what it was then (somebody changed it by hand), what is wanted is not what was wanted then (the repository
moved on), or both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gb10 import watch_config
from gb10.desired import Desired
from gb10.facts.drift import question_of
from gb10.rendering import PlacedFile
from gb10.revision import Revision

VERSION = 1
# What is counted, and how `gb10 drift` calls it.
COUNTED = {"oom_kills": "box: OOM kills", "restarts": "router: restarts"}
CLOCK_STEP_SECONDS = 5  # that a clock may be put right by, without another boot
Record = Mapping[str, Any]


def files_by_stage(box: Desired) -> dict[str, tuple[PlacedFile, ...]]:
    """Which stage puts which file into place."""
    programs = box.program_files
    return {
        "toolkit": tuple(box.toolkit_files),
        "image": (
            programs["gb10_gate.py"],
            programs["gb10_image.py"],
            box.dockerfile_file,
            box.image_file,
        ),
        "models": (programs["gb10_fetch.py"], box.fetch_manifest_file),
        "router": (
            programs["gb10_router.py"],
            programs["gb10_history.py"],
            programs["gb10_generations.py"],
            box.presets_file,
            box.lane_file,
            box.unit_file,
        ),
        "watch": (*(programs[name] for name in watch_config.PROGRAMS), *box.watch_files),
        "record": tuple(box.nightly_files),
    }


def state_of(placed: PlacedFile) -> str:
    """``MODE UID:GID SHA256``, as the box says of a file."""
    return f"{placed.mode} {placed.owner} {_digest(placed.content)}"


def wants(box: Desired) -> dict[str, dict[str, str]]:
    """What is wanted, by stage: each file's path to its state, and under "" a digest of the rest."""
    data = box.data
    rest: dict[str, Any] = {
        "lanes": [lane.model_dump() for lane in data.lanes_out],
        "toolkit": [
            data.toolkit_packages,
            data.toolkit_version,
            data.toolkit_key_fingerprint,
            data.docker_daemon,
            data.accelerator_cdi,
        ],
        "image": box.image,
        "models": box.fetch_manifest,
        "router": box.lane_hash,
        "watch": box.watch_description,
        "record": None,
    }
    files = files_by_stage(box)
    return {
        stage: {
            **{placed.path: state_of(placed) for placed in files.get(stage, ())},
            "": _digest(json.dumps(described, sort_keys=True, default=list)),
        }
        for stage, described in rest.items()
    }


def wants_alone(box: Desired) -> dict[str, dict[str, str]]:
    """The same, as if no model had been found on the box: where only `wants` has changed since, the box
    has."""
    return wants(replace(box, found=()))


def make(
    box: Desired,
    revision: Revision,
    seen: Mapping[str, Any],
    by: str,
    stages: Sequence[str] | None = None,
    noted: Collection[str] = (),
) -> dict[str, Any]:
    """The record of a deploy that has just been done; ``seen`` is the answer of `DriftState` afterwards.

    ``stages`` are those that it ran, None for all: of the others the box's own record stays as it was, and
    so does what no stage puts there (``box: ...``, and the counters `COUNTED`) but for ``noted``: it is
    drift until somebody was shown it.
    """
    readings = seen["readings"]
    record = {
        "version": VERSION,
        "revision": revision.commit,
        "dirty": revision.dirty,
        "by": by,
        "wants": wants(box),
        "wants_alone": wants_alone(box),
        "facts": seen["facts"],
        "files": seen["files"],
        "boot": readings["boot"],
        "kernel": readings["kernel"],
        "counters": {name: readings[name] for name in COUNTED},
        "question": question_of(box),
    }
    old = seen["record"]
    if stages is None or not readable(old):
        return record
    ran = {*stages, "record"}
    for key in ("wants", "wants_alone"):
        before = old.get(key, old["wants"])
        record[key] = {
            stage: there if stage in ran else before.get(stage, there) for stage, there in record[key].items()
        }
    kept = {path for stage, paths in record["wants"].items() if stage not in ran for path in paths}
    record["files"] = {
        path: old["files"].get(path, state) if path in kept else state
        for path, state in record["files"].items()
    }

    def is_new(key: str) -> bool:
        return key.partition(":")[0] in ran or key in noted

    record["facts"] = {
        **{key: value for key, value in old["facts"].items() if not is_new(key)},
        **{key: value for key, value in record["facts"].items() if is_new(key)},
    }
    # What is not noted counts on from where it stood, also over a boot.
    record["counters"] = {
        name: readings[name] if COUNTED[name] in noted else readings[name] - count
        for name, count in events(old, readings).items()
    }
    return record


def readable(record: Record | None) -> bool:
    """True for a record that this version can compare with."""
    return bool(record) and record is not None and record.get("version") == VERSION


def events(record: Record, readings: Mapping[str, Any]) -> dict[str, int]:
    """How many OOM kills and restarts came since the record, whatever the counters stood at before a boot:
    there they begin anew, and those of systemd at each start by hand."""
    rebooted = record["boot"] != readings["boot"]
    # A system in a container boots on a kernel that goes on counting.
    anew = {
        "restarts": rebooted,
        "oom_kills": rebooted and abs(readings["kernel"] - record.get("kernel", 0)) > CLOCK_STEP_SECONDS,
    }
    found = {}
    for name, before in record["counters"].items():
        now = readings[name]
        found[name] = now if now < before or anew[name] else now - before
    return found


def news(old: Record | None, new: Record, readings: Mapping[str, Any]) -> list[str]:
    """What ``new`` says that ``old`` does not, each in a word or two; the values stay in the record. A later
    time or another person is no news."""
    if not readable(old) or old is None:
        return ["the first record"]
    found = []
    for key, value in new.items():
        before = old.get(key)
        if key in ("by", "boot", "kernel", "counters") or before == value:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            names = (name for name in {**before, **value} if before.get(name) != value.get(name))
            found += [f"{key} {name}" for name in names]
        else:
            found.append(key)
    before, after = events(old, readings), events(new, readings)
    return found + [name for name, count in before.items() if count != after[name]]


def text(record: Record, time: str) -> str:
    """The content of the file. ``time`` is for people."""
    return json.dumps({**record, "time": time}, indent=1, sort_keys=True) + "\n"


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()
