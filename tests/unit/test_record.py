"""The record of a deploy: what it keeps, when it is written anew, and what came since."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gb10.faults import BadInput
from gb10.record import COUNTED, events, files_by_stage, make, news, readable, text, wants
from gb10.revision import Revision
from gb10.stages import chosen, noted, stage, with_followers
from tests.unit.boxes import box
from tests.unit.drifted import REVISION, seen

BOX = box()
RECORD = make(BOX, REVISION, seen(BOX), "ann@desk")


def again(**changes: Any) -> dict[str, Any]:
    """The record of another deploy, made anew."""
    arguments = {"box": BOX, "revision": REVISION, "seen": seen(BOX), "by": "bob@sofa", **changes}
    return make(**arguments)


def test_every_file_belongs_to_a_stage() -> None:
    placed = [file.path for files in files_by_stage(BOX).values() for file in files]
    assert sorted(placed) == sorted(file.path for file in BOX.files())


def test_the_same_again_is_not_written() -> None:
    assert not news(json.loads(text(RECORD, "now")), again(), seen(BOX)["readings"])


@pytest.mark.parametrize(
    "changes",
    [
        {"revision": Revision("beef", False)},
        {"revision": Revision("c0ffee", True)},
        {"box": box(lane_pids_limit=2048)},
        {"box": box(notify_command=["logger"])},
        {"box": box(drift_disk_percent=80)},
        {"seen": seen(BOX, **{"box: kernel": "7"})},
    ],
)
def test_what_it_says_anew_is_written(changes: dict[str, Any]) -> None:
    assert news(RECORD, again(**changes), seen(BOX)["readings"])


def test_a_reboot_alone_is_not_written() -> None:
    readings = {**seen(BOX)["readings"], "boot": "two"}
    assert not news(RECORD, again(seen={**seen(BOX), "readings": readings}), readings)


@pytest.mark.parametrize("old", [None, {}, {"version": 0}, {"version": 99}])
def test_a_record_of_another_shape_counts_as_none(old: Any) -> None:
    assert not readable(old)
    assert news(old, RECORD, seen(BOX)["readings"])


@pytest.mark.parametrize(
    ("before", "boot", "now", "since"),
    [
        (0, "one", 0, 0),
        (2, "one", 5, 3),
        (2, "one", 1, 1),  # the unit was started by hand: its counter began anew
        (2, "two", 0, 0),
        (2, "two", 1, 1),
        (2, "two", 2, 2),  # as many as there had been before the boot
        (2, "two", 3, 3),
    ],
)
def test_events(before: int, boot: str, now: int, since: int) -> None:
    kernel = {"one": 1000.0, "two": 5000.0}
    record = {"boot": "one", "kernel": kernel["one"], "counters": dict.fromkeys(COUNTED, before)}
    readings = {"boot": boot, "kernel": kernel[boot], **dict.fromkeys(COUNTED, now)}
    assert events(record, readings) == dict.fromkeys(COUNTED, since)


def test_a_kernel_that_did_not_start_anew_goes_on_counting() -> None:
    """As of a system in a container, whose systemd does start anew. The clock may have been put right."""
    record = {"boot": "one", "kernel": 1000.0, "counters": dict.fromkeys(COUNTED, 2)}
    readings = {"boot": "two", "kernel": 1001.0, **dict.fromkeys(COUNTED, 2)}
    assert events(record, readings) == {"oom_kills": 0, "restarts": 2}


def test_no_secret_is_recorded() -> None:
    secret = "s3cr3t-Value_0123456789"
    owner = box(lane_environment={"HF_TOKEN": secret})
    assert secret not in text(make(owner, REVISION, seen(owner), "ann@desk"), "now")


# -- some of the stages ---------------------------------------------------------------------------


def test_a_deploy_of_some_stages_records_those() -> None:
    old = json.loads(text(RECORD, "then"))
    newer = box(lane_pids_limit=2048, toolkit_version="1.20.0-1")
    after = {**seen(newer, **{"toolkit: daemon.json": "else", "box: kernel": "7"}), "record": old}
    record = make(newer, REVISION, after, "ann@desk", ["router", "verify"])
    assert record["wants"]["router"] == wants(newer)["router"]
    assert record["wants"]["toolkit"] == wants(BOX)["toolkit"] != wants(newer)["toolkit"]
    assert record["facts"]["toolkit: daemon.json"] == RECORD["facts"]["toolkit: daemon.json"]
    pin = BOX.toolkit_files[1].path
    assert record["files"][pin] == RECORD["files"][pin]


def partly(stages: list[str], noted: list[str], **readings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record that a run of some stages makes on a box that has drifted meanwhile, and its readings."""
    old = json.loads(text(RECORD, "then"))
    after = {**seen(BOX, **{"box: kernel": "7", "box: firewall": []}), "record": old}
    after["readings"] |= {"oom_kills": 2, "restarts": 3, **readings}
    return make(BOX, REVISION, after, "ann@desk", stages, noted), after["readings"]


