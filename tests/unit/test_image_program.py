"""The on-box program that builds and proves the image, with a docker that is a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gb10_image
import pytest

from tests.unit.boxes import box

LOG = """\
0.00.005 I cmn  common_param: device_info:
0.00.006 I cmn  common_param: system_info: n_threads = 2 (n_threads_batch = 2) / 2 | CUDA : ARCHS = 1210 | \
BLACKWELL_NATIVE_FP4 = 1 | CPU : NEON = 1 | 
0.00.007 E srv  load_model: failed
"""  # noqa: W291
FLAGS = {"GGML_CUDA": "ON"}
BUILD = {
    "commit": "c" * 40,
    "flags": FLAGS,
    "bases": {"build": "a:1@sha256:1", "runtime": "local:1"},
    "compile": {"seconds": 7, "ccache_hits": 190, "ccache_misses": 4},
}
DOCKER = """#!/bin/sh
echo "docker $*" >> {folder}/asked
case "$*" in
  build*) [ -z "$BUILD_FAILS" ] || exit 1
    for word; do case "$word" in --iidfile=*) echo sha256:new > "${{word#--iidfile=}}";; esac; done ;;
  "image tag"*|"rm "*) ;;
  "image inspect --format"*) echo sha256:base ;;
  "image inspect sha256:gone") exit 1 ;;
  "image inspect"*) cat {folder}/inspected ;;
  *--entrypoint\\ cat*build.json) cat {folder}/build.json ;;
  *--entrypoint\\ cat*) echo "text of it" ;;
  *--list-devices) cat {folder}/devices ;;
  *--model*) cat {folder}/log >&2; exit 1 ;;
  *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


def write_inspected(folder: Path, built_as: str | None) -> None:
    """What Docker says of any image."""
    labels = None if built_as is None else {"gb10.image": built_as}
    shown = {"Id": "sha256:new", "Size": 12000000, "Config": {"User": "1:1", "Labels": labels}}
    (folder / "inspected").write_text(json.dumps([shown]))


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    docker = tmp_path / "docker"
    docker.write_text(DOCKER.format(folder=tmp_path))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "build.json").write_text(json.dumps(BUILD))
    (tmp_path / "devices").write_text("Available devices:\n  CUDA0: GPU (1 MiB, 1 MiB free)\n")
    (tmp_path / "log").write_text(LOG)
    write_inspected(tmp_path, "gb10/x:b1-abc")
    return {
        "name": "gb10/x",
        "image": "gb10/x:b1-abc",
        "folder": str(tmp_path / "image" / "b1-abc"),
        "history": str(tmp_path / "image" / "builds.json"),
        "commit": "c" * 40,
        "flags": FLAGS,
        "system_info": ["BLACKWELL_NATIVE_FP4 = 1"],
        "expectation": "e1",
        "lane": {
            "lane": "l",
            "image": "gb10/x:b1-abc",
            "cdi": "nvidia.com/gpu=all",
            "device": "CUDA0",
            "environment": {"LLAMA_ARG_DEVICE": "CUDA0"},
        },
    }


def run(spec: dict[str, Any], tmp_path: Path, *arguments: str) -> int:
    path = tmp_path / "image.json"
    path.write_text(json.dumps(spec))
    Path(spec["folder"]).mkdir(parents=True, exist_ok=True)
    return gb10_image.main([str(path), *arguments])


def asked(tmp_path: Path) -> str:
    return (tmp_path / "asked").read_text()


def test_the_program_reads_what_the_deploy_writes() -> None:
    written = json.loads(box().image_file.content)
    wanted = {"name", "image", "folder", "history", "commit", "flags", "system_info", "expectation", "lane"}
    assert wanted == set(written)
    assert set(written["lane"]) == {"lane", "image", "cdi", "device", "environment"}


def test_a_proven_build_gets_its_tag_last(
    spec: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(spec, tmp_path, "build") == 0
    assert asked(tmp_path).splitlines()[-1] == "docker image tag sha256:new gb10/x:b1-abc"
    proof = json.loads((Path(spec["folder"]) / "proof.json").read_text())
    assert proof["id"] == "sha256:new"
    assert proof["bases"] == {"build": "a:1@sha256:1", "runtime": "local:1 (local, sha256:base)"}
    assert proof["system_info"] == "CUDA : ARCHS = 1210 | BLACKWELL_NATIVE_FP4 = 1 | CPU : NEON = 1"
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("gb10: gb10/x:b1-abc is proven: 12 MB, CUDA0 listed, compiled in 7 s (190 of 194")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("devices", "Available devices:\n  (none)\n", "proof of the accelerator: no accelerator CUDA0"),
        ("log", LOG.replace("= 1 | CPU", "= 0 | CPU"), "'BLACKWELL_NATIVE_FP4 = 1' is not in what it says"),
        ("log", "", "in what it says: nothing"),
        ("build.json", "{", "says in no build.json what it was made of"),
        ("build.json", json.dumps(BUILD | {"commit": "d" * 40}), "proof of the commit: it was built with d"),
        ("build.json", json.dumps(BUILD | {"flags": {}}), "proof of the flags: it was built with {}"),
    ],
)
def test_what_is_not_proven_is_kept_as_failed(
    spec: dict[str, Any],
    tmp_path: Path,
    file: str,
    content: str,
    words: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / file).write_text(content)
    assert run(spec, tmp_path, "build") == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert words in last
    assert last.endswith("(the image is kept as gb10/x:failed)")
    assert "docker image tag sha256:new gb10/x:failed" in asked(tmp_path)
    assert "gb10/x:b1-abc\n" not in asked(tmp_path)
    assert not (Path(spec["folder"]) / "proof.json").exists()


