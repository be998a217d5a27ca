"""What a deploy puts right beside its files: a tag that was moved, drop-ins, a container that was altered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gb10.facts.docker import ImageState
from gb10.facts.drift import DriftState
from gb10.record import text
from gb10.stages import corrections, record
from gb10.watch_config import UNITS
from tests.unit.boxes import box, commands, verbs
from tests.unit.drifted import IMAGE, recorded, seen

BOX = box()
D = "/etc/systemd/system/llamacpp-playground.service.d"


def ran(operation: Any, answer: dict[str, Any], image: str = "unproven") -> list[str]:
    return verbs(commands(operation, {DriftState: answer, ImageState: image}, box=BOX))


def without_drop_ins(
    answer: dict[str, Any], stage: str = "router", units: Sequence[str] = (BOX.unit,)
) -> list[str]:
    facts = {DriftState: answer}
    return verbs(commands(corrections.drop_ins, facts, box=BOX, stage=stage, units=units))


def test_a_settled_box_needs_nothing() -> None:
    answer = recorded(BOX, seen(BOX))
    for operation in (corrections.tag, corrections.container, record.nightly):
        assert ran(operation, answer) == []
    assert without_drop_ins(answer) == []


def test_a_tag_that_was_moved() -> None:
    moved = recorded(BOX, seen(BOX, **{"image: id": "sha256:2"}))
    program, description = "/usr/local/lib/gb10/gb10_image.py", BOX.image_file.path
    assert ran(corrections.tag, moved) == [f"python3 {program} {description} retag {IMAGE}"]
    # It has proven itself since: a deploy that did not come to its record.
    assert ran(corrections.tag, moved, image="proven") == []
    # Nobody knows what it was, or it was another tag.
    assert ran(corrections.tag, seen(BOX, **{"image: id": "sha256:2"})) == []
    moved["record"]["question"]["image"] = "gb10/llama-server:older"
    assert ran(corrections.tag, moved) == []
    assert ran(corrections.tag, recorded(BOX, seen(BOX, **{"image: id": ""}))) == []


def test_drop_ins_of_the_unit_go_and_others_stay() -> None:
    paths = [
        f"{D}/a.conf",
        "/etc/systemd/system/service.d/all.conf",
        "/usr/lib/systemd/system/x.service.d/b.conf",
    ]
    answer = seen(BOX, **{"router: drop-ins": dict.fromkeys(paths, "digest")})
    assert without_drop_ins(answer) == [
        f"/var/lib/gb10/taken-over {D}/a.conf",
        "systemctl daemon-reload",
    ]


def test_drop_ins_of_the_watch_go_and_it_starts_anew() -> None:
    path = "/etc/systemd/system/gb10-watch.service.d/override.conf"
    answer = seen(BOX, **{"watch: drop-ins": {path: "digest"}})
    assert without_drop_ins(answer, "watch", UNITS) == [
        f"/var/lib/gb10/taken-over {path}",
        "gb10-watch.service",
    ]
    assert without_drop_ins(answer) == []


def test_an_altered_container_is_restarted() -> None:
    answer = seen(BOX)
    answer["facts"]["router: container"]["memory"] = 1 << 30
    assert ran(corrections.container, answer)[-1] == f"systemctl restart {BOX.unit}"
    # None at all is the matter of the operation that starts it.
    assert ran(corrections.container, seen(BOX, **{"router: container": None})) == []


def test_presets_that_the_router_runs_otherwise_are_read_again() -> None:
    answer = seen(BOX)
    name = next(iter(answer["models"]))
    answer["models"][name]["ctx-size"] = "1"
    (line,) = ran(corrections.container, answer)
    assert line.endswith("lane.json reload")
    # A router that does not answer says nothing about its models.
    assert ran(corrections.container, {**seen(BOX), "models": {}, "models_error": "401"}) == []


def test_the_timer() -> None:
    timer = {"enabled": "", "active": "inactive", "loaded": "not-found", "needs_reload": "no"}
    assert ran(record.nightly, seen(BOX, **{"record: timer": timer})) == [
        "systemctl daemon-reload",
        "systemctl enable --quiet gb10-drift.timer",
        "systemctl start gb10-drift.timer",
    ]
    edited = {"enabled": "enabled", "active": "active", "loaded": "loaded", "needs_reload": "yes"}
    assert ran(record.nightly, seen(BOX, **{"record: timer": edited})) == [
        "systemctl daemon-reload",
        "systemctl restart gb10-drift.timer",
    ]


def test_a_record_is_whole_json() -> None:
    assert json.loads(text({"version": 1}, "now")) == {"version": 1, "time": "now"}
