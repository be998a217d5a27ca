"""What a box must be: each fault by itself, and all at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gb10.facts.host_report import Host
from gb10.requirements import box_faults, description_faults, host_faults, watched_ports
from tests.unit.boxes import box

GOOD = Host("aarch64", "ubuntu 24.04", "3.12", "12.1", sudo=True, user="me", systemd=True)
GIB = 1024**3


def report(**changes: Any) -> dict[str, Any]:
    good = {"docker": "28.5.1", "buildx": True, "docker_root": "/var/lib/docker", "free_bytes": 100 * GIB,
            "holders": {}, "daemon": None}  # fmt: skip
    return good | changes


def of_host(**changes: Any) -> list[str]:
    return [str(fault) for fault in host_faults("gb10.local", replace(GOOD, **changes), box())]


def of_box(image_is_there: bool = False, **changes: Any) -> list[str]:
    return [str(fault) for fault in box_faults("gb10.local", report(**changes), box(), image_is_there)]


def test_a_good_box_has_none() -> None:
    assert of_host() == []
    assert of_box() == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architecture": "x86_64"}, "its architecture is x86_64, not aarch64"),
        ({"os": "debian 13"}, "it runs debian 13, not ubuntu 24.04"),
        ({"os": ""}, "it runs an unknown system"),
        ({"systemd": False}, "systemd is not its init"),
        ({"python": ""}, "python3 is missing, 3.10 is needed"),
        ({"python": "3.9"}, "python3 is 3.9, 3.10 is needed"),
        ({"capability": "9.0"}, "nvidia-smi says '9.0', not compute capability 12.1"),
        ({"capability": "sh: 1: nvidia-smi: not found"}, "nvidia-smi says 'sh: 1: nvidia-smi: not found'"),
        ({"sudo": False}, "sudo wants a password from me"),
        ({"sudo": False, "user": "root"}, "sudo does not work for root"),
        ({"noise": "Welcome!"}, "the login shell of me prints 'Welcome!' before every command"),
    ],
)
def test_one_fault_of_the_host(changes: dict[str, Any], word: str) -> None:
    (line,) = of_host(**changes)
    assert line.startswith("gb10.local: ")
    assert word in line
    assert line.count(": ") >= 2  # it says what to do


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.14", "4.0"])
def test_versions_are_numbers_and_no_text(python: str) -> None:
    assert of_host(python=python) == []


def test_all_faults_of_the_host_at_once() -> None:
    worst = {"architecture": "x86_64", "os": "fedora 41", "python": "", "capability": "", "sudo": False,
             "systemd": False}  # fmt: skip
    assert len(of_host(**worst)) == 6


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"docker": None}, "Docker does not answer"),
        ({"docker": "24.0.7"}, "Docker 24.0.7 knows no CDI devices"),
        ({"buildx": False}, "docker buildx is missing"),
        ({"calendar": "Failed to parse calendar specification"}, "is no time: Failed to parse"),
        ({"free_bytes": 59.9 * GIB}, "59.9 GiB free below /var/lib/docker, the build needs 60"),
        ({"daemon": '{"a": 1,}'}, "/etc/docker/daemon.json: not valid JSON"),
        ({"daemon": "[]"}, "/etc/docker/daemon.json: not valid JSON"),
    ],
)
def test_one_fault_of_the_box(changes: dict[str, Any], word: str) -> None:
    (line,) = of_box(**changes)
    assert word in line


@pytest.mark.parametrize("docker", ["25.0.0", "26.1.5+dfsg1", "29.0", "master-dockerproject-2026"])
def test_docker_that_will_do(docker: str) -> None:
    assert of_box(docker=docker) == []


def test_no_docker_is_one_fault() -> None:
    assert len(of_box(docker=None, buildx=False)) == 1


def test_disk_is_for_the_build_only() -> None:
    assert of_box(image_is_there=True, free_bytes=0) == []


def holder(**changes: Any) -> dict[str, Any]:
    return {"unit": "", "container": "", "process": "python3", "pid": 77} | changes


def test_ports_to_look_at() -> None:
    assert watched_ports(box()) == [10103, 10101, 10102]


@pytest.mark.parametrize(
    ("who", "word"),
    [
        (holder(), "port 10103 is held by process python3 (77): stop it, or give the lane another lane_port"),
        (holder(unit="other.service"), "port 10103 is held by unit other.service"),
        (holder(container="ollama", unit="docker.service"), "port 10103 is held by container ollama"),
    ],
)
def test_a_stranger_on_the_lanes_port(who: dict[str, Any], word: str) -> None:
    (line,) = of_box(holders={"10103": who})
    assert word in line


def test_the_lane_itself_and_the_old_lanes_may_be_there() -> None:
    rightful = {
        "10103": holder(container="llamacpp-playground"),
        "10101": holder(unit="vllm-lane-a.service"),
        "10102": holder(container="vllm-lane-b"),
    }
    assert of_box(holders=rightful) == []


def test_a_stranger_on_an_old_lanes_port() -> None:
    (line,) = of_box(holders={"10101": holder(container="grafana")})
    assert "it is not the old lane vllm-lane-a.service: stop it, or correct lanes_out" in line


def test_all_faults_of_the_box_at_once() -> None:
    held = {"10101": holder(), "10103": holder()}
    assert len(of_box(docker="24.0", buildx=False, free_bytes=0, holders=held, daemon="x")) == 6


def test_a_description_with_models_that_are_not_pinned_is_refused_by_name() -> None:
    described = box()
    lines = [str(fault) for fault in description_faults(described)]
    from gb10.fetch_manifest import missing

    for model in described.catalogue.enabled:
        if any(missing(file, described.lock) for file in model.files):
            assert any(f"`gb10 pin {model.name}`" in line for line in lines), model.name
