"""What differs, who made it, and what puts it right: without a host."""

from __future__ import annotations

import io
from typing import Any

import pytest
from pyinfra.api.command import FileUploadCommand, StringCommand

from gb10.boxdata import IgnoredDrift
from gb10.desired import Desired
from gb10.drift.judge import case_of, judge
from gb10.drift.plan import Planned
from gb10.drift.report import Class, Item
from gb10.operations import placed
from tests.unit.boxes import box
from tests.unit.drifted import IMAGE, NOW, recorded, seen

BOX = box()
TODAY = "2026-11-29"


def judged(
    answer: dict[str, Any], plan: list[Planned] | None = None, of: Desired = BOX, files: Any = ()
) -> dict[str, Item]:
    items, _ = judge(case_of(of, answer, plan or [], files, NOW, TODAY))
    return {item.id: item for item in items}


def now(**facts: Any) -> dict[str, Any]:
    """The settled box of a recorded deploy, with other facts since."""
    return recorded(BOX, seen(BOX, **facts))


def container(**changes: Any) -> dict[str, Any]:
    return {**seen(BOX)["facts"]["router: container"], **changes}


def writes(path: str) -> Planned:
    upload = f"{placed.UPLOAD}abc"
    commands = (
        FileUploadCommand(io.BytesIO(b"x"), upload),
        StringCommand("sh", "-c", "''", "-", upload, path),
    )
    return Planned("router: presets", commands)


def test_a_settled_box_is_clean() -> None:
    assert judged(now()) == {}


def test_a_box_without_a_record() -> None:
    plan = [Planned("record: this deploy", (StringCommand("true"),))]
    (item,) = judged(seen(BOX), plan).values()
    assert (item.id, item.made, item.fix) == ("record: this deploy", Class.NEW, "deploy")
    # A record that only moves on with the repository's revision is no difference.
    assert judged(now(), plan) == {}


@pytest.mark.parametrize(
    ("by_hand", "moved", "made"),
    [
        (True, False, Class.BY_HAND),
        (False, True, Class.REPOSITORY),
        (True, True, Class.BOTH),
        (False, False, Class.NEW),
    ],
)
def test_who_changed_a_file(by_hand: bool, moved: bool, made: Class) -> None:
    answer = recorded(BOX, seen(BOX))
    path = BOX.presets_path
    if by_hand:
        answer["files"][path] = "0644 0:0 " + "f" * 64
    if moved:
        answer["record"]["wants"]["router"][path] = "0644 0:0 " + "e" * 64
    item = judged(answer, [writes(path)])["router: presets"]
    assert item.made is made
    assert item.fix == "deploy"
    assert item.commands == ("upload", f"script: {path}")


@pytest.mark.parametrize(
    ("facts", "name", "fix"),
    [
        ({"router: container": container(user="0:0")}, "router: container user", "deploy"),
        (
            {"router: container": container(published=["0.0.0.0:10103->10103/tcp"])},
            "router: container published",
            "deploy",
        ),
        ({"router: container": container(pids=-1)}, "router: container pids", "deploy"),
        ({"router: container": container(image="sha256:2")}, "router: container image", "deploy"),
        ({"router: container": container(mounts=["/:/host:rw"])}, "router: container mounts", "deploy"),
        ({"router: container": None}, "router: container", "deploy"),
        (
            {"router: drop-ins": {"/etc/systemd/system/llamacpp-playground.service.d/x.conf": "1"}},
            "router: drop-in /etc/systemd/system/llamacpp-playground.service.d/x.conf",
            "deploy",
        ),
        (
            {"router: drop-ins": {"/usr/lib/systemd/system/service.d/x.conf": "1"}},
            "router: drop-in /usr/lib/systemd/system/service.d/x.conf",
            "hand",
        ),
        ({"box: kernel": "6.8.1"}, "box: kernel", "deploy"),
        ({"box: driver": "590.1"}, "box: driver", "deploy"),
        ({"box: firewall": []}, "box: firewall", "deploy"),
        ({"toolkit: daemon.json": "0644 0:0 " + "c" * 64}, "toolkit: daemon.json", "deploy"),
        ({"box: open ports": ["22 sshd", "8000 python3"]}, "box: open port 8000", "hand"),
        (
            {"lanes: vLLM containers": ["mine (vllm/vllm-openai)"]},
            "lanes: vLLM container mine (vllm/vllm-openai)",
            "hand",
        ),
        ({"lanes: vLLM processes": ["vllm serve x"]}, "lanes: vLLM process vllm serve x", "hand"),
    ],
)
def test_a_change_by_hand(facts: dict[str, Any], name: str, fix: str) -> None:
    item = judged(now(**facts))[name]
    assert (item.made, item.fix) == (Class.BY_HAND, fix)


