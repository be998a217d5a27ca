"""Facts: the command that is sent, and what is made of recorded output."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase
from pyinfra.connectors.util import make_unix_command

from gb10.facts.answer import Answer, LaneAnswer, read_answer
from gb10.facts.docker import ImageState
from gb10.facts.files import PathReport, PathState
from gb10.facts.host_report import Host, HostReport
from gb10.facts.models import ModelFiles
from gb10.facts.probe import BoxReport, LaneState, OldLanes, ToolkitState, probe_answer, probe_command
from tests.unit.boxes import box

# The kernel takes no single argument that is longer.
LONGEST_ARGUMENT_BYTES = 128 * 1024


def run(fact: FactBase[Any], **arguments: Any) -> list[str]:
    """Run a fact's command as pyinfra would, here; its output lines."""
    command = make_unix_command(fact.command(**arguments)).get_raw_value()
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


# -- a path -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "state"),
    [
        (["absent"], None),
        (["644|0:0|regular file", "ab12  -"], PathState("regular file", "0644", "0:0", "ab12")),
        (["0|10103:10103|regular empty file", "e3b0  -"],
         PathState("regular empty file", "0000", "10103:10103", "e3b0")),
        (["1777|0:0|directory"], PathState("directory", "1777", "0:0", "")),
    ],
)  # fmt: skip
def test_path_report(output: list[str], state: PathState | None) -> None:
    assert PathReport().process(output) == state


@pytest.mark.parametrize("name", ["plain", "with space", "it's", "$HOME", "`id`", 'a"b'])
def test_path_report_of_real_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    fact = PathReport()
    assert fact.process(run(fact, path=str(path))) is None
    path.write_text("hello\n")
    path.chmod(0o640)
    state = fact.process(run(fact, path=str(path)))
    assert state is not None
    assert (state.mode, state.sha256[:8]) == ("0640", "5891b5b5")
    link = tmp_path / "link"
    link.symlink_to(path)
    found = fact.process(run(fact, path=str(link)))
    assert found is not None
    assert (found.kind, found.sha256) == ("symbolic link", "")
    # A link to a folder is as good as the folder.
    (tmp_path / "way").symlink_to(tmp_path)
    found = fact.process(run(fact, path=str(tmp_path / "way")))
    assert found is not None
    assert found.kind == "directory"
    folder = fact.process(run(fact, path=str(tmp_path)))
    assert folder is not None
    assert (folder.kind, folder.sha256) == ("directory", "")


# -- docker -------------------------------------------------------------------------------------------


