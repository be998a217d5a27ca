"""Bad input and a box that does not fit: one line each, exit status not 0, and nothing has changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lab import deploying, lane, paths
from tests.lab.host import LabHost


def _untouched(host: LabHost) -> None:
    for old in ("vllm-lane-a", "vllm-lane-b"):
        assert lane.unit(host, f"{old}.service") == "active"
    left = host.ssh(
        "ls -d /var/lib/gb10 /usr/local/lib/gb10 /etc/llamacpp-playground 2>/dev/null", check=False
    )
    assert left.stdout == ""


def _refused(host: LabHost, *words: str, **data: object) -> str:
    done = deploying.deploy(host, data=data)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stdout
    for word in words:
        assert word in done.stdout
    _untouched(host)
    return done.stdout


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"expect_architecture": "aarch64"}, "architecture is x86_64, not aarch64"),
        ({"expect_compute_capability": "9.0"}, "'12.1', not compute capability 9.0"),
        ({"expect_os": ["ubuntu 24.04"]}, "debian 13, not ubuntu 24.04"),
        ({"minimum_python": "3.99"}, "3.99 is needed"),
        ({"minimum_free_gib": 9999}, "the build needs 9999"),
        ({"lane_port": 22}, "port 22 is held by"),
        ({"lane_port": 0}, "lane_port"),
        ({"lane_port": 65536}, "lane_port"),
        ({"lane_port": 10101}, "also the port of vllm-lane-a.service"),
        ({"lane_prot": 10103}, "did you mean 'lane_port'?"),
        ({"lane_address": "localhost"}, "lane_address"),
        ({"llama_commit": "b11312"}, "llama_commit"),
    ],
)
def test_bad_data_and_a_wrong_box(bare: LabHost, data: dict[str, object], words: str) -> None:
    _refused(bare, words, **data)


def test_all_faults_come_in_one_go(bare: LabHost) -> None:
    output = _refused(
        bare, expect_architecture="aarch64", expect_compute_capability="9.0", minimum_free_gib=9999
    )
    assert "3 faults" in output


SAMPLING = "    sampling: {temp: 0.7, top-k: 40}\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("    options: {no-mmap: true}\n", "load-mode"),
        ("    ctx-sizes: 4096\n", "ctx-size"),
        ("    aliases: [tiny-b]\n", "tiny-b"),
        ('    options: {chat-template-kwargs: "a;b"}\n', ";"),
        ('    options: {chat-template-kwargs: "a#b"}\n', "#"),
    ],
)
def test_a_bad_catalogue(bare: LabHost, tmp_path: Path, line: str, words: str) -> None:
    text = (paths.REPOSITORY / "tests/lab/models.yaml").read_text()
    assert SAMPLING in text
    catalogue = tmp_path / "models.yaml"
    catalogue.write_text(text.replace(SAMPLING, SAMPLING + line))
    assert "models.yaml:" in _refused(bare, words, catalogue=str(catalogue))


def test_a_stranger_on_the_lanes_port(bare: LabHost) -> None:
    bare.ssh("systemd-run --unit=stranger python3 -m http.server 10103 --bind 127.0.0.1", sudo=True)
    try:
        bare.ssh("for i in $(seq 50); do ss -Hltn 'sport = :10103' | grep -q . && break; sleep 0.1; done")
        _refused(bare, "port 10103 is held by unit stranger.service")
    finally:
        bare.ssh("systemctl stop stranger", sudo=True)


def test_sudo_that_wants_a_password(bare: LabHost) -> None:
    bare.ssh("cp -a /etc/sudoers.d /root/sudoers.d && sed -i 's/NOPASSWD://' /etc/sudoers.d/*", sudo=True)
    try:
        done = deploying.deploy(bare)
        assert done.returncode != 0
        assert "sudo wants a password from lab" in done.stdout
        assert "Traceback" not in done.stdout
    finally:
        # The way back in without sudo: the lab writes into the host's disk.
        for path in (bare.root / "root/sudoers.d").iterdir():
            (bare.root / "etc/sudoers.d" / path.name).write_bytes(path.read_bytes())
    _untouched(bare)


def test_a_host_that_does_not_answer(bare: LabHost) -> None:
    done = deploying.deploy(bare, data={"ssh_port": 2222})
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    assert "Could not connect" in done.stdout


def test_a_wrong_host_key(bare: LabHost, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    known = tmp_path / "known_hosts"
    key = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    known.write_text(f"{bare.address} {key}\n")
    done = deploying.deploy(bare, data={"ssh_known_hosts_file": str(known)})
    assert done.returncode != 0
    assert "Traceback" not in done.stdout
    assert "host key" in done.stdout.lower()
    _untouched(bare)


def test_a_daemon_json_that_docker_could_not_read_is_not_overwritten(bare: LabHost) -> None:
    bare.ssh(
        "cp /etc/docker/daemon.json /root/ && echo '{ \"features\": ' > /etc/docker/daemon.json", sudo=True
    )
    try:
        _refused(bare, "/etc/docker/daemon.json", "not valid JSON")
        assert bare.ssh("cat /etc/docker/daemon.json").stdout == '{ "features": \n'
    finally:
        bare.ssh("cp /root/daemon.json /etc/docker/daemon.json", sudo=True)
