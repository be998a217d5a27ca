"""The nightly look on the box: the record against what is there."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from files import gb10_drift
from gb10 import stages
from gb10.drift.mask import MASK, masked
from gb10.nightly import names
from gb10.operations import placed
from gb10.stages import image, models, router, toolkit, watch
from gb10.stages import record as record_stage
from tests.unit.boxes import box
from tests.unit.drifted import seen
from tests.unit.nights import BOX, SETTINGS, record


def judged(answer: dict[str, Any], today: str = "2026-11-29", **changes: Any) -> list[dict[str, str]]:
    return gb10_drift.judge({**SETTINGS, **changes}, record(), answer, today, masked)


def items(answer: dict[str, Any], **changes: Any) -> list[str]:
    return [item["item"] for item in judged(answer, **changes)]


def test_nothing_has_changed() -> None:
    assert judged(seen(BOX)) == []


def test_it_names_what_it_finds_as_gb10_drift_does() -> None:
    answer = seen(
        BOX,
        **{
            "box: kernel": "6.8.1",
            "box: open ports": ["22 sshd", "8000 python3"],
            "lanes: vLLM units": ["x.service"],
            "lanes: vLLM containers": ["mine (vllm/vllm-openai)"],
            "lanes: vLLM processes": ["vllm serve x"],
            "toolkit: apt sources": {"/etc/apt/sources.list.d/copied.list": "0644 0:0 1"},
            "router: drop-ins": {"/etc/x.conf": "1"},
            "image: id": "sha256:2",
        },
    )
    answer["facts"]["router: container"]["user"] = "0:0"
    answer["facts"]["router: container"]["environment"] |= {"DEBUG": "1"}
    answer["facts"]["router: container"]["other"] = {"PidMode": "host"}
    answer["facts"]["router: unit"]["active"] = "failed"
    answer["facts"]["watch: drop-ins"] = {"/etc/w.conf": "1"}
    answer["facts"]["record: timer"]["enabled"] = "disabled"
    answer["files"][BOX.presets_path] = ""
    answer["files"][BOX.unit_file.path] = "0600 0:0 1"
    assert items(answer) == [
        "box: kernel",
        "box: open port 8000",
        "image: the tag is the deploy's",
        "lanes: vLLM container mine (vllm/vllm-openai)",
        "lanes: vLLM process vllm serve x",
        "lanes: vLLM unit x.service",
        "record: a look each night",
        "router: container environment DEBUG",
        "router: container other",
        "router: container user",
        "router: drop-in /etc/x.conf",
        "router: unit active",
        "toolkit: apt source /etc/apt/sources.list.d/copied.list",
        "watch: drop-in /etc/w.conf",
        "router: presets",
        f"router: {BOX.unit}",
    ]


def test_every_file_has_the_name_of_its_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that the nightly look is given are those of the deploy's own operations."""
    found: dict[str, str] = {}

    def file(name: str, placed: Any) -> None:
        found[placed.path] = name

    monkeypatch.setattr(placed, "file", file)
    monkeypatch.setattr(placed, "folder", lambda name, path: found.update({path: name}))
    monkeypatch.setattr(placed, "secret", lambda **_: None)
    monkeypatch.setattr(stages, "chosen", lambda: None)

    def only_names(module: ModuleType) -> None:
        for name, value in vars(module).items():
            if hasattr(value, "_inner"):
                monkeypatch.setattr(module, name, lambda name, **_: found.update({name: name}))

    for module in (image, models, router, toolkit, record_stage, watch, stages.corrections):
        only_names(module)
    for run in (toolkit.install, image.build, models.fetch, router.serve, watch.install, record_stage.keep):
        run(BOX)
    called = names(BOX, [file.path for file in BOX.nightly_files])
    for path in (*(file.path for file in BOX.files()), BOX.data.lane_config_dir):
        assert called[path] == found.get(path, "watch: programs, settings and units"), path
    operations = {name for name in called.values() if not name.startswith("router: open port")}
    assert operations <= set(found.values())


def test_a_deploy_does_not_make_a_stranger_welcome() -> None:
    there = {
        "lanes: vLLM containers": ["try-vllm (vllm:1)"],
        "box: open ports": ["22 sshd", "8888 python3"],
    }
    answer = seen(BOX, **there)
    kept = record(facts=answer["facts"])  # it was there at the deploy
    found = {item["item"]: item["is"] for item in gb10_drift.judge(SETTINGS, kept, answer, "2027-01-01")}
    assert found == {"lanes: vLLM container try-vllm (vllm:1)": "there", "box: open port 8888": "python3"}


