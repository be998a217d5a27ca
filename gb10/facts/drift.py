"""What a plan of operations cannot see of a box: one question, one answer, one remote command."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.host import Host

from gb10 import watch_config
from gb10.desired import KEYRING, NIGHTLY_UNITS, Desired
from gb10.facts.files import PathReport, PathState
from gb10.facts.probe import LaneState, ProbeFact
from gb10.facts.shared import known, look


class DriftState(ProbeFact):
    """The box as it is, beside what operations look at.

    Question: see `question_of`. Answer: ``facts``, which stay the same while nobody changes the box
    (``STAGE: WHAT`` to text, list or mapping; what may be secret only as a digest); ``files``, each path of
    the question to ``MODE UID:GID SHA256``; ``models``, each model of the running router to its settings,
    or ``models_error``; ``readings``: ``boot`` (id), ``kernel`` (when it started) and ``time``, in seconds
    since the epoch, ``arrived`` and ``took`` (this machine's time when the answer was here, and the seconds
    that the command had taken until then), ``oom_kills`` and ``restarts`` (counters), ``stopped_by_watch``
    (bool: the watch has stopped the lane), ``disks`` (path to [bytes free, bytes in all]), ``reboot``
    (packages that want one, null for none), ``would_move`` (package to [installed, candidate]), ``apt``
    (why it cannot read its lists, or an empty text), ``rolled_back`` (``{"number", "time"}`` of the lane that
    `gb10 rollback` has put in place last, or null) and ``night``
    (how the last look at night ended, ``unit``, and since how many seconds there is its ``result``, the last
    ``deploy``, and the ``timer`` is on; null for never);
    ``record``, what the last deploy left, or null, and ``record_state``, as in ``files``; ``key_newer`` and
    ``models_newer``, as in `LaneState`; ``lock``, ``{"who", "since"}`` of the deploy that is under way, or
    null; ``failed``, why a part of the look could not be had, one line each: what it would say is not known
    then.
    """

    program = "drift_state.py"

    def command(self, question: object) -> StringCommand:
        self.asked = time.time()
        return super().command(question)

    def process(self, output: list[str]) -> dict[str, Any]:
        answer = super().process(output)
        arrived = time.time()
        # A clock is judged by the two times around the same command, however long that took.
        answer["readings"] |= {"arrived": arrived, "took": arrived - self.asked}
        return answer


def question_of(box: Desired, deep: bool = False) -> dict[str, Any]:
    """The question about ``box``. With ``deep`` each model file is read as a whole."""
    data = box.data
    return {
        "unit": box.unit,
        "units": {"watch": list(watch_config.UNITS), "record": list(NIGHTLY_UNITS)},
        "lane": data.lane_name,
        "image": box.image,
        "host": box.lane_host,
        "port": data.lane_port,
        "key": box.key_path,
        "environment": sorted(box.environment),
        "packages": list(data.toolkit_packages),
        "keyring": KEYRING,
        "models": sorted(file["path"] for file in box.fetch_manifest["files"]),
        "models_dir": data.models_dir,
        "generations": f"{data.state_dir}/generations",
        "units_out": [lane.unit for lane in data.lanes_out],
        "containers_out": [lane.container for lane in data.lanes_out],
        "paths": sorted([*(placed.path for placed in box.files()), *box.folders]),
        "disks": sorted({"/", data.state_dir, data.models_dir, "/var/lib/docker"}),
        "record": box.record_path,
        "night": box.drift_path,
        "watch_status": watch_config.STATUS,
        **({"deep": True} if deep else {}),
    }


def foresee(host: Host, box: Desired) -> None:
    """One look instead of one for each file: `PathReport` has the answers for all that the deploy places."""
    seen = look(host, DriftState, question=question_of(box))
    states = {
        **seen["files"],
        box.key_path: seen["facts"]["router: API key"],
        box.record_path: seen["record_state"],
    }
    for path, text in states.items():
        known(host, PathReport, path_state(text), path=path)
    known(host, LaneState, lane_state(seen, box), question=lane_question(box))


def lane_question(box: Desired) -> dict[str, str]:
    """The question of `LaneState` about the lane of ``box``."""
    return {
        "unit": box.unit,
        "lane": box.data.lane_name,
        "presets": box.presets_path,
        "key": box.key_path,
        "models_dir": box.data.models_dir,
    }


def lane_state(seen: Mapping[str, Any], box: Desired) -> dict[str, Any]:
    """The answer of `LaneState` out of that of `DriftState`."""
    facts, unit = seen["facts"], seen["facts"]["router: unit"]
    mode, owner, *rest = [*facts["router: API key"].partition(" -> ")[0].split(), "", ""][:3]
    return {
        "loaded": unit["loaded"] or "not-found",
        "active": unit["active"] or "inactive",
        "enabled": unit["enabled"],
        "needs_reload": unit["needs_reload"] == "yes",
        "container_hash": (facts["router: container"] or {}).get("label", ""),
        "presets_read": facts["router: presets read"],
        "presets_file": "".join(seen["files"].get(box.presets_path, "").split()[2:]),
        "key": {"mode": mode, "owner": owner, "size": 0 if rest == ["empty"] else 1} if mode else None,
        "key_newer": seen["key_newer"],
        "models_newer": seen["models_newer"],
    }


def path_state(text: str) -> PathState | None:
    """A `PathState` of what the look says: ``MODE UID:GID``, then the digest of a file's content, or for a
    secret only whether it is empty; a link in its place says where it leads."""
    if not text:
        return None
    shown, link, _ = text.partition(" -> ")
    mode, owner, *rest = shown.split()
    if link:
        return PathState("symbolic link", mode, owner, "")
    digest = hashlib.sha256(b"").hexdigest() if rest == ["empty"] else "".join(rest)
    return PathState("regular file" if rest else "", mode, owner, digest)