@pytest.mark.parametrize("stages", [["router", "verify"], ["verify"], ["toolkit", "router", "verify"]])
def test_a_run_of_some_stages_takes_no_note_of_what_nobody_was_shown(stages: list[str]) -> None:
    record, readings = partly(stages, [])
    assert record["facts"]["box: kernel"] == RECORD["facts"]["box: kernel"]
    assert record["facts"]["box: firewall"] == RECORD["facts"]["box: firewall"]
    assert events(record, readings) == {"oom_kills": 2, "restarts": 3}


def test_what_was_shown_is_noted_and_nothing_else() -> None:
    record, readings = partly(["verify"], ["box: kernel", "router: restarts"])
    assert record["facts"]["box: kernel"] == "7"
    assert record["facts"]["box: firewall"] == RECORD["facts"]["box: firewall"]
    assert events(record, readings) == {"oom_kills": 2, "restarts": 0}


def test_what_is_not_noted_counts_on_over_a_boot() -> None:
    record, readings = partly(["verify"], [], boot="two", kernel=5e9)
    assert events(record, readings) == {"oom_kills": 2, "restarts": 3}
    assert events(record, {**readings, "oom_kills": 5, "restarts": 3}) == {"oom_kills": 5, "restarts": 3}


def test_a_whole_deploy_takes_note_of_all() -> None:
    answer = seen(BOX, **{"box: kernel": "7"})
    answer["readings"]["oom_kills"] = 2
    record = again(seen={**answer, "record": json.loads(text(RECORD, "then"))})
    assert record["facts"]["box: kernel"] == "7"
    assert events(record, answer["readings"])["oom_kills"] == 0
    assert "oom_kills" in news(RECORD, record, answer["readings"])


def test_a_count_that_is_not_noted_is_no_news() -> None:
    record, readings = partly(["verify"], [])
    assert news(RECORD, record, readings) == []


def test_what_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GB10_NOTED", raising=False)
    assert noted() == []
    monkeypatch.setenv("GB10_NOTED", "box: OOM kills,box: kernel")
    assert noted() == ["box: OOM kills", "box: kernel"]


def test_which_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    @stage("toolkit")
    def toolkit(box: Any) -> None:
        ran.append("toolkit")

    monkeypatch.delenv("GB10_STAGES", raising=False)
    assert chosen() is None
    toolkit(BOX)
    monkeypatch.setenv("GB10_STAGES", "router")
    toolkit(BOX)
    assert ran == ["toolkit"]
    assert chosen() == ["router", "verify"]
    monkeypatch.setenv("GB10_STAGES", "toolkit, lanes")
    assert chosen() == ["lanes", "toolkit", "router", "verify"]
    toolkit(BOX)
    assert ran == ["toolkit", "toolkit"]
    monkeypatch.setenv("GB10_STAGES", "toolkti")
    with pytest.raises(BadInput, match="there is no stage toolkti"):
        chosen()


def test_a_stage_brings_the_one_that_it_may_have_stopped() -> None:
    assert with_followers(["image"]) == ["image", "router"]
    assert with_followers(["router", "lanes"]) == ["lanes", "router"]
