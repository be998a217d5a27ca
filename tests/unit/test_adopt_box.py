"""Taking over a router from a box: what the probe finds there, and what is made of its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gb10.adopt import Base, adopt
from gb10.adopt_report import Note
from gb10.commands.adopt import from_box
from gb10.facts.old_router import OldRouter
from gb10.facts.probe import PROBES
from gb10.faults import BadInput
from tests.unit.boxes import FactHost
from tests.unit.catalogues import OPTIONS
from tests.unit.test_adopt_unit import inspected

UNIT = (
    "[Service]\nExecStart=/usr/bin/docker run --name llama -v /data/cfg:/cfg -p 10103:8080 i"
    " --models-preset /cfg/p.ini\n"
)
INI = "[a]\nmodel = /srv/models/o/n/a.gguf\nc = 512\n"


def box_that_says(
    unit: str = "", text: str = "", inspect: Any = None, files: dict[str, str] | None = None
) -> Any:
    def answer(question: dict[str, Any], **_: Any) -> dict[str, Any]:
        if "read" in question:
            return {"content": (files or {}).get(question["read"])}
        return {"unit": unit, "text": text, "inspect": inspect}

    return FactHost({OldRouter: answer})


def read(host: Any, unit: str | None = None, models_ini: str | None = None) -> Any:
    notes: list[Note] = []
    return from_box(host, Base({"lane_port": 10103}), unit, models_ini, OPTIONS, notes)


def test_the_unit_names_the_preset_file() -> None:
    host = box_that_says("llama.service", UNIT, files={"/data/cfg/p.ini": INI})
    source = read(host)
    assert host.asked[0][1]["question"] == {"port": 10103, "unit": ""}
    assert (source.ini, source.ini_path, source.old.launch.name) == (INI, "/data/cfg/p.ini", "llama")


def test_a_container_that_no_unit_starts() -> None:
    container = inspected() | {
        "Name": "/llama-box",
        "Args": ["/llama-server", "--models-preset", "/b/models.ini"],
    }
    told = {"container": container, "image_environment": ["PATH=/bin"]}
    source = read(box_that_says(inspect=told, files={"/a/models.ini": INI}))
    adoption = adopt(source.ini, source.ini_file, source.old, Base(), OPTIONS, ini_path=source.ini_path)
    assert adoption.values["lane_name"] == "llama-box"
    assert adoption.values["accelerator_cdi"] == "nvidia.com/gpu=all"
    whats = [note.what for note in adoption.notes]
    assert "--restart always" in whats
    assert "--privileged" in whats


def test_a_unit_that_starts_a_container_made_before() -> None:
    container = inspected() | {"Name": "/llama-box", "Args": ["/llama-server", "--models-preset", "/b/m.ini"]}
    told = {"container": container, "image_environment": []}
    text = "[Service]\nRestart=always\nExecStart=/usr/bin/docker start -a llama-box\n"
    source = read(box_that_says("router.service", text, told, {"/a/m.ini": INI}))
    assert source.old.launch.name == "router"
    other = text.replace("llama-box", "proxy-for-10103")
    assert read(box_that_says("proxy.service", other, told, {"/a/m.ini": INI})).old.launch.name == ""


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (box_that_says(), "no unit and no container serves on port 10103"),
        (
            box_that_says("l.service", "[Service]\nExecStart=/usr/bin/nginx\n"),
            "no ExecStart that runs llama-server",
        ),
        (box_that_says("l.service", UNIT.partition(" --models-preset")[0] + "\n"), "no preset file"),
        (box_that_says("l.service", UNIT), "/data/cfg/p.ini: cannot be read"),
    ],
)
def test_what_cannot_be_read_says_so(host: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read(host)


def probe(folder: Path, question: dict[str, Any], **programs: str) -> dict[str, Any]:
    """The probe's answer on a host whose programs are these shell texts."""
    for name in ("systemctl", "docker", "ss"):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{programs.get(name, 'exit 1')}\n")
        path.chmod(0o755)
    command = [sys.executable, str(PROBES / "old_router.py"), json.dumps(question)]
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_probe_asks_docker_who_has_the_port(tmp_path: Path) -> None:
    docker = (
        'case "$1 $2" in\n'
        '"ps --all") [ "$4" = publish=10103 ] && echo llama-box;;\n'
        '"container inspect") echo \'[{"Name": "/llama-box", "Image": "sha256:1"}]\';;\n'
        '"image inspect") echo \'["PATH=/bin"]\';;\nesac'
    )
    answer = probe(tmp_path, {"port": 10103, "unit": ""}, docker=docker)
    assert answer["unit"] == ""
    assert answer["inspect"] == {
        "container": {"Name": "/llama-box", "Image": "sha256:1"},
        "image_environment": ["PATH=/bin"],
    }


def test_the_probe_reads_a_named_unit_and_a_file(tmp_path: Path) -> None:
    answer = probe(
        tmp_path, {"port": 1, "unit": "x.service"}, systemctl='[ "$3" = x.service ] && echo "[Service]"'
    )
    assert answer == {"unit": "x.service", "text": "[Service]", "inspect": None}
    (tmp_path / "f").write_bytes("a\r\n\u00e4".encode())
    assert probe(tmp_path, {"read": str(tmp_path / "f")}) == {"content": "a\r\n\u00e4"}
    assert probe(tmp_path, {"read": str(tmp_path / "none")}) == {"content": None}


def test_the_probe_finds_nothing_on_a_bare_host(tmp_path: Path) -> None:
    assert probe(tmp_path, {"port": 1, "unit": ""}) == {"unit": "", "text": "", "inspect": None}
