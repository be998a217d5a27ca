"""Lanes that answered are kept, and one of them is what a rollback puts in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gb10_generations
import gb10_router
import pytest
from gb10_generations import Generation, GenerationError, choose

from gb10.generations import desired_digest, is_kept, needed_images, superfluous
from tests.unit.boxes import box

ANSWERED = {"state": "answered", "model": "m", "tokens_per_second": 9.0, "device": "CUDA0", "holder": "x"}


class Lane:
    """The files of a lane in a folder, and what became of the running one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: list[str] = []
        self.answer: dict[str, Any] = ANSWERED
        self.images = {"x:1", "x:2", "x:3"}
        self.active = "active"
        self.path = folder / "lane.json"

    @property
    def lane(self) -> dict[str, Any]:
        return json.loads(self.path.read_text())  # type: ignore[no-any-return]

    def install(self, image: str, presets: str = "[*]\n") -> None:
        content = {
            "lane": "l",
            "image": image,
            "presets": str(self.folder / "models.ini"),
            "generations": str(self.folder / "generations"),
        }
        self.path.write_text(json.dumps(content))
        (self.folder / "models.ini").write_text(presets)
        (self.folder / "l.service").write_text(f"ExecStart=docker run {image}\n")

    def keep(self) -> Generation:
        return gb10_generations.keep(self.lane, str(self.path))

    def back(self, to: str = "", unverified: bool = False) -> dict[str, Any]:
        return gb10_generations.back(self.lane, str(self.path), to, unverified, "a test")


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lane:
    lane = Lane(tmp_path)

    def files(description: dict[str, Any], lane_path: str) -> dict[str, Path]:
        return {
            "unit": tmp_path / "l.service",
            "models.ini": tmp_path / "models.ini",
            "lane.json": Path(lane_path),
        }

    def run(*command: str) -> str:
        lane.done.append(" ".join(command))
        return ""

    monkeypatch.setattr(gb10_generations, "lane_files", files)
    monkeypatch.setattr(gb10_generations, "run", run)
    monkeypatch.setattr(
        gb10_generations, "image_id", lambda image: f"id of {image}" if image in lane.images else ""
    )
    monkeypatch.setattr(
        gb10_generations.subprocess, "run", lambda command, **_: lane.done.append(" ".join(command))
    )
    monkeypatch.setattr(gb10_router, "verify", lambda description: lane.answer)
    monkeypatch.setattr(gb10_router, "unit_state", lambda description: lane.active)
    monkeypatch.setattr(gb10_router, "reload", lambda description: lane.done.append("reload"))
    return lane


def test_what_answered_is_kept_once(lane: Lane) -> None:
    lane.install("x:1")
    assert lane.keep() == lane.keep()
    lane.install("x:2")
    assert lane.keep().number == 2
    listed = gb10_generations.listed(lane.lane, str(lane.path))
    assert (listed["current"], [one["image"] for one in listed["generations"]]) == (2, ["x:1", "x:2"])
    assert [change["what"] for change in listed["changes"]] == ["kept", "kept"]


def test_a_change_that_has_not_answered_goes_back_to_the_last_that_did(lane: Lane) -> None:
    lane.install("x:1")
    lane.keep()
    lane.install("x:2")
    done = lane.back(unverified=True)
    assert (done["state"], done["to"], done["image"]) == ("back", 1, "x:1")
    assert lane.lane["image"] == "x:1"
    assert (lane.folder / "l.service").read_text() == "ExecStart=docker run x:1\n"
    assert lane.done == [
        "systemctl daemon-reload",
        "systemctl reset-failed l.service",
        "systemctl restart l.service",
    ]
    assert lane.back(unverified=True)["state"] == "nothing"


def test_presets_alone_need_no_restart(lane: Lane) -> None:
    lane.install("x:1")
    lane.keep()
    lane.install("x:1", "[*]\nbad = 1\n")
    assert lane.back()["state"] == "back"
    assert lane.done == ["systemctl daemon-reload", "reload"]
    assert (lane.folder / "models.ini").read_text() == "[*]\n"


def test_presets_of_a_router_that_is_down_need_one(lane: Lane) -> None:
    lane.install("x:1")
    lane.keep()
    lane.install("x:1", "[*]\nbad = 1\n")
    lane.active = "failed"
    assert lane.back()["state"] == "back"
    assert lane.done[-1] == "systemctl restart l.service"


def test_back_and_back_again(lane: Lane) -> None:
    for image in ("x:1", "x:2", "x:3"):
        lane.install(image)
        lane.keep()
    assert lane.back()["image"] == "x:2"
    assert lane.back()["image"] == "x:1"
    done = lane.back()
    assert (done["state"], done["reason"]) == (
        "nothing",
        "there is no earlier lane: this is the first that answered",
    )
    assert lane.back("3")["image"] == "x:3"
    assert lane.back("x:1")["image"] == "x:1"


