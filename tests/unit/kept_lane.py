"""A lane on a box that is a folder, for the tests of the program that keeps lanes and goes back to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gb10_generations
import gb10_router
import pytest
from gb10_history import Generation

ANSWERED = {"state": "answered", "model": "m", "tokens_per_second": 9.0, "device": "CUDA0", "holder": "x"}


class Lane:
    """The files of a lane in a folder, and what became of the running one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: list[str] = []
        self.answer: dict[str, Any] = ANSWERED
        self.images = {"x:1", "x:2", "x:3"}
        self.active = "active"
        self.running = ""  # the container's label; empty: that of the unit in place
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
        (self.folder / "l.service").write_text(self.unit(image))

    @staticmethod
    def unit(image: str) -> str:
        return f"ExecStart=docker run \\\n  --label gb10.lane={image[2:]}abc \\\n  {image}\n"

    @property
    def in_place(self) -> str:
        """The image in each of the three files, or what else there is."""
        unit, presets = (self.folder / "l.service").read_text(), (self.folder / "models.ini").read_text()
        image = str(self.lane["image"])
        return image if unit == self.unit(image) and presets == "[*]\n" else f"{unit}{presets}{image}"

    def label(self, description: dict[str, Any]) -> str:
        unit = (self.folder / "l.service").read_bytes()
        return self.running or gb10_generations.label_of(unit)

    def keep(self) -> Generation:
        return gb10_generations.keep(self.lane, str(self.path))

    def listed(self) -> dict[str, Any]:
        return gb10_generations.listed(self.lane, str(self.path))

    def back(self, to: str = "", unverified: bool = False) -> dict[str, Any]:
        return gb10_generations.back(self.lane, str(self.path), to, unverified, "a test")


def lane_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lane:
    """The lane, with the program's eyes and hands on it."""
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
    monkeypatch.setattr(gb10_generations, "running_label", lane.label)
    monkeypatch.setattr(
        gb10_generations.subprocess, "run", lambda command, **_: lane.done.append(" ".join(command))
    )
    monkeypatch.setattr(gb10_router, "verify", lambda description: lane.answer)
    monkeypatch.setattr(gb10_router, "unit_state", lambda description: lane.active)
    monkeypatch.setattr(gb10_router, "reload", lambda description: lane.done.append("reload"))
    return lane