def test_a_container_that_is_gone() -> None:
    answer = seen(BOX, **{"router: container": None})
    assert {"item": "router: container", "was": "there", "is": "nothing"} in judged(answer)


def test_the_whole_value_is_compared_and_the_place_of_the_change_shown() -> None:
    answer = seen(BOX)
    argv = answer["facts"]["box: firewall"]
    argv += [f"-A INPUT -s 10.0.0.{number} -j DROP" for number in range(40)]
    before = record()
    before["facts"]["box: firewall"] = [*argv[:-1], argv[-1].replace("DROP", "ACCEPT")]
    (item,) = gb10_drift.judge(SETTINGS, before, answer, "2026-11-29", masked)
    assert "ACCEPT" in item["was"]
    assert "DROP" in item["is"]
    assert max(len(item["was"]), len(item["is"])) <= gb10_drift.TEXT + 2


def test_what_came_up_by_itself() -> None:
    answer = seen(BOX)
    answer["readings"] |= {
        "oom_kills": 1,
        "disks": {"/": [1, 100]},
        "reboot": ["linux"],
        "would_move": {"a": ["1", "2"]},
    }
    assert items(answer) == ["box: OOM kills", "box: disk /", "box: reboot", "toolkit: apt would move a"]


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        ({"boot": "one"}, []),
        # As many as there had been before the boot.
        ({"boot": "two", "kernel": 9e9}, ["box: OOM kills", "router: restarts"]),
        ({"boot": "two"}, ["router: restarts"]),  # a kernel that did not start anew
    ],
)
def test_counters_after_a_boot(readings: dict[str, Any], found: list[str]) -> None:
    answer = seen(BOX)
    answer["readings"] |= {"oom_kills": 2, "restarts": 2, **readings}
    before = record(counters={"oom_kills": 2, "restarts": 2})
    assert [item["item"] for item in gb10_drift.judge(SETTINGS, before, answer, "2026-11-29")] == found


@pytest.mark.parametrize("item", ["box: kernel", "router: presets"])
def test_what_is_ignored_counts_again_from_its_day_on(item: str) -> None:
    entry = {"item": item, "reason": "r", "owner": "o", "expires": "2026-12-01"}
    answer = seen(BOX, **{"box: kernel": "7"})
    answer["files"][BOX.presets_path] = ""
    assert item not in items(answer, ignore=[entry])
    assert item in items(answer, ignore=[entry], today="2026-12-01")


SECRET = "s3cr3t-Value_0123456789"


def test_no_secret_of_the_box_is_told() -> None:
    argv = ["--api-key", SECRET, "-k", SECRET, SECRET]
    answer = seen(
        BOX,
        **{
            "lanes: vLLM processes": [f"vllm --api-key {SECRET}"],
            "box: firewall": [f"-m comment PASSWORD={SECRET}"],
        },
    )
    answer["facts"]["router: container"] |= {"command": argv, "entrypoint": [SECRET]}
    answer["facts"]["router: container"]["environment"] |= {"LLAMA_ARG_DEVICE": SECRET, "X": SECRET}
    answer["readings"]["apt"] = f"apt-cache policy: https://user:{SECRET}@example.com/x: no such list"
    found = judged(answer)
    assert "toolkit: apt" in {item["item"] for item in found}
    assert SECRET not in json.dumps(found)
    shown = {item["item"]: (item["was"], item["is"]) for item in found}
    assert shown["router: container command"][1].startswith("sha256 ")
    assert shown["router: container command"][0] != shown["router: container command"][1]
    assert shown[f"lanes: vLLM process vllm --api-key {MASK}"] == ("nothing", "there")
    assert shown["router: container environment X"] == ("not set", "set")
    assert shown["router: container environment LLAMA_ARG_DEVICE"] == ("set", "set to something else")


def test_its_settings_are_its_own_to_read() -> None:
    (file,) = (file for file in box().nightly_files if file.path.endswith("/nightly.json"))
    assert (file.mode, file.owner) == ("0600", "0:0")
    assert json.loads(file.content)["names"][file.path] == "record: nightly.json"


def test_usage() -> None:
    assert gb10_drift.main([]) == 2
