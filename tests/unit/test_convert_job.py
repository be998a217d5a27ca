"""A conversion as data: the container is locked up, the places are where they should be, jobs are its own."""

from __future__ import annotations

import pytest

from gb10.convert_job import Making
from gb10.convert_progress import ApplianceProgress, ConvertProgress
from gb10.convert_source import Source
from gb10.converting import room_fault
from gb10.desired import HARDENING
from gb10.lock import LockedFile
from gb10.safetensors import SourceTensor
from tests.unit.boxes import box

COMMIT, SHA = "a" * 40, "b" * 64
FILES = (
    LockedFile("nv/a", COMMIT, "model.safetensors", 1000, SHA),
    LockedFile("nv/a", COMMIT, "x.json", 5, SHA),
)
TENSORS = (
    SourceTensor("model.a.weight", "U8", (64, 32), 2048),
    SourceTensor("model.a.weight_scale", "F8_E4M3", (64, 4), 256),
    SourceTensor("lm_head.weight", "BF16", (64, 64), 8192),
)
SOURCE = Source("nv/a", COMMIT, FILES, TENSORS, "{}")
MAKING = Making(box(), "a-NVFP4", "a-NVFP4.gguf", SOURCE, "q8_0")


def test_the_container_is_locked_up() -> None:
    line = " ".join(MAKING.docker_command)
    for option in (
        *HARDENING, "--network none", "--rm", "--pull never", "--user 10103:10103", "--oom-score-adj 1000",
        f"--volume {MAKING.source_folder}:/source:ro", f"--volume {MAKING.work_folder}:/work",
    ):  # fmt: skip
        assert option in line
    assert line.count("--volume") == 2
    assert "--mount" not in line
    assert "--privileged" not in line
    arguments = "--outfile /work/a-NVFP4.gguf.part --outtype q8_0 --model-name a-NVFP4 /source"
    assert line.endswith(f"{MAKING.box.appliance_image} {arguments}")


def test_the_converter_is_asked_without_a_network_too() -> None:
    line = " ".join(MAKING.question_command)
    assert all(option in line for option in (*HARDENING, "--network none", "--pull never"))
    assert "--volume" not in line


def test_the_places() -> None:
    assert MAKING.source_folder == "/srv/models/.source/nv/a/aaaaaaaaaaaa"
    assert MAKING.part == "/srv/models/.convert/a-NVFP4/a-NVFP4.gguf.part"
    assert MAKING.result == "/srv/models/own/a-NVFP4/a-NVFP4.gguf"
    units = {job.unit for job in (MAKING.build_job, MAKING.fetch_job, MAKING.make_job)}
    assert len(units) == 3
    assert {job.again for job in (MAKING.build_job, MAKING.fetch_job, MAKING.make_job)} == {
        "run the command again"
    }


def test_the_source_leaves_room_for_the_result() -> None:
    manifest = MAKING.manifest
    assert manifest["reserve_bytes"] == 20 * 1024**3 + MAKING.expected.file_bytes
    assert [entry["path"] for entry in manifest["files"]] == [
        f"{MAKING.source_folder}/model.safetensors", f"{MAKING.source_folder}/x.json",
    ]  # fmt: skip
    assert {entry["revision"] for entry in manifest["files"]} == {COMMIT}


def test_the_recipe_changes_with_all_that_the_result_follows_from() -> None:
    others = [
        Making(box(llama_commit="c" * 40), "a-NVFP4", "a-NVFP4.gguf", SOURCE, "q8_0"),
        Making(box(), "b", "a-NVFP4.gguf", SOURCE, "q8_0"),
        Making(box(), "a-NVFP4", "a-NVFP4.gguf", SOURCE, "f16"),
        Making(box(), "a-NVFP4", "a-NVFP4.gguf", Source("nv/a", "d" * 40, FILES, TENSORS, "x"), "q8_0"),
    ]
    assert len({making.spec["recipe"] for making in (MAKING, *others)}) == 5


def test_the_entry_to_paste() -> None:
    source = f"source: {{repo: nv/a, revision: {COMMIT}, outtype: q8_0}}"
    assert MAKING.entry == f"  a-NVFP4:\n    {source}\n"
    other = Making(box(), "a-NVFP4", "x.gguf", SOURCE, "q8_0")
    assert other.entry == f"  a-NVFP4:\n    {source}\n    file: x.gguf\n"


@pytest.mark.parametrize(
    ("found", "full"),
    [
        ({}, True),
        ({"running": True}, False),
        ({"free_bytes": 1 << 50}, False),
        # What is there already need not fit a second time.
        ({"free_bytes": 20 * 1024**3 + 10, "missing_bytes": 0, "part": {"size": 5}}, False),
        ({"free_bytes": 20 * 1024**3 + 10, "missing_bytes": 0}, True),
    ],
)
def test_the_room_that_it_takes(found: dict[str, object], full: bool) -> None:
    there = {"image": True, "docker_free_bytes": 0}
    nothing = {"running": False, "free_bytes": 10, "missing_bytes": 1005, "part": None}
    fault = room_fault(MAKING, there | nothing | found)
    assert bool(fault) == full
    assert not full or "for the source" in fault


def test_the_room_that_the_appliance_takes() -> None:
    found = {
        "running": False,
        "free_bytes": 1 << 50,
        "missing_bytes": 5,
        "part": None,
        "docker_free_bytes": 10,
    }
    assert room_fault(MAKING, found | {"image": True}) == ""
    assert "8 GiB are needed to build the appliance" in room_fault(MAKING, found | {"image": False})


def test_progress_and_failure_in_words() -> None:
    reader = ConvertProgress()
    assert reader.progress(["INFO: a line of the converter"]) == "starting the converter"
    reading = '{"event": "progress", "phase": "reading", "done": 3, "size": 12}'
    assert reader.progress([reading]) == "reading tensors 3/12, 25 %"
    assert (
        reader.progress(['{"event": "progress", "phase": "writing", "done": 55, "size": 100}'])
        == "writing, 55 %"
    )
    assert reader.progress(["[1]", "{"]) == "writing, 55 %"
    assert reader.failure([reading, '{"event": "error", "message": "no"}']) == ["no"]
    assert reader.failure(["sh: python3: not found", ""]) == ["sh: python3: not found"]
    assert reader.failure([]) == ["it did not come to its end"]


def test_a_build_that_fails_says_why_in_one_line() -> None:
    reader = ApplianceProgress()
    assert reader.progress(["#7 [python 3/3] RUN python3 -m venv"]).startswith("step python 3/3")
    reader.progress(
        ["#7 9.1 ERROR: No matching distribution found for torch==9.9.9", "#7 ERROR: process did not"]
    )
    assert reader.failure(["ERROR: failed to solve: process " + "x" * 999]) == [
        "ERROR: No matching distribution found for torch==9.9.9"
    ]
    assert ApplianceProgress().failure(["ERROR: failed to solve: no such image"]) == [
        "ERROR: failed to solve: no such image"
    ]
    assert ApplianceProgress().failure([]) == ["no output"]