@pytest.mark.parametrize("part", ["enabled", "active", "loaded", "file"])
def test_the_unit(part: str) -> None:
    unit = {**seen(BOX)["facts"]["router: unit"], part: "other"}
    item = judged(now(**{"router: unit": unit}))[f"router: unit {part}"]
    assert (item.is_, item.made) == ("other", Class.BY_HAND)


def test_a_limit_that_the_kernel_cannot_keep_is_no_difference() -> None:
    assert judged(now(**{"router: container": container(pids="unsupported", memory="unsupported")})) == {}


def test_the_environment_shows_names_and_no_values() -> None:
    environment = {**container()["environment"], "OPENAI_API_KEY": "digest", "LLAMA_ARG_DEVICE": "other"}
    del environment["LLAMA_CACHE"]
    found = judged(now(**{"router: container": container(environment=environment)}))
    shown = {
        name.rpartition(" ")[2]: (item.should, item.is_)
        for name, item in found.items()
        if "container" in name
    }
    assert shown == {
        "OPENAI_API_KEY": ("not set", "set"),
        "LLAMA_ARG_DEVICE": ("set as described", "set to something else"),
        "LLAMA_CACHE": ("set as described", "not set"),
    }


def test_a_router_that_runs_other_settings() -> None:
    answer = now()
    name = next(iter(answer["models"]))
    answer["models"][name]["ctx-size"] = "17"
    answer["models"]["stranger"] = {"alias": ""}
    answer["facts"][f"router: model {name}"] = "another digest"
    found = judged(answer)
    assert found[f"router: model {name}"].is_ == "ctx-size 17"
    assert found[f"router: model {name}"].made is Class.BY_HAND
    assert found["router: model stranger"].is_ == "served"


def test_a_router_that_does_not_answer() -> None:
    assert judged({**now(), "models_error": "GET /models answered 401"})["router: models"].is_.endswith("401")


@pytest.mark.parametrize(
    ("state", "is_", "fix"),
    [
        ("missing", "missing", "deploy"),
        ("wrong", "another file", "deploy"),
        ("partial", "partial", "deploy"),
        ("unverified", "changed since it was read", "deploy"),
    ],
)
def test_model_files(state: str, is_: str, fix: str) -> None:
    path = BOX.fetch_manifest["files"][0]["path"]
    plan = [Planned("models: files", (StringCommand("true"),))]
    key = f"models: {path}"
    answer = now(**{key: state if state == "missing" else "unverified"})
    (item,) = judged(answer, plan, files=[{"path": path, "state": state}]).values()
    assert (item.id, item.is_, item.fix, item.made) == (key, is_, fix, Class.BY_HAND)


def test_a_model_that_the_server_may_not_read() -> None:
    path = BOX.fetch_manifest["files"][0]["path"]
    plan = [Planned("models: files", (StringCommand("true"),))]
    (item,) = judged(now(), plan, files=[{"path": path, "state": "ok", "closed": [path]}]).values()
    assert (item.is_, item.fix, item.made) == ("not readable for the server", "deploy", Class.BY_HAND)


def test_a_folder_that_others_may_write_in() -> None:
    answer = now()
    answer["files"]["/usr/local/lib/gb10"] = "0777 0:0"
    plan = [Planned("router: /usr/local/lib/gb10", (StringCommand("chmod", "0755", "/usr/local/lib/gb10"),))]
    item = judged(answer, plan)["router: /usr/local/lib/gb10"]
    assert (item.should, item.is_, item.made) == ("0755 0:0", "0777 0:0", Class.BY_HAND)


def test_an_apt_that_cannot_read_its_lists() -> None:
    answer = now()
    answer["readings"]["apt"] = "apt-cache policy: E: Malformed line 1"
    item = judged(answer)["toolkit: apt"]
    assert (item.is_, item.fix, item.made) == ("apt-cache policy: E: Malformed line 1", "hand", Class.NEW)


