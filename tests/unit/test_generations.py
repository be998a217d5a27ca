"""Lanes that answered are kept, and one of them is what a rollback puts in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gb10_generations
import gb10_history
import pytest
from gb10_generations import choose
from gb10_history import GenerationError

from gb10.facts.docker import Generations, Images
from gb10.generations import desired_digest, is_kept, needed_images, superfluous
from gb10.stages import history
from tests.unit.boxes import box, commands
from tests.unit.kept_lane import Lane, lane_in


@pytest.fixture
def lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lane:
    return lane_in(tmp_path, monkeypatch)


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
    assert (lane.folder / "l.service").read_text() == lane.unit("x:1")
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


def test_a_kept_lane_says_what_it_has_otherwise(lane: Lane) -> None:
    lane.install("x:1", "[*]\nparallel = 1\n\n[a]\nctx-size = 4096\nmodel = /m/a.gguf\n\n[b]\n")
    lane.keep()
    lane.install("x:1", "[*]\nparallel = 2\n\n[a]\nctx-size = 8192\nmodel = /m/a.gguf\ntop-k = 1\n\n[c]\n")
    lane.keep()
    lane.install("x:2", lane.folder.joinpath("models.ini").read_text())
    lane.keep()
    first, second, third = lane.listed()["generations"]
    otherwise = ["with b", "without c", "all models: parallel = 1", "a: ctx-size = 4096, no top-k"]
    assert first["differs"] == ["image", *otherwise]
    assert second["differs"] == ["image"]
    assert (third["differs"], third["restarts"]) == ([], False)
    assert lane.listed()["next"] == 2
    assert lane.back()["state"] == "back"
    first, second, third = lane.listed()["generations"]
    assert (first["differs"], first["restarts"]) == (otherwise, False)
    assert lane.listed()["next"] == 1


def test_lanes_with_one_image_are_told_apart_by_their_numbers(lane: Lane) -> None:
    for number in range(3):
        lane.install("x:v1", f"[*]\nparallel = {number}\n")
        lane.images.add("x:v1")
        lane.keep()
    assert lane.back("1")["to"] == 1
    assert "parallel = 0" in (lane.folder / "models.ini").read_text()
    assert lane.back("v1")["to"] == 3
    assert lane.back("3")["reason"] == "lane 3 is in place already"
    assert "no lane with image 9 is kept" in lane.back("9")["reason"]


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
    for number in range(gb10_history.GENERATIONS_KEPT + 3):
        lane.install("x:1", f"; {number}\n")
        lane.keep()
    kept = gb10_history.read_generations(lane.folder / "generations")
    assert len(kept) == gb10_history.GENERATIONS_KEPT
    assert kept[-1].number == gb10_history.GENERATIONS_KEPT + 3


def test_nothing_has_answered_yet(lane: Lane) -> None:
    lane.install("x:1")
    assert "no lane has answered yet" in lane.back()["reason"]
    with pytest.raises(GenerationError, match="there are none"):
        choose([], [], None, "d", "x:9", False)


def test_a_damaged_description_is_one_line(lane: Lane, capsys: pytest.CaptureFixture[str]) -> None:
    for content in ("", "{", "[]", "{}"):
        lane.path.write_text(content)
        assert gb10_generations.main([str(lane.path), "keep"]) == 1
        assert len(capsys.readouterr().err.splitlines()) == 1


# -- the laptop's side --------------------------------------------------------------------------------------


def known(*images: str, current: int) -> dict[str, Any]:
    listed = [{"number": i, "image": name, "digest": f"d{i}"} for i, name in enumerate(images, 1)]
    served = list(range(1, current + 1))
    return {"current": current, "served": served, "going_to": 0, "generations": listed}


def test_laptop_and_box_count_the_same_digest(tmp_path: Path) -> None:
    files = {"unit": box().unit_file, "models.ini": box().presets_file, "lane.json": box().lane_file}
    for name, placed in files.items():
        (tmp_path / name).write_text(placed.content)
    assert gb10_history.digest_of({name: tmp_path / name for name in files}) == desired_digest(box())


def test_a_lane_is_kept_when_it_is_the_one_that_answered_last() -> None:
    digest = desired_digest(box())
    listed = [{"number": 4, "image": "x:1", "digest": digest}, {"number": 5, "image": "x:2", "digest": "d"}]
    assert is_kept(box(), {"current": 4, "going_to": 0, "generations": listed})
    # A rollback that was cut off is at its end once this lane has answered: it must be told.
    assert not is_kept(box(), {"current": 4, "going_to": 3, "generations": listed})
    assert not is_kept(box(), {"current": 5, "going_to": 0, "generations": listed})
    assert not is_kept(box(), {"current": 0, "going_to": 0, "generations": []})


def test_the_wanted_the_last_and_the_one_before_are_needed() -> None:
    assert needed_images(box(), known("x:1", "x:2", "x:2", current=3)) == {box().image, "x:2", "x:1"}
    assert needed_images(box(), known("x:1", "x:2", "x:3", current=3)) == {box().image, "x:3", "x:2"}
    assert needed_images(box(), known(current=0)) == {box().image}


def test_what_served_before_is_needed_and_not_what_was_gone_back_from() -> None:
    after = known("x:1", "x:2", "x:bad", "x:4", current=4) | {"served": [1, 2, 4]}
    assert needed_images(box(), after) == {box().image, "x:4", "x:2"}
    assert needed_images(box(), after | {"going_to": 1}) == {box().image, "x:4", "x:1", "x:2"}


def test_nothing_is_removed_where_the_box_does_not_say_what_is_needed() -> None:
    images = [image(f"x:{number}") for number in (9, 8, 7, 6, 5)]
    there = {"current": 0, "served": [], "going_to": 0, "generations": []}
    assert commands(history.pruned, {Images: images, Generations: there}, box=box())
    assert commands(history.pruned, {Images: images, Generations: None}, box=box()) == []
    assert commands(history.pruned, {Images: None, Generations: there}, box=box()) == []
    assert commands(history.kept, {Generations: None}, box=box())[0].endswith(" keep")


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