def test_a_build_that_fails_is_one_line(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BUILD_FAILS", "1")
    assert run(spec, tmp_path, "build") == 1
    assert capfd.readouterr().err == "gb10: docker build failed\n"


def test_the_time_of_builds_is_kept_and_said(
    spec: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "build.json").write_text(json.dumps(BUILD | {"compile": BUILD["compile"] | {"seconds": 0}}))  # type: ignore[operator]
    assert run(spec, tmp_path, "build") == 0
    assert [entry["image"] for entry in gb10_image.read_history(spec)] == ["gb10/x:b1-abc"]
    capfd.readouterr()
    assert run(spec, tmp_path, "build") == 0
    assert capfd.readouterr().out.startswith("gb10: the last build took 0 s\n")


def test_a_build_out_of_the_cache_promises_nothing(spec: dict[str, Any], tmp_path: Path) -> None:
    assert run(spec, tmp_path, "build") == 0  # 7 s of compile that this build did not take
    assert gb10_image.read_history(spec) == []


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"seconds": "x"}]', "[{}]"])
def test_a_damaged_history_is_none(spec: dict[str, Any], content: str) -> None:
    path = Path(spec["history"])
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert gb10_image.read_history(spec) == []


def test_an_image_from_a_file_proves_itself(spec: dict[str, Any], tmp_path: Path) -> None:
    assert run(spec, tmp_path, "prove") == 0
    proof = json.loads((Path(spec["folder"]) / "proof.json").read_text())
    assert proof["id"] == "sha256:new"
    assert "built" not in proof


@pytest.mark.parametrize("built_as", [None, "gb10/x:b1-other"])
def test_an_image_that_was_given_the_name_of_ours_is_built_again(
    spec: dict[str, Any], tmp_path: Path, built_as: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    write_inspected(tmp_path, built_as)
    assert run(spec, tmp_path, "prove") == 1  # this Docker says so of the new build too
    assert "was built as" in capfd.readouterr().out
    assert "--label=gb10.image=gb10/x:b1-abc" in asked(tmp_path)


def test_one_of_ours_that_does_not_work_here_is_not_built_again(spec: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "devices").write_text("Available devices:\n  (none)\n")
    assert run(spec, tmp_path, "prove") == 1
    assert "docker build" not in asked(tmp_path)


def test_the_time_of_another_build_is_not_this_one_s(spec: dict[str, Any], tmp_path: Path) -> None:
    path = Path(spec["folder"]) / "proof.json"
    path.parent.mkdir(parents=True)
    for known, kept in (("sha256:old", False), ("sha256:new", True)):
        path.write_text(json.dumps({"id": known, "seconds": 9}))
        assert run(spec, tmp_path, "prove") == 0
        assert ("seconds" in json.loads(path.read_text())) is kept


def test_a_tag_that_was_moved_names_the_former_image_again(spec: dict[str, Any], tmp_path: Path) -> None:
    write_inspected(tmp_path, None)
    assert run(spec, tmp_path, "retag", "sha256:former") == 0
    assert asked(tmp_path).splitlines()[-1] == "docker image tag sha256:former gb10/x:b1-abc"


def test_what_was_imported_keeps_its_tag(spec: dict[str, Any], tmp_path: Path) -> None:
    assert run(spec, tmp_path, "retag", "sha256:former") == 0
    assert "image tag" not in asked(tmp_path)


def test_nothing_is_removed_for_a_former_image_that_has_gone(spec: dict[str, Any], tmp_path: Path) -> None:
    write_inspected(tmp_path, None)
    assert run(spec, tmp_path, "retag", "sha256:gone") == 0
    assert all(line.startswith("docker image inspect") for line in asked(tmp_path).splitlines())


def test_what_was_kept_of_a_build_goes_with_its_image(spec: dict[str, Any], tmp_path: Path) -> None:
    folder = Path(spec["folder"]).parent
    for tag in ("b0-old", "b1-abc"):
        (folder / tag).mkdir(parents=True)
        (folder / tag / "proof.json").touch()
    docker = tmp_path / "docker"
    docker.write_text(docker.read_text().replace('"rm "*)', '"rm "*|"image rm "*)'))
    assert run(spec, tmp_path, "prune", "gb10/x:b0-old", "gb10/x:b1-abc") == 0
    assert sorted(path.name for path in folder.iterdir()) == ["b1-abc"]


def test_only_images_of_ours_are_removed(
    spec: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(spec, tmp_path, "prune", "ubuntu:24.04") == 1
    assert "ubuntu:24.04 is not an image of gb10/x" in capfd.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_description_that_is_damaged_is_one_line(
    tmp_path: Path, content: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "image.json"
    path.write_text(content)
    assert gb10_image.main([str(path), "build"]) == 1
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_usage() -> None:
    for arguments in ([], ["x"], ["x", "y"], ["x", "retag"], ["x", "prune"], ["x", "build", "y"]):
        assert gb10_image.main(arguments) == 2
