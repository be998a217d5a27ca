"""What differs, who made it, and what puts it right: without a host."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from pyinfra.api.command import FileUploadCommand, StringCommand

from gb10.boxdata import IgnoredDrift
from gb10.desired import Desired
from gb10.drift.judge import case_of, judge
from gb10.drift.plan import Planned
from gb10.drift.report import Class, Item
from gb10.found import FoundModel
from gb10.gguf import Header
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
        for wants in ("wants", "wants_alone"):
            answer["record"][wants]["router"][path] = "0644 0:0 " + "e" * 64
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
    unit = {**seen(BOX)["facts"]["router: unit"], part: "inactive"}
    item = judged(now(**{"router: unit": unit}))[f"router: unit {part}"]
    assert (item.is_, item.made) == ("inactive", Class.BY_HAND)


LANE_PLAN = [
    Planned("router: runs what is described", (StringCommand("systemctl", "restart", "x"),)),
    Planned("verify: the lane answers from its accelerator", (StringCommand("chat"),)),
]


def down(state: str, **facts: Any) -> dict[str, Any]:
    """A lane that does not run: the unit is in ``state``, and what only a running lane has is gone."""
    unit = {**seen(BOX)["facts"]["router: unit"], "active": state}
    gone = {"router: container": None, "router: process environment": {}, "router: presets read": ""}
    return {**now(**{"router: unit": unit, **gone, **facts}), "models_error": "refused"}


@pytest.mark.parametrize(
    ("state", "made"), [("failed", Class.NEW), ("activating", Class.NEW), ("inactive", Class.BY_HAND)]
)
def test_a_crash_is_nobodys_and_a_stop_is_by_hand(state: str, made: Class) -> None:
    found = judged(down(state), LANE_PLAN)
    assert {name: item.made for name, item in found.items()} == dict.fromkeys(
        ["router: unit active", "router: container", *(one.name for one in LANE_PLAN)], made
    )


def test_a_lane_that_the_watch_has_stopped_is_nobodys() -> None:
    answer = down("inactive")
    answer["readings"]["stopped_by_watch"] = True
    assert {item.made for item in judged(answer, LANE_PLAN).values()} == {Class.NEW}


def test_a_crash_hides_no_change_by_hand() -> None:
    answer = down("failed")
    answer["facts"]["router: unit"]["enabled"] = "disabled"
    found = judged(answer, LANE_PLAN)
    assert found["router: unit active"].made is Class.NEW
    assert found["router: unit enabled"].made is Class.BY_HAND
    assert found["router: runs what is described"].made is Class.BY_HAND


@pytest.mark.parametrize(("status", "made"), [("exited", Class.NEW), ("paused", Class.BY_HAND)])
def test_a_container_that_ended(status: str, made: Class) -> None:
    changed = now(**{"router: container": container(status=status)})
    assert judged(changed)["router: container status"].made is made


def test_a_model_that_was_found_is_a_change_of_the_box() -> None:
    meta = {"llama.block_count": 4, "llama.embedding_length": 64, "llama.attention.head_count": 8}
    meta |= {"llama.context_length": 4096, "llama.attention.head_count_kv": 2}
    said = {"architecture": "llama", "metadata": meta, "vocabulary": 300, "weight_bytes": 1000}
    header = Header.from_dict(said)
    one = FoundModel("a/b:Q4", "/found/cache/b.gguf", ("/root/b.gguf",), 1000, "", 0, header)
    before, grown = replace(BOX, found=()), replace(BOX, found=(one,))
    assert grown.presets_file != before.presets_file
    answer = recorded(grown, seen(before), deployed=before)
    item = judged(answer, [writes(BOX.presets_path)], of=grown)["router: presets"]
    assert item.made is Class.BY_HAND
    # It is served since: somebody has taken it away again.
    answer = recorded(before, seen(grown), deployed=grown)
    assert judged(answer, [writes(BOX.presets_path)], of=before)["router: presets"].made is Class.BY_HAND
    # Where the repository has moved on too, nobody can tell the one from the other.
    answer["record"]["wants_alone"]["router"][BOX.presets_path] = "other"
    assert judged(answer, [writes(BOX.presets_path)], of=before)["router: presets"].made is Class.REPOSITORY


RECORDED = [Planned("record: this deploy", (StringCommand("true"),))]


@pytest.mark.parametrize(
    ("changes", "stage"),
    [({"lanes_out": []}, "lanes"), ({"toolkit_key_fingerprint": "A" * 40}, "toolkit")],
)
def test_what_is_wanted_otherwise_and_only_recorded(changes: dict[str, Any], stage: str) -> None:
    moved = box(**changes)
    found = judged(recorded(moved, seen(moved), deployed=BOX), RECORDED, of=moved)
    assert {(item.made, item.fix) for item in found.values()} == {(Class.REPOSITORY, "deploy")}
    # So `--fix` runs that stage, and the record of it is made anew.
    assert found[f"{stage}: as recorded"].stage == stage


@pytest.mark.parametrize(
    "changes",
    [
        {"drift_disk_percent": 50},
        {"drift_ignore": [{"item": "x: y", "reason": "r", "owner": "o", "expires": "2999-01-01"}]},
    ],
)
def test_what_the_nightly_look_is_told_otherwise(changes: dict[str, Any]) -> None:
    moved = box(**changes)
    path = f"{BOX.data.state_dir}/nightly.json"
    plan = [Planned("record: nightly.json", writes(path).commands), *RECORDED]
    (item,) = judged(recorded(moved, seen(BOX), deployed=BOX), plan, of=moved).values()
    assert (item.id, item.made) == ("record: nightly.json", Class.REPOSITORY)


def test_an_operation_about_several_files() -> None:
    first, second = (file.path for file in BOX.watch_files[:2])
    plan = [Planned("watch: files", (*writes(first).commands, *writes(second).commands))]
    answer = now()
    answer["files"][second] = "0644 0:0 " + "f" * 64
    item = judged(answer, plan)["watch: files"]
    assert (item.made, item.is_) == (Class.BY_HAND, f"{first}, {second}")


def test_no_control_character_gets_into_a_report() -> None:
    argv = ["vllm", "\x1b[1A\x1b[2Kclean", "\x9b2K"]
    found = judged(
        now(**{"router: container": container(command=argv), "lanes: vLLM units": ["\x1b.service"]})
    )
    assert found["router: container command"].is_ == "vllm \\x1b[1A\\x1b[2Kclean \\x9b2K"
    assert "lanes: vLLM unit \\x1b.service" in found


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


def test_a_key_that_could_be_guessed() -> None:
    item = judged(now(**{"router: API key": "0600 10103:10103 short"}))["router: API key, its length"]
    assert (item.fix, item.is_, item.made) == ("hand", "less", Class.BY_HAND)


def test_a_rollback_says_so() -> None:
    answer = now()
    answer["readings"]["rolled_back"] = {"number": 2, "time": "2026-11-30T01:02:03Z"}
    assert "router: rollback" not in judged(answer)  # a deploy came after it
    answer["files"][BOX.presets_path] = "0644 0:0 another"
    item = judged(answer)["router: rollback"]
    assert item.is_ == "lane 2 since 2026-11-30T01:02:03Z, by a rollback"
    assert item.fix == "deploy"


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
        "night": {"unit": "success", "result": 50 * 3600, "deploy": 3600, "timer": 7200},
    }
    found = judged(answer)
    assert {name: item.is_ for name, item in found.items()} == {
        "box: OOM kills": "2 since",
        "router: restarts": "1 since",
        "box: disk /": "95 % full",
        "box: clock": "+300 s",
        "box: reboot": "wanted by linux-image-6.8.1",
        "toolkit: apt would move nvidia-container-toolkit": "next: 1.20.0-1",
        "record: last look at night": "50 h ago",
    }
    assert {item.made for item in found.values()} == {Class.NEW}


@pytest.mark.parametrize(
    ("time", "took", "is_"),
    [
        (0, 0, None),
        (-25, 1, None),
        (-45, 60, None),  # of a look that took a minute the box's time may be the first
        (-95, 60, "-35 s"),
        (-40, 1, "-39 s"),
        (40, 60, "+40 s"),
    ],
)
def test_the_clock(time: int, took: int, is_: str | None) -> None:
    answer = now()
    answer["readings"] |= {"time": NOW + time, "took": took}
    found = judged(answer)
    assert (found["box: clock"].is_ if found else None) == is_


@pytest.mark.parametrize(
    ("night", "is_"),
    [
        ({"result": 35 * 3600}, None),
        ({"result": 37 * 3600}, "37 h ago"),
        # Deployed anew each day: that is no look.
        ({"result": 37 * 3600, "deploy": 60.0}, "37 h ago"),
        ({"result": None, "deploy": 35 * 3600}, None),
        ({"result": None, "deploy": 37 * 3600}, "none since the deploy"),
        # It was off until now: the look that was missed comes by itself.
        ({"result": 900 * 3600, "timer": 600.0}, None),
        ({"result": 900 * 3600, "timer": None}, "900 h ago"),
    ],
)
def test_a_look_at_night_that_does_not_come(night: dict[str, Any], is_: str | None) -> None:
    answer = now()
    answer["readings"]["night"] |= {"timer": 900 * 3600, **night}
    found = judged(answer)
    assert (found["record: last look at night"].is_ if found else None) == is_


def test_a_look_at_night_that_failed() -> None:
    answer = now()
    answer["readings"]["night"]["unit"] = "exit-code"
    (item,) = judged(answer).values()
    assert (item.id, item.is_, item.fix) == ("record: gb10-drift.service", "failed (exit-code)", "hand")


def test_a_reboot_is_no_difference() -> None:
    answer = now()
    answer["record"] |= {"boot": "other", "kernel": 1.0, "counters": {"oom_kills": 3, "restarts": 2}}
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
