"""The program that converts on the box, with a script in the place of docker: safe whatever is left there."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.nvfp4 import safetensors

PROGRAM = Path(__file__).parents[2] / "files" / "gb10_convert.py"
WEIGHTS = safetensors({"a": ("F32", (4,), bytes(16))})
MADE = b"GGUF and so on"
GOOD = 'echo "INFO: a.weight, torch.float32 --> F32, shape"; printf "GGUF and so on" > "$1"'


class Box:
    """A models folder with a source in it; `docker` is a script on PATH."""

    def __init__(self, folder: Path) -> None:
        self.models, self.bin = folder / "models", folder / "bin"
        self.work, self.result = self.models / ".convert/a", self.models / "own/a/a.gguf"
        self.source, self.state = self.models / ".source/nv/a/abc", folder / "state"
        for place in (self.source, self.bin):
            place.mkdir(parents=True)
        (self.source / "model.safetensors").write_bytes(WEIGHTS)
        (self.source / "config.json").write_text("{}")
        self.more: dict[str, Any] = {}
        self.docker(GOOD)

    def docker(self, convert: str, other: str = "exit 0") -> None:
        """`convert` is the script of `docker run`, with the part as $1; `other` that of all other verbs."""
        path = self.bin / "docker"
        path.write_text(
            f'#!/bin/sh\necho "$@" >> {self.bin}/calls\n[ "$1" = run ] || {{ {other}; }}\nshift\n{convert}\n'
        )
        path.chmod(0o755)

    @property
    def calls(self) -> list[str]:
        """The verbs that docker was called with."""
        path = self.bin / "calls"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def spec(self) -> dict[str, Any]:
        files = {"model.safetensors": len(WEIGHTS), "config.json": 2}
        return {
            "source": str(self.source), "files": files, "work": str(self.work), "part": "a.gguf.part",
            "state": str(self.state),
            "result": str(self.result), "models_dir": str(self.models), "user": os.getuid(), "image": "x:1",
            "command": ["docker", "run", str(self.work / "a.gguf.part")], "container": "gb10-convert-a",
            "unit": "gb10-convert-a.service", "recipe": "r1", "tensors": 1, "expected_bytes": 1,
            "reserve_bytes": 0, "memory_bytes": 0, **self.more,
        }  # fmt: skip

    def run(self, verb: str) -> tuple[int, str, str]:
        spec = self.models / "spec.json"
        spec.write_text(json.dumps(self.spec))
        done = subprocess.run(
            [sys.executable, str(PROGRAM), verb, str(spec)], capture_output=True, text=True, check=False,
            env={"PATH": f"{self.bin}:/usr/bin:/bin"},
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def events(self, status: int = 0) -> list[dict[str, Any]]:
        """What `make` says in JSON."""
        rc, out, err = self.run("make")
        assert (rc, err) == (status, ""), out + err
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def error(self) -> str:
        """The one line of a `make` that fails; nothing half-made is left."""
        events = [event for event in self.events(1) if event["event"] == "error"]
        assert len(events) == 1
        assert not list(self.work.glob("*.part"))
        assert not self.result.exists()
        message: str = events[0]["message"]
        assert "\n" not in message
        return message


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_made_once_and_named(box: Box) -> None:
    made = box.events()[-1]
    assert made == {
        "event": "result", "ok": True, "size": len(MADE), "sha256": hashlib.sha256(MADE).hexdigest(),
    }  # fmt: skip
    assert not box.result.exists()
    assert box.events() == [made]
    assert box.calls.count("run") == 1
    rc, out, _ = box.run("look")
    assert (rc, json.loads(out)["part"]) == (0, {"size": len(MADE), "sha256": made["sha256"]})
    assert box.run("accept")[0] == 0
    assert box.result.read_bytes() == MADE
    assert stat.S_IMODE(box.result.stat().st_mode) == 0o644
    assert not box.work.exists()
    assert (box.source / "model.safetensors").exists()
    # The downloader, which proves it at each deploy, need not read it again.
    known = json.loads((box.models / ".gb10-verified.json").read_text())[str(box.result)]
    assert (known["sha256"], known["inode"]) == (made["sha256"], box.result.stat().st_ino)


def test_what_the_downloader_knows_stays(box: Box) -> None:
    (box.models / ".gb10-verified.json").write_text('{"/else": {"sha256": "x"}}')
    box.events()
    box.run("accept")
    assert set(json.loads((box.models / ".gb10-verified.json").read_text())) == {"/else", str(box.result)}


def test_another_recipe_is_made_anew(box: Box) -> None:
    box.events()
    box.more["recipe"] = "r2"
    assert json.loads(box.run("look")[1])["part"] is None
    box.events()
    assert box.calls.count("run") == 2


def test_what_a_dead_run_left_is_removed_first(box: Box) -> None:
    box.work.mkdir(parents=True)
    (box.work / "a.gguf.part").write_text("half")
    box.state.mkdir()
    (box.state / "done.json").write_text("{")
    (box.work / "other").mkdir()
    (box.work / "other" / "x").symlink_to("/")
    assert json.loads(box.run("look")[1])["part"] is None
    assert box.events()[-1]["size"] == len(MADE)
    # A container that outlived it goes before the new one comes.
    calls = box.calls
    assert calls.index("rm") < calls.index("run")


def test_a_part_that_was_changed_gets_no_name(box: Box) -> None:
    box.events()
    (box.work / "a.gguf.part").write_text("GGUF and so off")
    rc, _, err = box.run("accept")
    assert rc == 1
    assert err.endswith("is not what was made: run again\n")


def test_nothing_is_overwritten(box: Box) -> None:
    box.events()
    box.result.parent.mkdir(parents=True)
    box.result.write_text("somebody's")
    assert "has come up meanwhile" in box.run("accept")[2]
    box.more["recipe"] = "r2"
    (event,) = box.events(1)
    assert "is there already: nothing here overwrites it" in event["message"]
    assert box.result.read_text() == "somebody's"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (WEIGHTS[:-3], "bytes, not"),
        (b"\xff" * len(WEIGHTS), "no safetensors file, or cut off inside its header"),
        (WEIGHTS[:8] + b"{" * (len(WEIGHTS) - 8), "its safetensors header cannot be read"),
    ],
)
def test_a_source_that_is_not_whole_never_meets_the_converter(box: Box, content: bytes, words: str) -> None:
    (box.source / "model.safetensors").write_bytes(content)
    assert words in box.error()
    assert "run" not in box.calls


def test_a_header_that_promises_more_than_the_file_has(box: Box) -> None:
    cut = WEIGHTS[:-3]
    (box.source / "model.safetensors").write_bytes(cut)
    box.more["files"] = {"model.safetensors": len(cut)}
    assert f"cut off: its header says {len(WEIGHTS)} bytes, it has {len(cut)}" in box.error()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("expected_bytes", "are to come and"),
        ("reserve_bytes", "must stay free"),
        ("memory_bytes", "unload models"),
    ],
)
def test_no_room(box: Box, key: str, words: str) -> None:
    box.more[key] = 1 << 60
    assert words in box.error()
    assert "run" not in box.calls


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo ERROR:hf-to-gguf:Model NobodyForCausalLM is not supported; exit 1",
            "the converter says: Model NobodyForCausalLM is not supported: take another model",
        ),
        (
            'printf half > "$1"; echo "Traceback (most recent call last):"; '
            'echo "OSError: [Errno 28] No space left on device"; exit 1',
            "is full: make room and run again; the source is kept",
        ),
        (
            'printf half > "$1"; echo Traceback; echo "ValueError: no such thing"; exit 1',
            "the converter failed (exit status 1): ValueError: no such thing",
        ),
        ("kill -9 $$", "the converter failed (exit status -9): no output"),
        ("exit 137", "the converter was killed: the box had no memory left"),
        ('echo "docker: no such image"; exit 125', "(exit status 125): docker: no such image"),
        ("exit 0", "ended well and left no file"),
    ],
)
def test_a_converter_that_fails(box: Box, script: str, words: str) -> None:
    box.docker(script)
    assert words in box.error()


@pytest.mark.parametrize(
    "script",
    ['ln -s {victim} "$1"', 'ln {victim} "$1"', 'mkfifo "$1"', 'mkdir "$1"'],
)
def test_what_is_no_plain_file_is_left_alone(box: Box, script: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    box.docker(script.format(victim=victim))
    assert "the converter left " in box.error()
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("precious", 0o600)
    # Whatever lies there, the next run begins anew.
    box.docker(GOOD)
    assert box.events()[-1]["size"] == len(MADE)


def test_links_for_what_is_noted_are_not_followed(box: Box, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    box.docker(
        f'{GOOD}; for name in done.json done.json.new; do ln -s {victim} "$(dirname "$1")/$name"; done'
    )
    box.events()
    assert box.run("accept")[0] == 0
    assert victim.read_text() == "precious"
    assert not box.work.exists()


def test_a_part_that_became_a_link_gets_no_name(box: Box, tmp_path: Path) -> None:
    box.events()
    part = box.work / "a.gguf.part"
    part.rename(tmp_path / "victim")
    part.symlink_to(tmp_path / "victim")
    assert box.run("accept")[0] == 1
    assert not box.result.exists()


def test_progress_of_tensors_and_of_writing(box: Box) -> None:
    box.docker(
        'echo "INFO:hf-to-gguf:Repacked a with shape [1] and quantization NVFP4"; sleep 1.2; '
        r"printf 'Writing:  10%%|#  |\rWriting:  55%%|## |\r\n'; "
        'printf "GGUF" > "$1"'
    )
    progress = [event for event in box.events() if event["event"] == "progress"]
    assert {"event": "progress", "phase": "reading", "done": 1, "size": 1} in progress
    assert any((event["phase"], event["size"]) == ("writing", 100) for event in progress)


def test_paths_outside_of_the_models_folder_are_refused(box: Box, tmp_path: Path) -> None:
    box.more["work"] = str(tmp_path / "elsewhere")
    rc, out, _ = box.run("make")
    assert rc == 1
    assert "is not in" in out
