"""The record of a deploy: what it keeps, when it is written anew, and what came since."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gb10.faults import BadInput
from gb10.record import events, files_by_stage, make, news, readable, text, wants
from gb10.revision import Revision
from gb10.stages import chosen, stage, with_followers
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
        (2, "two", 3, 3),
        (2, "two", 2, 0),  # a kernel that did not start anew under this system, as in a container
    ],
)
def test_events(before: int, boot: str, now: int, since: int) -> None:
    record = {"boot": "one", "counters": {"oom_kills": before}}
    assert events(record, {"boot": boot, "oom_kills": now}) == {"oom_kills": since}


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
    assert record["facts"]["box: kernel"] == "7"
    pin = BOX.toolkit_files[1].path
    assert record["files"][pin] == RECORD["files"][pin]


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
