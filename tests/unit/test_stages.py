"""The stages around the lane: nothing on a settled box, and otherwise exactly what is needed."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyinfra.context import ctx_host, ctx_state

from gb10.boxdata import OldLane
from gb10.facts.answer import Answer, LaneAnswer
from gb10.facts.docker import ImageState
from gb10.facts.host_report import Host, HostReport
from gb10.facts.models import ModelFiles
from gb10.facts.probe import BoxReport, OldLanes
from gb10.faults import BadInput
from gb10.operations import placed
from gb10.stages import image, lanes, models, preflight, verify
from tests.unit.boxes import FactHost, box, commands, verbs

BOX = box()

# -- old lanes -----------------------------------------------------------------------------

LANE = OldLane(unit="vllm-lane-b.service", container="vllm-lane-b", port=10102)
ETC = "/etc/systemd/system/vllm-lane-b.service"
GONE = {"loaded": "not-found", "active": "inactive", "enabled": "", "files": [], "container": ""}
RUNNING = {
    "loaded": "loaded",
    "active": "active",
    "enabled": "enabled",
    "files": [ETC],
    "container": "running",
}


def retired(**state: Any) -> list[str]:
    facts = {OldLanes: {LANE.unit: GONE | state}}
    return verbs(commands(lanes.retired, facts, lane=LANE, aside="/var/lib/gb10/retired"))


def test_no_old_lane() -> None:
    assert retired() == []


def test_a_running_old_lane() -> None:
    assert retired(**RUNNING) == [
        "systemctl stop vllm-lane-b.service",
        "docker rm --force vllm-lane-b",
        "systemctl disable vllm-lane-b.service",
        f"/var/lib/gb10/retired {ETC}",
        "systemctl daemon-reload",
        "systemctl reset-failed vllm-lane-b.service 2>/dev/null || true",
    ]


def test_an_old_lane_that_starts_again_and_again_is_stopped_first() -> None:
    # Restart=on-failure: between two tries it is neither active nor inactive.
    assert retired(**RUNNING | {"active": "activating"})[0] == "systemctl stop vllm-lane-b.service"
    assert "systemctl stop" not in " ".join(retired(**RUNNING | {"active": "failed"}))


def test_a_retirement_that_was_cut_is_finished() -> None:
    # Stopped, container gone, unit file gone, systemd not told yet.
    assert retired(loaded="loaded", active="inactive", enabled="disabled") == []
    assert retired(container="exited") == ["docker rm --force vllm-lane-b"]
    # The file is there, and systemd has not read it: the next boot would start it.
    assert f"/var/lib/gb10/retired {ETC}" in retired(files=[ETC])
    assert retired(active="failed") == ["systemctl reset-failed vllm-lane-b.service 2>/dev/null || true"]


def test_a_packages_unit_is_stopped_and_disabled_only() -> None:
    assert retired(loaded="loaded", active="active", enabled="enabled") == [
        "systemctl stop vllm-lane-b.service",
        "systemctl disable vllm-lane-b.service",
    ]
    assert retired(loaded="loaded", active="inactive", enabled="disabled") == []


def test_a_masked_lane_is_out_already() -> None:
    assert retired(loaded="masked", enabled="masked") == []


def test_a_masked_lane_that_runs_is_stopped() -> None:
    assert retired(loaded="masked", enabled="masked", active="active") == [f"systemctl stop {LANE.unit}"]


def test_unit_files_are_kept_aside(tmp_path: Path) -> None:
    files = [tmp_path / "etc" / "a b.service", tmp_path / "etc" / "a.service.d" / "x.conf"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(file.name)
    aside = tmp_path / "aside"
    subprocess.run(["sh", "-c", placed.SET_ASIDE, "-", str(aside), *map(str, files)], check=True)
    for file in files:
        assert not file.exists()
        assert (aside / str(file).lstrip("/")).read_text() == file.name


# -- image and models ----------------------------------------------------------------------


def test_an_image_that_is_there_is_not_built() -> None:
    assert commands(image.built, {ImageState: "proven"}, box=BOX) == []


@pytest.mark.parametrize(("state", "title"), [("absent", "build of "), ("unproven", "proof of ")])
def test_an_image_that_is_not_proven_is_work(state: str, title: str) -> None:
    with ctx_host.use(FactHost({ImageState: state})):
        (command,) = image.built._inner(box=BOX)
    assert command.args[0].title == f"{title}{BOX.image}"


def test_one_job_a_tag() -> None:
    job = image.image_job(BOX, "build")
    assert job.command == ("python3", "/usr/local/lib/gb10/gb10_image.py", BOX.image_file.path, "build")
    assert job.unit == image.image_job(BOX, "prove").unit
    assert job.unit != image.image_job(box(llama_ref="b1"), "build").unit
    assert BOX.dockerfile_file.path == f"{BOX.image_folder}/context/Dockerfile"


def test_model_files() -> None:
    assert commands(models.fetched, {ModelFiles: {"ok": True}}, box=BOX) == []
    assert commands(models.fetched, {ModelFiles: {"ok": False}}, box=BOX) == ["call follow"]
    job = models.fetch_job(BOX)
    assert job.command == ("python3", "/usr/local/lib/gb10/gb10_fetch.py", "/var/lib/gb10/models.json")


# -- preflight -----------------------------------------------------------------------------

GOOD_HOST = Host("aarch64", "ubuntu 24.04", "3.12", "12.1", sudo=True, user="me", systemd=True)


ROOMY = ModelFiles.default()


def checked(facts: dict[type, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[FactHost, list[str]]:
    monkeypatch.setattr(preflight, "description_faults", lambda box: [])
    monkeypatch.setattr(preflight, "found_on", lambda host, box: SimpleNamespace(models=()), raising=False)
    host = FactHost(facts)
    with ctx_host.use(host):
        try:
            preflight.check(BOX)
        except BadInput as error:
            return host, [str(fault) for fault in error.faults]
    return host, []


def report(**changes: Any) -> dict[str, Any]:
    return {"docker": "28.5.1", "buildx": True, "docker_root": "/", "free_bytes": 10**12, "holders": {},
            "daemon": None} | changes  # fmt: skip


def test_preflight_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {HostReport: GOOD_HOST, BoxReport: report(), ImageState: "absent", ModelFiles: ROOMY}
    assert checked(facts, monkeypatch)[1] == []


def test_preflight_asks_no_probe_without_root_or_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for poor in (replace(GOOD_HOST, sudo=False), replace(GOOD_HOST, python="")):
        host, faults = checked({HostReport: poor}, monkeypatch)
        assert len(faults) == 1
        assert [fact for fact, _ in host.asked] == [HostReport]


def test_preflight_asks_a_docker_that_does_not_answer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {HostReport: GOOD_HOST, BoxReport: report(docker=None), ModelFiles: ROOMY}
    host, faults = checked(facts, monkeypatch)
    assert len(faults) == 1
    assert ImageState not in [fact for fact, _ in host.asked]


def test_preflight_says_both_kinds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {
        HostReport: replace(GOOD_HOST, capability="9.0"),
        BoxReport: report(buildx=False),
        ImageState: "absent",
        ModelFiles: ROOMY | {"shortage": "the disk of /srv has 1.00 GB free, but 90.00 GB are to come"},
    }
    faults = checked(facts, monkeypatch)[1]
    assert len(faults) == 3
    # The build may take an hour, and the old lanes are out by then: models that do not fit are told now.
    assert "90.00 GB are to come" in faults[2]


# -- verify --------------------------------------------------------------------------------


def answered(answer: Answer, *, executing: bool = False) -> tuple[list[str], FactHost]:
    host = FactHost({LaneAnswer: answer})
    with ctx_host.use(host), ctx_state.use(SimpleNamespace(is_executing=executing)):
        return [type(command).__name__ for command in verify.answered._inner(box=BOX)], host


GOOD_ANSWER = Answer("answered", "", "m", 55.4, "CUDA0", "process 7 has /dev/nvidia-uvm mapped")


def test_a_lane_that_answers_is_left_alone() -> None:
    assert answered(GOOD_ANSWER)[0] == []
    assert answered(GOOD_ANSWER, executing=True)[1].said == [str(GOOD_ANSWER)]


@pytest.mark.parametrize("state", ["idle", "wrong", "down"])
def test_any_other_lane_is_asked_again_for_real(state: str) -> None:
    assert answered(Answer(state, "because"))[0] == ["FunctionCommand"]


class Verified(FactHost):
    """A host on which the router program prints ``output``, or the connection breaks."""

    def __init__(self, output: list[str] | Exception) -> None:
        super().__init__({})
        self.output = output

    def run_shell_command(self, command: Any, **_: Any) -> tuple[bool, Any]:
        assert shlex.split(str(command))[-1] == "verify"
        if isinstance(self.output, Exception):
            raise self.output
        return True, SimpleNamespace(stdout_lines=self.output, stderr="no python3")


def verified(output: list[str] | Exception) -> tuple[bool, str]:
    host = Verified(output)
    good = verify._verify(host, "/p.py", "/lane.json")  # type: ignore[arg-type]
    (said,) = host.said
    assert "\n" not in said
    return good, said


def test_verify_says_what_it_saw() -> None:
    good, said = verified([json.dumps(vars(GOOD_ANSWER))])
    assert good
    assert said == "m answered with 55.4 tok/s on CUDA0 (process 7 has /dev/nvidia-uvm mapped)"


@pytest.mark.parametrize(
    ("output", "word"),
    [
        ([json.dumps({"state": "wrong", "reason": "m answers, but not on CUDA0"})], "wrong: m answers"),
        ([json.dumps({"state": "down", "reason": "failed to load"})], "down: failed to load"),
        ([], "verify failed: no python3"),
        (OSError("reset"), "verify failed: connection lost (reset)"),
    ],
)
def test_verify_that_is_not_answered_fails(output: list[str] | Exception, word: str) -> None:
    good, said = verified(output)
    assert not good
    assert word in said