def image_state(folder: Path, docker: str) -> str:
    """What the fact says when `docker` is this shell script."""
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\n{docker}\n")
    program.chmod(0o755)
    fact = ImageState()
    command = str(fact.command(image="gb10/llama-server:b1-abc", folder=str(folder), expectation="e1"))
    done = subprocess.run(
        ["sh", "-c", command],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return fact.process(done.stdout.splitlines())


def test_an_image_and_its_proof(tmp_path: Path) -> None:
    proof = tmp_path / "proof.json"
    there = f"echo sha256:{'a' * 64}"
    assert image_state(tmp_path, "exit 1") == "absent"
    assert image_state(tmp_path, there) == "unproven"
    proof.write_text(json.dumps({"id": f"sha256:{'a' * 64}", "expectation": "e0"}, indent=1))
    assert image_state(tmp_path, there) == "unproven", "something else is expected of it now"
    proof.write_text(json.dumps({"id": f"sha256:{'a' * 64}", "expectation": "e1", "build": {}}, indent=1))
    assert image_state(tmp_path, there) == "proven"
    assert image_state(tmp_path, "exit 1") == "absent"
    proof.write_text(json.dumps({"id": f"sha256:{'b' * 64}", "expectation": "e1"}, indent=1))
    assert image_state(tmp_path, there) == "unproven", "it is of another image"
    proof.write_text("")
    assert image_state(tmp_path, there) == "unproven"
    assert ImageState.default() == "absent"


# -- host ---------------------------------------------------------------------------------------------

HOST = """\
architecture=aarch64
os=ubuntu 24.04
python=3.12
capability=12.1
sudo=yes
user=me
systemd=yes
""".splitlines()


def test_host_report() -> None:
    expected = Host("aarch64", "ubuntu 24.04", "3.12", "12.1", sudo=True, user="me", systemd=True)
    assert HostReport().process(HOST) == expected


def test_a_login_shell_that_prints_something() -> None:
    report = HostReport().process(["", "Welcome, sudo=maybe", *HOST])
    assert report == replace(HostReport().process(HOST), noise="Welcome, sudo=maybe")


@pytest.mark.parametrize(
    ("nvidia_smi", "capability"),
    [
        ("echo 12.1", "12.1"),
        ("echo 'No devices were found'; exit 6", "No devices were found"),
        ("exit 124", "nothing in 30 s"),
        ("exit 1", ""),
    ],
)
def test_what_nvidia_smi_may_do(
    nvidia_smi: str, capability: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{nvidia_smi}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert HostReport().process(run(HostReport())).capability == capability


def test_a_bare_host() -> None:
    bare = [
        "architecture=x86_64", "os= ", "python=", "capability=sh: 1: nvidia-smi: not found", "sudo=no",
        "user=me", "systemd=no",
    ]  # fmt: skip
    assert HostReport().process(bare) == Host(
        "x86_64", "", "", "sh: 1: nvidia-smi: not found", sudo=False, user="me", systemd=False
    )


def test_host_report_of_this_machine() -> None:
    fact = HostReport()
    report = fact.process(run(fact))
    assert (
        report.architecture
        == subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    )
    assert report.python.startswith("3.")
    assert report.user


# -- probes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", [BoxReport, OldLanes, ToolkitState, LaneState])
def test_a_probe_travels_with_its_question(fact: type[Any]) -> None:
    question = {"unit": 'it\'s "quoted" $HOME `id` \\ ü'}
    words = shlex.split(str(fact().command(question=question)))
    assert words[:3] == ["python3", "-I", "-c"]
    compile(words[3], fact.program, "exec")
    assert json.loads(words[4]) == question
    assert fact.default() == {}


def test_a_question_asked_twice_is_the_same_command() -> None:
    # Else pyinfra would ask it twice.
    first = probe_command("box_report.py", {"a": 1, "b": 2})
    assert str(first) == str(probe_command("box_report.py", {"b": 2, "a": 1}))


def test_probe_answer_is_the_last_line() -> None:
    assert probe_answer(["a warning", '{"a": 1}']) == {"a": 1}


@pytest.mark.parametrize("output", [[], [""], ["Traceback (most recent call last):"], ['{"a": ']])
def test_an_answer_that_is_no_json_is_one_line(output: list[str]) -> None:
    with pytest.raises(FactProcessError, match="answered with something else than JSON") as caught:
        probe_answer(output)
    assert "\n" not in str(caught.value)


# -- model files --------------------------------------------------------------------------------------


def check_model_files(manifest: Any) -> dict[str, Any]:
    fact = ModelFiles()
    program = box().program_files["gb10_fetch.py"].content
    return fact.process(run(fact, program=program, manifest=manifest))


def test_model_files_are_asked_by_the_downloader_itself(tmp_path: Path) -> None:
    manifest = box(models_dir=f"{tmp_path}/models", models_search=[]).fetch_manifest
    answer = check_model_files(manifest)
    assert answer["ok"] is (not manifest["files"])
    assert [entry["path"] for entry in answer["files"]] == [file["path"] for file in manifest["files"]]
    # Looking makes nothing.
    assert not (tmp_path / "models").exists()


def test_no_answer_about_model_files_is_no_traceback() -> None:
    assert ModelFiles().default()["ok"] is False


def test_the_longest_commands_fit_into_one_argument() -> None:
    program = box().program_files["gb10_fetch.py"].content
    one = {"repo": "r" * 60, "revision": "a" * 40, "file": "f" * 80, "size": 10**11, "sha256": "b" * 64,
           "path": "/srv/models/" + "p" * 150}  # fmt: skip
    manifest = {**box().fetch_manifest, "files": [one] * 60}
    fact = ModelFiles()
    command = make_unix_command(fact.command(program=program, manifest=manifest), _sudo=True).get_raw_value()
    assert len(command.encode()) < LONGEST_ARGUMENT_BYTES


# -- the lane's answer --------------------------------------------------------------------------------

ANSWERED = {
    "state": "answered",
    "reason": "",
    "model": "gemma-4-E4B",
    "tokens_per_second": 62.2,
    "device": "CUDA0",
    "holder": "process 7 has /dev/nvidia-uvm mapped",
}


def test_answers_in_words() -> None:
    answered = read_answer([json.dumps(ANSWERED)])
    assert str(answered) == (
        "gemma-4-E4B answered with 62.2 tok/s on CUDA0 (process 7 has /dev/nvidia-uvm mapped)"
    )
    down = read_answer(['{"state": "down", "reason": "no answer"}'])
    assert str(down) == "down: no answer"


@pytest.mark.parametrize("line", ['{"state": "down", "why": "x"}', "[]", "3", '{"reason": "x"}', "null"])
def test_another_shape_is_down_and_no_traceback(line: str) -> None:
    assert read_answer([line]).state == "down"


def test_no_program_and_no_lane_is_no_question(tmp_path: Path) -> None:
    fact = LaneAnswer()
    assert run(fact, program=str(tmp_path / "none"), lane=str(tmp_path / "lane.json")) == []
    assert fact.default() == Answer("down", "there is no lane yet")


def test_the_lane_is_asked_by_probe_only(tmp_path: Path) -> None:
    program, lane = tmp_path / "router.py", tmp_path / "lane.json"
    program.write_text(
        'import json, sys; print(json.dumps({"state": "idle", "reason": " ".join(sys.argv[2:])}))'
    )
    lane.write_text("{}")
    fact = LaneAnswer()
    assert fact.process(run(fact, program=str(program), lane=str(lane))) == Answer("idle", "probe")


@pytest.mark.parametrize(
    "content", ["", "half a progr(", "import nothing_there", "print('no JSON')", "print()"]
)
def test_a_damaged_program_is_a_lane_that_is_down_and_no_failing_fact(content: str, tmp_path: Path) -> None:
    # The deploy puts the program right, if its own look at the lane does not end it before.
    program, lane = tmp_path / "router.py", tmp_path / "lane.json"
    program.write_text(content)
    lane.write_text("")
    fact = LaneAnswer()
    output = run(fact, program=str(program), lane=str(lane))
    # pyinfra takes the default where a command has printed nothing.
    assert (fact.process(output) if output else fact.default()).state == "down"


def test_a_module_in_the_home_folder_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('not that one')\n")
    monkeypatch.chdir(tmp_path)
    assert "holders" in BoxReport().process(run(BoxReport(), question={"ports": []}))
    manifest = {"models_dir": str(tmp_path), "hub": "http://127.0.0.1", "files": []}
    program = box().program_files["gb10_fetch.py"].content
    assert ModelFiles().process(run(ModelFiles(), program=program, manifest=manifest))["ok"]
