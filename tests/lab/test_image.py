"""The life of an image: proven, changed by one flag, gone back from, pruned, carried to another host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import deploying, lane, paths
from tests.lab.conftest import FirstDeploy
from tests.lab.host import LabHost

CATALOGUE = paths.REPOSITORY / "tests/lab/models.yaml"
NAME = "gb10/llama-server"
ONE_FLAG = {"GGML_RPC": "ON", "CMAKE_C_FLAGS_RELEASE": "-O1", "CMAKE_CXX_FLAGS_RELEASE": "-O1"}

# A server that passes every proof and does not serve: put in the place of the real one by a strip that lies.
_WRAPPER = r'#!/bin/sh\ncase "$*" in *--models-preset*) echo error: broken on purpose >&2; exit 7;; esac\n'
_WRAPPER += r'exec /usr/local/bin/llama-server.real "$@"\n'
_STRIP = r'#!/bin/sh\n/usr/bin/strip "$@" && mv /out/llama-server /out/llama-server.real'
_STRIP += r" && cp /wrapper /out/llama-server && chmod +x /out/llama-server\n"
SERVES_NOT = [
    f"printf '%b' '{_WRAPPER}' > /wrapper",
    f"printf '%b' '{_STRIP}' > /usr/local/bin/strip && chmod +x /usr/local/bin/strip",
]


@pytest.fixture(scope="module")
def built(first_deploy: FirstDeploy) -> LabHost:
    """The host that compiled llama.cpp, deployed as the project is now."""
    host = first_deploy.host.reset(to=first_deploy.compiled)
    _deploy(host)
    return host


@pytest.fixture
def host(built: LabHost) -> LabHost:
    """The same, with the lane of the plain data in place."""
    _deploy(built)
    lane.wait_answering(built)
    return built


def _deploy(host: LabHost, **data: object) -> str:
    done = deploying.deploy(host, data=data)
    assert done.returncode == 0, done.stdout
    return done.stdout


def _images(host: LabHost) -> dict[str, Any]:
    done = deploying.gb10(host, "image", "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _image_of(host: LabHost) -> str:
    """The image of the running container, as Docker names it."""
    line = f"docker inspect --format '{{{{.Config.Image}}}}' {lane.CONTAINER}"
    return host.ssh(line, sudo=True).stdout.strip()


def _tags(host: LabHost) -> set[str]:
    line = f"docker image ls --format '{{{{.Repository}}}}:{{{{.Tag}}}}' {NAME}"
    return set(host.ssh(line, sudo=True).stdout.split())


def _proof(host: LabHost, image: str) -> dict[str, Any]:
    (entry,) = [entry for entry in _images(host)["images"] if entry["image"] == image]
    proof: dict[str, Any] = entry["proof"]
    return proof


def test_the_image_proves_what_it_is(host: LabHost) -> None:
    box = deploying.description(host)
    proof = _proof(host, box.image)
    assert proof["build"]["commit"] == box.data.llama_commit
    assert proof["build"]["flags"] == box.cmake_flags
    assert proof["build"]["tools"]["C++ compiler"].startswith("GNU ")
    assert proof["build"]["proofs"] == {"RPC code": "ggml_backend_rpc_init"}
    assert all("sha256:" in base for base in proof["bases"].values())
    assert proof["devices"] == ["RPC0"]
    assert "REPACK = 1" in proof["system_info"]
    assert f"commit {box.data.llama_commit[:7]}" in proof["version"]
    # The image says the same without anything beside it.
    kept = host.ssh(f"docker run --rm --entrypoint cat {box.image} /usr/share/gb10/build.json", sudo=True)
    assert json.loads(kept.stdout) == proof["build"]
    labels = host.ssh(f"docker image inspect --format '{{{{json .Config.Labels}}}}' {box.image}", sudo=True)
    assert json.loads(json.loads(labels.stdout)["gb10.flags"]) == box.cmake_flags
    shown = deploying.gb10(host, "image")
    assert shown.returncode == 0, shown.stdout
    assert "its 253 options are those that presets are checked against" in shown.stdout
    assert "with the accelerator it lists RPC0, without it none" in shown.stdout


def test_a_second_build_is_none(host: LabHost) -> None:
    before = _images(host)
    assert deploying.changed(_deploy(host)) == []
    assert _images(host) == before


def test_a_change_of_one_flag_finds_nearly_all_in_ccache(host: LabHost) -> None:
    output = _deploy(host, image_accelerator_flags=ONE_FLAG | {"GGML_LLAMAFILE": "OFF"})
    assert "is proven: " in output
    assert "files from ccache" in output
    proof = _proof(host, _image_of(host))
    assert proof["build"]["flags"]["GGML_LLAMAFILE"] == "OFF"
    compiled = proof["build"]["compile"]
    assert compiled["ccache_hits"] > 9 * compiled["ccache_misses"], compiled


def test_a_tag_that_was_moved_by_hand_is_not_believed(host: LabHost) -> None:
    box = deploying.description(host)
    line = f"docker tag {box.image} {NAME}:aside && docker tag standin/cuda-runtime:trixie {box.image}"
    host.ssh(line, sudo=True)
    assert deploying.changed(_deploy(host)) == ["image: the tag is the deploy's"]
    assert _proof(host, box.image)["build"]["commit"] == box.data.llama_commit
    assert deploying.changed(_deploy(host)) == []
    host.ssh(f"docker rmi {NAME}:aside", sudo=True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"image_accelerator_flags": ONE_FLAG | {"CMAKE_CXX_FLAGS": "-include /missing.h"}}, "missing.h"),
        (
            {"image_build_proofs": [{"name": "FP4 code", "command": "echo sm_121", "expect": "sm_121a"}]},
            "proof FP4 code: sm_121a is not in what it says: sm_121",
        ),
        (
            {"image_system_info": ["BLACKWELL_NATIVE_FP4 = 1"]},
            "'BLACKWELL_NATIVE_FP4 = 1' is not in what it says",
        ),
        ({"image_runtime_prepare": ["rm /usr/lib/*/libgomp.so.1"]}, "libgomp.so.1"),
    ],
)
def test_what_cannot_be_proven_never_gets_the_tag(host: LabHost, data: dict[str, Any], words: str) -> None:
    container, tags = lane.container_id(host), _tags(host)
    done = deploying.deploy(host, data=data)
    assert done.returncode != 0
    assert words in done.stdout
    assert "Traceback" not in done.stdout
    assert _tags(host) - {f"{NAME}:failed"} == tags - {f"{NAME}:failed"}
    assert lane.container_id(host) == container
    assert lane.chat(host)[0] == 200


def test_a_flag_that_llama_cpp_swallows_is_refused_before_anything(host: LabHost) -> None:
    done = deploying.deploy(host, data={"image_accelerator_flags": ONE_FLAG | {"GGML_CUDA_NVFP4": "ON"}})
    assert done.returncode != 0
    assert "llama.cpp b11312 has no option GGML_CUDA_NVFP4" in done.stdout
    assert "Starting operation" not in done.stdout


def test_an_image_that_does_not_serve_is_gone_back_from(host: LabHost) -> None:
    good = _image_of(host)
    done = deploying.deploy(host, data={"image_build_prepare": SERVES_NOT})
    assert done.returncode != 0
    assert "gone back to lane " in done.stdout
    assert f"({good}): tiny-a answered" in done.stdout
    assert _image_of(host) == good
    assert lane.chat(host)[0] == 200
    # It is still there to look at, and the plain data need no change.
    assert len(_tags(host)) > 1
    assert "never answered" in deploying.gb10(host, "image").stdout
    listed = deploying.gb10(host, "rollback", "--list")
    assert "because verify failed: it answered" in listed.stdout
    assert deploying.changed(_deploy(host)) == []


def test_going_back_can_be_turned_off(host: LabHost) -> None:
    data = {"image_build_prepare": SERVES_NOT, "rollback_on_failure": False}
    done = deploying.deploy(host, data=data)
    assert done.returncode != 0
    assert "gone back" not in done.stdout
    assert lane.unit(host) == "failed"


def test_presets_under_which_no_model_loads_are_gone_back_from(host: LabHost, tmp_path: Path) -> None:
    catalogue = tmp_path / "models.yaml"
    # Only a model's own process finds out.
    text = CATALOGUE.read_text().replace(
        "options: {threads: 1}", "options: {threads: 1, lora: /missing.gguf}"
    )
    catalogue.write_text(text)
    presets = host.ssh(f"cat {lane.PRESETS}").stdout
    container = lane.container_id(host)
    done = deploying.deploy(host, data={"catalogue": str(catalogue)})
    assert done.returncode != 0
    assert "gone back to lane " in done.stdout
    assert host.ssh(f"cat {lane.PRESETS}").stdout == presets
    assert lane.container_id(host) == container, "a change of presets needs no restart"
    assert lane.chat(host)[0] == 200
    assert deploying.changed(_deploy(host)) == []


def test_a_lost_accelerator_is_no_reason_to_go_back(host: LabHost) -> None:
    host.ssh("systemctl stop standin-accelerator", sudo=True)
    try:
        done = deploying.deploy(host, data={"lane_pids_limit": 1003})
        assert done.returncode != 0
        assert "which does not answer either" in done.stdout
        assert lane.unit(host) == "failed"
    finally:
        host.ssh("systemctl start standin-accelerator", sudo=True)
    _deploy(host)


def test_rollback_brings_image_and_presets_back_in_one_step(host: LabHost, tmp_path: Path) -> None:
    first = _image_of(host)
    catalogue = tmp_path / "models.yaml"
    catalogue.write_text(CATALOGUE.read_text().replace("top-k: 40", "top-k: 41"))
    changes = {"catalogue": str(catalogue), "image_runtime_prepare": ["echo second"]}
    _deploy(host, **changes)
    second = _image_of(host)
    assert second != first
    assert "top-k = 41" in host.ssh(f"cat {lane.PRESETS}").stdout
    back = deploying.gb10(host, "rollback", "--yes")
    assert back.returncode == 0, back.stdout
    assert f"with {first}: tiny-a answered" in back.stdout
    assert _image_of(host) == first
    assert "top-k = 40" in host.ssh(f"cat {lane.PRESETS}").stdout
    assert lane.chat(host)[0] == 200
    record = host.ssh("cat /var/lib/gb10/generations/changes.jsonl", sudo=True).stdout.splitlines()
    entry = json.loads(record[-1])
    assert (entry["what"], entry["image"], entry["answered"]) == ("back", first, True)
    # Forward again by name, and by the data.
    forward = deploying.gb10(host, "rollback", "--yes", "--to", second.rpartition(":")[2])
    assert forward.returncode == 0, forward.stdout
    assert _image_of(host) == second
    assert deploying.changed(_deploy(host, **changes)) == []
    unknown = deploying.gb10(host, "rollback", "--yes", "--to", "b1-nowhere")
    assert unknown.returncode == 1
    assert "no lane with image b1-nowhere is kept" in unknown.stdout
    assert _image_of(host) == second


def test_a_rollback_that_was_cut_off_is_brought_to_its_end_by_the_next(host: LabHost) -> None:
    first = _image_of(host)
    _deploy(host, image_runtime_prepare=["echo cut"])
    # As a power cut: in the midst of the restart, with the files in place already.
    program = "/usr/local/lib/gb10/gb10_generations.py /etc/llamacpp-playground/lane.json back"
    going = "/var/lib/gb10/generations/going-to"
    host.ssh(
        f"python3 {program} >/dev/null 2>&1 & while [ ! -e {going} ]; do sleep 0.05; done; sleep 0.3; "
        "kill -9 $!",
        sudo=True,
    )
    assert "has not come to its end" in deploying.gb10(host, "rollback", "--list").stdout
    back = deploying.gb10(host, "rollback", "--yes")
    assert back.returncode == 0, back.stdout
    assert f"with {first}: tiny-a answered" in back.stdout
    assert _image_of(host) == first
    assert "has not come to its end" not in deploying.gb10(host, "rollback", "--list").stdout


def test_a_power_cut_right_after_a_deploy_leaves_the_lane_before_it(host: LabHost) -> None:
    first = _image_of(host)
    _deploy(host, image_runtime_prepare=["echo lost"])
    # What the disk had not got yet: all of the newest lane.
    newest = "$(ls -d /var/lib/gb10/generations/0* | tail -n 1)"
    host.ssh(f"for file in {newest}/*; do : > $file; done", sudo=True)
    assert "is not whole any more" in deploying.gb10(host, "rollback", "--list").stdout
    back = deploying.gb10(host, "rollback", "--yes")
    assert back.returncode == 0, back.stdout
    assert _image_of(host) == first


def test_another_build_of_the_same_proves_itself_and_stays(host: LabHost) -> None:
    image = deploying.description(host).image
    before = _proof(host, image)["id"]
    # As after an import: another id under the tag.
    host.ssh(f"printf 'FROM {image}\\nLABEL brought=1\\n' | docker build -q -t {image} -", sudo=True)
    shown = deploying.gb10(host, "image")
    assert shown.returncode == 1
    assert "the proof is of another image" in shown.stdout
    output = _deploy(host)
    assert f"proof of {image}: started" in output
    assert "build of" not in output
    brought = _proof(host, image)["id"]
    assert brought != before
    assert deploying.changed(_deploy(host)) == []
    assert lane.chat(host)[0] == 200
    host.ssh(f"docker tag {before} {image}", sudo=True)
    _deploy(host)
    assert _proof(host, image)["id"] == before


def test_old_images_go_and_never_the_running_or_the_previous_one(host: LabHost) -> None:
    first = _image_of(host)
    for number in range(3):
        _deploy(host, image_runtime_prepare=[f"echo {number}"], image_keep=2)
    running = _image_of(host)
    left = _tags(host)
    assert running in left
    assert len(left) == 2
    assert first not in left
    _deploy(host, image_runtime_prepare=["echo 1"], image_keep=2)
    assert running in _tags(host), "the previous one is what a rollback needs"
    back = deploying.gb10(host, "rollback", "--yes")
    assert back.returncode == 0, back.stdout
    assert _image_of(host) == running


# -- as a file ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second() -> Iterator[LabHost]:
    """Another bare host."""
    host = LabHost("bare").reset()
    yield host
    host.down()


def test_an_image_travels_as_a_file(host: LabHost, second: LabHost, tmp_path: Path) -> None:
    file = tmp_path / "llama-server.tar"
    done = deploying.gb10(host, "image", "export", str(file))
    assert done.returncode == 0, done.stdout
    again = deploying.gb10(host, "image", "export", str(file))
    assert again.returncode == 1
    assert "is there already" in again.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, f"{file.name}.sha256"]

    cut = tmp_path / "cut.tar"
    cut.write_bytes(file.read_bytes()[:-3_000_000])
    refused = deploying.gb10(second, "image", "import", str(cut))
    assert refused.returncode == 1
    assert "not a whole image file" in refused.stdout
    assert _tags(second) == set()

    brought = deploying.gb10(second, "image", "import", str(file))
    assert brought.returncode == 0, brought.stdout
    box = deploying.description(second)
    assert f"{second.name} has {box.image}" in brought.stdout
    output = _deploy(second)
    assert f"proof of {box.image}: started" in output
    assert "build of" not in output
    assert lane.chat(second)[0] == 200
    assert deploying.changed(_deploy(second)) == []
    assert _proof(second, box.image)["id"] == _proof(host, box.image)["id"]


def test_a_compressed_file_whose_sum_does_not_fit_is_refused(
    host: LabHost, second: LabHost, tmp_path: Path
) -> None:
    file = tmp_path / "llama-server.tar.gz"
    assert deploying.gb10(host, "image", "export", str(file)).returncode == 0
    sums = tmp_path / "llama-server.tar.gz.sha256"
    assert sums.read_text().endswith(f"  {file.name}\n")
    sums.write_text(f"{'0' * 64}  {file.name}\n")
    refused = deploying.gb10(second, "image", "import", str(file))
    assert refused.returncode == 1
    assert "its sha256 is" in refused.stdout