def test_a_drop_in_of_the_watch() -> None:
    path = "/etc/systemd/system/gb10-watch.service.d/override.conf"
    item = judged(now(**{"watch: drop-ins": {path: "digest"}}))[f"watch: drop-in {path}"]
    assert (item.stage, item.fix, item.made) == ("watch", "deploy", Class.BY_HAND)


def test_a_model_whose_bytes_went_bad_is_seen_by_a_deep_look() -> None:
    path = BOX.fetch_manifest["files"][0]["path"]
    item = judged(now(**{f"models: {path}": "0" * 64}), files=[{"path": path, "state": "ok"}])[
        f"models: {path}"
    ]
    assert item.fix == "hand"
    assert f"touch {path}" in item.do


def test_what_came_up_by_itself() -> None:
    answer = now()
    answer["readings"] |= {
        "oom_kills": 2,
        "restarts": 1,
        "disks": {"/": [5, 100], "/srv": [5, 100]},
        "reboot": ["linux-image-6.8.1"],
        "would_move": {"nvidia-container-toolkit": ["1.19.1-1", "1.20.0-1"]},
        "time": NOW + 300,
    }
    found = judged(answer)
    assert {name: item.is_ for name, item in found.items()} == {
        "box: OOM kills": "2 since",
        "router: restarts": "1 since",
        "box: disk /": "95 % full",
        "box: clock": "+300 s",
        "box: reboot": "wanted by linux-image-6.8.1",
        "toolkit: apt would move nvidia-container-toolkit": "next: 1.20.0-1",
    }
    assert {item.made for item in found.values()} == {Class.NEW}


def test_a_reboot_is_no_difference() -> None:
    answer = now()
    answer["record"] |= {"boot": "other", "counters": {"oom_kills": 3, "restarts": 2}}
    assert judged(answer) == {}


def test_the_lanes_own_port_may_be_open_where_the_data_says_so() -> None:
    wide = box(lane_address="0.0.0.0")
    ports = ["10103 docker-proxy", "22 sshd"]
    assert judged(recorded(wide, seen(wide, **{"box: open ports": ports})), of=wide) == {}
    item = judged(now(**{"box: open ports": ports}))["router: open port 10103"]
    assert item.fix == "deploy"


def test_the_ignore_list() -> None:
    entry = {"item": "box: kernel", "reason": "after the fair", "owner": "ann"}
    later, over = ({**entry, "expires": day} for day in ("2026-12-01", "2026-11-29"))
    answer = now(**{"box: kernel": "6.8.1"})
    quiet = box(drift_ignore=[later])
    items, ignored = judge(case_of(quiet, {**answer}, [], [], NOW, TODAY))
    assert [one.item.id for one in ignored] == ["box: kernel"]
    assert "box: kernel" not in {item.id for item in items}
    expired = judged(answer, of=box(drift_ignore=[over]))
    assert {"box: kernel", "box: ignored box: kernel"} <= expired.keys()
    assert "expired on 2026-11-29 (ann: after the fair)" in expired["box: ignored box: kernel"].is_


def test_the_ignore_list_is_checked() -> None:
    with pytest.raises(ValueError, match="must be a day"):
        IgnoredDrift(item="a", reason="b", owner="c", expires="soon")


def test_an_operation_without_a_file_is_classed_by_its_stage() -> None:
    plan = [Planned("toolkit: packages 1.19.1-1", (StringCommand("sh", "-c", "''", "-", "a=1"),))]
    upgraded = now(**{"toolkit: packages": {"nvidia-container-toolkit": "1.20.0-1"}})
    assert judged(upgraded, plan)["toolkit: packages 1.19.1-1"].made is Class.BY_HAND
    newer = box(toolkit_version="1.20.0-1")
    moved = recorded(newer, seen(BOX), deployed=BOX)
    assert judged(moved, plan, of=newer)["toolkit: packages 1.19.1-1"].made is Class.REPOSITORY


def test_the_image_under_its_tag() -> None:
    moved = now(**{"image: id": "sha256:3"})
    item = judged(moved)["router: container image"]
    assert (item.should, item.is_, item.made) == ("sha256:3", IMAGE, Class.BY_HAND)