def test_one_that_does_not_answer_either_says_so_and_is_not_the_current_one(lane: Lane) -> None:
    lane.install("x:1")
    lane.keep()
    lane.install("x:2")
    lane.keep()
    lane.answer = {"state": "down", "reason": "no accelerator"}
    done = lane.back()
    assert (done["state"], done["reason"]) == ("stuck", "no accelerator")
    assert gb10_generations.listed(lane.lane, str(lane.path))["current"] == 2


def test_an_image_that_has_gone_is_said_before_anything_is_changed(lane: Lane) -> None:
    lane.install("x:1")
    lane.keep()
    lane.install("x:2")
    lane.images = {"x:2"}
    assert "image x:1 is not on this host any more" in lane.back()["reason"]
    assert lane.lane["image"] == "x:2"
    assert lane.done == []


def test_a_folder_that_a_power_cut_left_is_passed_over(lane: Lane) -> None:
    lane.install("x:1")
    lane.keep()
    folder = lane.folder / "generations"
    (folder / "000002").mkdir()
    (folder / "000003").mkdir()
    (folder / "000003" / "about.json").write_text("{")
    lane.install("x:2")
    assert lane.keep().number == 2


def test_only_so_many_are_kept(lane: Lane) -> None:
    for number in range(gb10_generations.GENERATIONS_KEPT + 3):
        lane.install("x:1", f"; {number}\n")
        lane.keep()
    kept = gb10_generations.read_generations(lane.folder / "generations")
    assert len(kept) == gb10_generations.GENERATIONS_KEPT
    assert kept[-1].number == gb10_generations.GENERATIONS_KEPT + 3


def test_nothing_has_answered_yet(lane: Lane) -> None:
    lane.install("x:1")
    assert "no lane has answered yet" in lane.back()["reason"]
    with pytest.raises(GenerationError, match="there are none"):
        choose([], None, "d", "x:9", False)


def test_a_damaged_description_is_one_line(lane: Lane, capsys: pytest.CaptureFixture[str]) -> None:
    for content in ("", "{", "[]", "{}"):
        lane.path.write_text(content)
        assert gb10_generations.main([str(lane.path), "keep"]) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1


# -- the laptop's side --------------------------------------------------------------------------------------


def known(*images: str, current: int) -> dict[str, Any]:
    listed = [{"number": i, "image": name, "digest": f"d{i}"} for i, name in enumerate(images, 1)]
    return {"current": current, "generations": listed}


def test_laptop_and_box_count_the_same_digest(tmp_path: Path) -> None:
    files = {"unit": box().unit_file, "models.ini": box().presets_file, "lane.json": box().lane_file}
    for name, placed in files.items():
        (tmp_path / name).write_text(placed.content)
    assert gb10_generations.digest_of({name: tmp_path / name for name in files}) == desired_digest(box())


def test_a_lane_is_kept_when_it_is_the_one_that_answered_last() -> None:
    digest = desired_digest(box())
    listed = [{"number": 4, "image": "x:1", "digest": digest}, {"number": 5, "image": "x:2", "digest": "d"}]
    assert is_kept(box(), {"current": 4, "generations": listed})
    assert not is_kept(box(), {"current": 5, "generations": listed})
    assert not is_kept(box(), {"current": 0, "generations": []})


def test_the_wanted_the_last_and_the_one_before_are_needed() -> None:
    assert needed_images(box(), known("x:1", "x:2", "x:2", current=3)) == {box().image, "x:2", "x:1"}
    assert needed_images(box(), known("x:1", "x:2", "x:3", current=3)) == {box().image, "x:3", "x:2"}
    assert needed_images(box(), known(current=0)) == {box().image}


def image(name: str, *used_by: str, image_id: str = "") -> dict[str, Any]:
    return {"image": name, "id": image_id or f"id {name}", "used_by": list(used_by)}


def test_images_beyond_the_newest_go() -> None:
    images = [image(f"x:{number}") for number in (9, 8, 7, 6, 5)]
    assert superfluous(images, 3, set()) == ["x:6", "x:5"]
    assert superfluous(images, 3, {"x:6"}) == ["x:5"]
    assert superfluous([*images[:3], image("x:6", "lane")], 3, set()) == []


def test_two_names_of_one_image_count_once() -> None:
    images = [image("x:9", image_id="i"), image("x:failed", image_id="i"), image("x:8"), image("x:7")]
    assert superfluous(images, 2, set()) == ["x:7"]
