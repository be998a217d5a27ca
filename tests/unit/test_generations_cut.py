"""Power cuts, full disks and killed runs between a lane and the one that it goes back to."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import gb10_generations
import gb10_history
import gb10_router
import pytest

from tests.unit.kept_lane import ANSWERED, Lane, lane_in


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lane:
    return lane_in(tmp_path, monkeypatch)


def kept(lane: Lane, *images: str) -> Path:
    """The folder of the generations, once lanes with these images have answered one after the other."""
    for image in images:
        lane.install(image)
        lane.keep()
    return lane.folder / "generations"


def served(folder: Path) -> list[str]:
    return [one.image for one in gb10_history.served_of(folder, gb10_history.read_generations(folder))]


# -- what is kept is on the disk before it has a name ------------------------------------------------------


def test_all_of_a_lane_is_on_the_disk_before_it_is_the_current_one(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    folder = kept(lane, "x:1")
    names = ("unit", "models.ini", "lane.json", "about.json")
    place = folder / "000001"
    before = synced[: synced.index((folder / "current").stat().st_ino)]
    assert {path.stat().st_ino for path in (*(place / name for name in names), place, folder)} <= set(before)


@pytest.mark.parametrize("name", ["unit", "models.ini", "lane.json", "about.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00", None])
def test_a_lane_that_a_power_cut_left_half_is_none(lane: Lane, name: str, content: bytes | None) -> None:
    folder = kept(lane, "x:1", "x:2")
    damaged = folder / "000002" / name
    damaged.unlink() if content is None else damaged.write_bytes(content)
    assert served(folder) == ["x:1"]
    assert lane.listed()["damaged"] == [2]
    lane.install("x:3")
    assert lane.back(unverified=True)["image"] == "x:1"
    assert lane.in_place == "x:1"


@pytest.mark.parametrize("content", ["", "[", "[[1]]", '{"a": 1}', "[99]", "99999"])
def test_without_a_word_on_the_current_one_it_is_the_newest(lane: Lane, content: str) -> None:
    folder = kept(lane, "x:1", "x:2")
    (folder / "current").write_text(content)
    assert lane.listed()["current"] == 2
    assert lane.back()["image"] == "x:1"


def test_the_current_one_as_earlier_versions_wrote_it(lane: Lane) -> None:
    folder = kept(lane, "x:1", "x:2", "x:3")
    (folder / "current").write_text("2\n")
    assert served(folder) == ["x:1", "x:2"]


# -- all of a lane is put in place, or nothing -------------------------------------------------------------


def test_a_lane_that_was_changed_since_is_not_put_in_place(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = kept(lane, "x:1", "x:2")
    known = gb10_history.read_generations(folder)
    (folder / "000001" / "unit").write_text("")
    monkeypatch.setattr(gb10_generations, "read_generations", lambda _: known)  # it was whole a moment ago
    done = lane.back()
    assert (done["state"], "lane 1 is not whole" in done["reason"]) == ("nothing", True)
    assert lane.in_place == "x:2"


def test_a_full_disk_changes_nothing(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(lane, "x:1", "x:2")
    chmod = os.chmod

    def full(path: Path, mode: int) -> None:
        if path.name == ".models.ini.gb10-new":
            raise OSError(errno.ENOSPC, "No space left on device")
        chmod(path, mode)

    monkeypatch.setattr(os, "chmod", full)
    done = lane.back()
    assert (done["state"], "No space left on device" in done["reason"]) == ("nothing", True)
    assert lane.in_place == "x:2"
    assert lane.done == []
    assert not list(lane.folder.rglob("*.gb10-new"))


# -- a run that did not come to its end --------------------------------------------------------------------


class Killed(BaseException):
    """The end of the program, wherever it is."""


def kill_at(lane: Lane, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """One `back` that is killed where it runs this command."""

    def run(*command: str) -> str:
        if where in command:
            raise Killed
        return ""

    with monkeypatch.context() as patched:
        patched.setattr(gb10_generations, "run", run)
        with pytest.raises(Killed):
            lane.back()


@pytest.mark.parametrize("arguments", [{}, {"to": "x:1"}, {"unverified": True}])
def test_a_killed_run_is_brought_to_its_end_by_the_next(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    kept(lane, "x:1", "x:2")
    lane.running = "2abc"
    kill_at(lane, monkeypatch, "daemon-reload")
    assert lane.listed()["going_to"] == 1
    if "unverified" in arguments:
        lane.install("x:3")  # a deploy in between, which fails

    def run(*command: str) -> str:
        lane.done.append(" ".join(command))
        lane.running = ""
        return ""

    monkeypatch.setattr(gb10_generations, "run", run)
    done = lane.back(**arguments)
    assert (done["state"], done["image"]) == ("back", "x:1")
    # The files were in place already: only a restart ends the lane that one is fleeing from.
    assert "systemctl restart l.service" in lane.done
    assert (lane.listed()["current"], lane.listed()["going_to"]) == (1, 0)
    assert lane.back()["state"] == "nothing"


def test_killed_between_the_files(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(lane, "x:1", "x:2")
    replace = os.replace

    def cut(source: Path, place: Path) -> None:
        if place.name == "models.ini":
            raise Killed
        replace(source, place)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", cut)
        with pytest.raises(Killed):
            lane.back()
    assert lane.in_place != "x:2"
    assert lane.back()["image"] == "x:1"
    assert lane.in_place == "x:1"


def test_one_that_did_not_answer_is_tried_again(lane: Lane) -> None:
    kept(lane, "x:1", "x:2")
    lane.answer = {"state": "down", "reason": "no accelerator"}
    assert lane.back()["state"] == "stuck"
    lane.answer = ANSWERED
    done = lane.back()
    assert (done["state"], done["image"]) == ("back", "x:1")


def test_another_one_may_be_named_instead(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(lane, "x:1", "x:2", "x:3")
    kill_at(lane, monkeypatch, "daemon-reload")
    assert lane.back(to="x:1")["image"] == "x:1"
    assert lane.listed()["going_to"] == 0


def test_a_deploy_that_answers_ends_it_too(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(lane, "x:1", "x:2")
    kill_at(lane, monkeypatch, "daemon-reload")
    lane.install("x:2")
    lane.keep()
    assert lane.listed()["going_to"] == 0
    assert lane.listed()["current"] == 2


@pytest.mark.parametrize(("first_to", "second_to"), [("", ""), ("", "x:2"), ("x:2", "2")])
def test_a_second_run_joins_the_first(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, first_to: str, second_to: str
) -> None:
    folder = kept(lane, "x:1", "x:2", "x:3")
    begun, go_on = threading.Event(), threading.Event()

    def verify(_: Any) -> dict[str, Any]:
        begun.set()
        assert go_on.wait(30)
        return ANSWERED

    monkeypatch.setattr(gb10_router, "verify", verify)
    said: list[dict[str, Any]] = []
    first = threading.Thread(target=lambda: said.append(lane.back(first_to)))
    first.start()
    assert begun.wait(30)
    second = threading.Thread(target=lambda: said.append(lane.back(second_to)))
    second.start()
    second.join(0.3)
    assert second.is_alive()
    go_on.set()
    first.join(30)
    second.join(30)
    assert [one["image"] for one in said] == ["x:2", "x:2"]
    assert served(folder) == ["x:1", "x:2"]
    # What was said then is not said of a wait for something else.
    lane.install("x:4")
    lane.keep()
    assert not (folder / gb10_generations.OUTCOME).exists()


# -- what answers is what was put in place -----------------------------------------------------------------


def test_another_container_that_answers_is_not_believed(lane: Lane) -> None:
    kept(lane, "x:1", "x:2")
    lane.running = "2abc"
    done = lane.back()
    assert (done["state"], done["to"]) == ("stuck", 1)
    assert done["reason"] == "what answers is another container than that of lane 1"
    assert lane.listed()["current"] == 2


def test_files_that_somebody_changes_meanwhile(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(lane, "x:1", "x:2")

    def verify(_: Any) -> dict[str, Any]:
        (lane.folder / "models.ini").write_text("other")
        return ANSWERED

    monkeypatch.setattr(gb10_router, "verify", verify)
    assert "somebody has changed the files" in lane.back()["reason"]


def test_a_name_that_means_another_image_is_refused_unless_that_is_proven(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(lane, "x:1", "x:2")
    monkeypatch.setattr(gb10_generations, "image_id", lambda _: "sha256:other")
    proof = lane.folder / "image" / "1" / "proof.json"
    proof.parent.mkdir(parents=True)
    for content in ("[]", "{", json.dumps({"id": "id of x:1"})):
        proof.write_text(content)
        assert "x:1 names another image than the one that answered" in lane.back()["reason"]
    assert lane.in_place == "x:2"
    proof.write_text(json.dumps({"id": "sha256:other"}))
    assert lane.back()["image"] == "x:1"


# -- what served before ------------------------------------------------------------------------------------


def test_previous_is_what_served_before(lane: Lane) -> None:
    folder = kept(lane, "x:1", "x:2", "x:3")
    assert lane.back()["image"] == "x:2"  # 3 was bad
    lane.images.add("x:4")
    kept(lane, "x:4")
    assert served(folder) == ["x:1", "x:2", "x:4"]
    assert lane.back()["image"] == "x:2"
    assert lane.back(to="x:1")["image"] == "x:1"
    assert lane.back(to="x:4")["image"] == "x:4"
    assert served(folder) == ["x:1", "x:4"]
    assert lane.back()["image"] == "x:1"


def test_the_previous_one_is_kept_however_old_it_is(lane: Lane) -> None:
    lane.images |= {f"x:{number}" for number in range(20)}
    folder = kept(lane, *(f"x:{number}" for number in range(gb10_history.GENERATIONS_KEPT)))
    lane.back(to="x:0")
    kept(lane, "x:11")
    assert served(folder) == ["x:0", "x:11"]
    for number in (12, 13):
        lane.back(to="x:0")
        kept(lane, f"x:{number}")
    assert lane.back()["image"] == "x:0"


# -- the log -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", [b"\xff\x00garbage\n", b"{broken}\n", b"[1]\n", b'{"time": 1}\n', b"{" * 9999]
)
def test_lines_that_cannot_be_read_are_passed_over(lane: Lane, line: bytes) -> None:
    folder = kept(lane, "x:1", "x:2")
    with (folder / "changes.jsonl").open("ab") as file:
        file.write(line)
    assert [change["number"] for change in lane.listed()["changes"]] == [1, 2]
    assert lane.back()["state"] == "back"
    kept(lane, "x:3")
    assert [change["what"] for change in lane.listed()["changes"]] == ["kept", "kept", "back", "kept"]


def test_a_log_that_cannot_be_written_fails_nothing(lane: Lane) -> None:
    folder = kept(lane, "x:1")
    (folder / "changes.jsonl").unlink()
    (folder / "changes.jsonl").mkdir()
    kept(lane, "x:2")
    assert lane.back()["state"] == "back"
