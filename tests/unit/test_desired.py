"""The described box: each text follows from the data, and the texts agree with each other."""

from __future__ import annotations

import configparser
import json
import re
import stat

import pytest

from gb10.desired import PROGRAMS
from tests.unit.boxes import box, raw_data


def test_files_are_complete_and_each_is_named_once() -> None:
    files = list(box().files())
    paths = [placed.path for placed in files]
    assert len(paths) == len(set(paths))
    assert {f"/usr/local/lib/gb10/{name}" for name in PROGRAMS} <= set(paths)
    assert {"/etc/systemd/system/llamacpp-playground.service", "/etc/llamacpp-playground/models.ini",
            "/etc/llamacpp-playground/lane.json", "/var/lib/gb10/models.json"} <= set(paths)  # fmt: skip
    assert "/etc/llamacpp-playground/api-key" not in paths
    for placed in files:
        assert placed.content.endswith("\n"), placed.path
        # Dockerfiles ask Docker in its own template language; programs are copied as they are.
        left = re.sub(r"\{\{\.[A-Z]|\{\{index|\{\{\{", "", placed.content)
        assert "{{" not in left or placed.path.endswith(".py"), placed.path
        assert placed.owner == "0:0"
        assert int(placed.mode, 8) & (stat.S_IWGRP | stat.S_IWOTH) == 0


def test_twice_the_same() -> None:
    again = box(lane_port=10103)
    assert [placed.content for placed in again.files()] == [placed.content for placed in box().files()]


def test_programs_can_be_run() -> None:
    for name, placed in box().program_files.items():
        runs = placed.content.startswith("#!/usr/bin/env python3\n")
        assert runs == ('if __name__ == "__main__":' in placed.content), name
        assert placed.mode == ("0755" if runs else "0644"), name


def presets(**changes: object) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.read_string(box(**changes).presets_file.content)
    return parser


def test_every_preset_is_bound_to_the_accelerator() -> None:
    described = presets()
    models = [name for name in described.sections() if name != "*"]
    assert models
    for name in models:
        effective = {**described["*"], **described[name]}
        # Without these a model falls back to the CPU, or loses layers or context, without a word.
        assert effective["device"] == "CUDA0", name
        assert effective["fit"] == "off", name
        assert effective["n-gpu-layers"], name
        assert effective["ctx-size"], name
        assert effective["model"].startswith("/srv/models/"), name
        assert not {"no-mmap", "mmap", "mlock", "api-key", "host", "port"} & set(effective), name


def test_presets_follow_the_device_and_the_folder() -> None:
    described = presets(accelerator_device="RPC0", models_dir="/data/gguf")
    name = next(name for name in described.sections() if name != "*")
    assert {**described["*"], **described[name]}["device"] == "RPC0"
    assert described[name]["model"].startswith("/data/gguf/")


def test_the_lane_file_agrees_with_the_unit() -> None:
    described = box()
    lane = json.loads(described.lane_file.content)
    unit = described.unit_file.content
    assert lane["lane"] == "llamacpp-playground"
    assert f"--env LLAMA_ARG_DEVICE={lane['device']}" in unit
    assert f"--device {lane['cdi']}" in unit
    assert f"  {lane['image']} \\" in unit
    assert f"--port {lane['port']}" in unit
    assert lane["key_file"] in unit
    assert lane["presets"] in unit
    assert lane["signal"] == {"kind": "file", "path": "/dev/nvidia-uvm"}
    assert lane["default_model"] in described.presets_file.content


def test_the_gate_looks_with_the_lanes_own_environment() -> None:
    described = box(lane_environment={"LLAMA_ARG_RPC": "10.0.0.1:50052"})
    assert json.loads(described.lane_file.content)["environment"] == described.environment
    assert described.environment["LLAMA_ARG_RPC"] == "10.0.0.1:50052"
    assert described.environment["LLAMA_ARG_DEVICE"] == "CUDA0"


@pytest.mark.parametrize(
    ("address", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("10.1.2.3", "10.1.2.3")],
)
def test_where_the_box_itself_reaches_the_router(address: str, reached: str) -> None:
    assert json.loads(box(lane_address=address).lane_file.content)["host"] == reached


def test_apt_source_and_pin() -> None:
    source, preferences = (placed.content for placed in box().toolkit_files)
    fields = dict(line.split(": ", 1) for line in source.splitlines() if not line.startswith("#"))
    # A flat repository: the suite is a path, and deb822 knows no $(ARCH).
    assert fields["Suites"] == "/"
    assert "Components" not in fields
    assert fields["URIs"].endswith("/stable/deb/arm64")
    assert fields["Signed-By"] == "/usr/share/keyrings/gb10-nvidia-container-toolkit.gpg"
    for package in raw_data()["toolkit_packages"]:
        assert f" {package}" in preferences
    assert "Pin: version 1.19.1-1\n" in preferences
    # Above 1000: the pin also holds against a newer version that is installed already.
    assert int(preferences.rpartition("Pin-Priority: ")[2]) > 1000


@pytest.mark.parametrize(
    ("machine", "debian"), [("aarch64", "arm64"), ("x86_64", "amd64"), ("riscv64", "riscv64")]
)
def test_architectures(machine: str, debian: str) -> None:
    assert box(expect_architecture=machine).debian_architecture == debian


def test_the_downloader_gets_paths_below_the_models_folder() -> None:
    manifest = json.loads(box(models_dir="/data/gguf").fetch_manifest_file.content)
    assert manifest["models_dir"] == "/data/gguf"
    assert manifest["token_file"] is None
    assert manifest["reserve_bytes"] == 20 * 1024**3
    assert all(file["path"].startswith("/data/gguf/") for file in manifest["files"])
    assert all(len(file["sha256"]) == 64 and file["size"] > 0 for file in manifest["files"])


def test_a_token_is_named_by_its_file() -> None:
    manifest = json.loads(box(models_token_file="/root/.hub-token").fetch_manifest_file.content)
    assert manifest["token_file"] == "/root/.hub-token"


def test_presets_digest_follows_the_presets() -> None:
    assert box(models_dir="/data/gguf").presets_digest != box().presets_digest
    assert box(lane_port=10104).presets_digest == box().presets_digest
