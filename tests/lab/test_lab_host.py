"""The lab itself: what a bare host is, what its commands do, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import aptrepo, llama, network, paths, process, recipe, services, supervisor
from tests.lab.host import LabHost, known_hosts

pytestmark = pytest.mark.lab

ONE, TWO = "selftest-1", "selftest-2"


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    """A bare host, up for all tests of this module."""
    one = LabHost(ONE)
    one.reset()
    yield one
    one.discard()


@pytest.fixture
def no_other_host(host: LabHost) -> None:
    """Skips where hosts of other people run: what the last `down` does cannot be seen then."""
    others = [other.name for other in known_hosts() if other.running and other.name not in (ONE, TWO)]
    if others:
        pytest.skip(f"other lab hosts run: {' '.join(others)}")


def left_behind() -> list[str]:
    """Everything of the lab that is still there on this machine."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    found = [f"mount {place}" for place in mounts if place.startswith(str(paths.cache()))]
    loops = subprocess.run(["losetup", "-j", str(paths.image())], capture_output=True, text=True, check=True)
    found += [f"loop {line}" for line in loops.stdout.splitlines()]
    if network.bridge_is_up():
        found.append(f"bridge {network.BRIDGE}")
    found += [f"service {name}" for name in services.running()]
    for name in (ONE, TWO):
        found += [f"cgroup {folder}" for folder in supervisor.cgroup_paths(name) if folder.exists()]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if any(f"tests.lab.supervisor\0{name}" in command for name in (ONE, TWO)):
            found.append(f"process {folder.name}: {command}")
    return found


def test_bare_host_is_a_running_system(host: LabHost) -> None:
    assert host.ssh("systemctl is-system-running").stdout.strip() == "running"
    assert host.ssh("cat /proc/1/comm").stdout.strip() == "systemd"
    assert host.ssh("id -un").stdout.strip() == paths.USER
    assert host.ssh("id -u", sudo=True).stdout.strip() == "0"
    assert host.ssh("hostname").stdout.strip() == ONE
    driver = host.ssh("docker info -f '{{.Driver}} {{.CgroupDriver}} {{.CgroupVersion}}'", sudo=True)
    assert driver.stdout.split() == ["overlay2", "systemd", "2"]


def test_bare_host_has_the_old_lanes(host: LabHost) -> None:
    for lane, port in (("a", 10101), ("b", 10102)):
        unit = f"vllm-lane-{lane}.service"
        shown = host.ssh(f"systemctl show -P ActiveState -P UnitFileState {unit}").stdout.split()
        assert shown == ["active", "enabled"]
        assert '"data"' in host.ssh(f"curl -fsS http://127.0.0.1:{port}/v1/models").stdout
    containers = host.ssh("docker ps -a --format '{{.Names}} {{.State}}'", sudo=True).stdout.splitlines()
    assert sorted(containers) == ["vllm-lane-a running", "vllm-lane-b-old created"]


def test_bare_host_has_the_base_images(host: LabHost) -> None:
    for image in (recipe.DEVEL_IMAGE, recipe.RUNTIME_IMAGE):
        labels = host.ssh(f"docker inspect -f '{{{{json .Config.Labels}}}}' {image}", sudo=True)
        assert json.loads(labels.stdout)[recipe.LABEL]
    packages = "cmake ninja-build git ccache ca-certificates build-essential"
    install = f"apt-get update && apt-get install -y --no-install-recommends {packages}"
    done = host.ssh(["docker", "run", "--rm", recipe.DEVEL_IMAGE, "sh", "-c", install], sudo=True)
    assert "0 newly installed" in done.stdout


def test_docker_builds_with_a_cache_mount_and_reaches_the_gateway(host: LabHost) -> None:
    dockerfile = (
        f"FROM {recipe.RUNTIME_IMAGE}\n"
        "RUN --mount=type=cache,target=/kept "
        f"curl -fsS -o /kept/key {network.TOOLKIT_URL}/gpgkey && touch /built\n"
    )
    host.ssh("docker build -t selftest -", sudo=True, stdin=dockerfile)
    assert host.ssh("docker run --rm selftest ls /built", sudo=True).stdout.strip() == "/built"


def test_accelerator_serves_containers_and_can_be_taken_away(host: LabHost) -> None:
    place = f"{network.ACCELERATOR_ADDRESS}/{network.ACCELERATOR_PORT}"
    probe = ["docker", "run", "--rm", recipe.RUNTIME_IMAGE, "bash", "-c", f"exec 3<>/dev/tcp/{place}"]
    assert host.ssh(probe, sudo=True, check=False).returncode == 0
    # Two clients at once, as two loaded models are: each has a server beside the one that listens.
    both = f"exec 3<>/dev/tcp/{place} 4<>/dev/tcp/{place}; sleep 0.5; pgrep -c ggml-rpc-server"
    assert host.ssh(["bash", "-c", both]).stdout.strip() == "3"
    host.ssh("systemctl stop standin-accelerator", sudo=True)
    try:
        assert host.ssh(probe, sudo=True, check=False).returncode != 0
    finally:
        host.ssh("systemctl start standin-accelerator", sudo=True)


def test_stand_in_toolkit_installs_and_gives_devices_to_containers(host: LabHost) -> None:
    keyring, source = "/usr/share/keyrings/selftest.gpg", "/etc/apt/sources.list.d/selftest.list"
    host.ssh(f"curl -fsS {network.TOOLKIT_URL}/gpgkey | gpg --dearmor > {keyring}", sudo=True)
    line = f"deb [signed-by={keyring}] {network.TOOLKIT_URL}/stable/deb/$(ARCH) /"
    host.ssh(f"cat > {source}", sudo=True, stdin=line + "\n")
    host.ssh("apt-get update", sudo=True)
    pinned = " ".join(f"{package.name}=1.19.1-1" for package in aptrepo.PACKAGES)
    host.ssh(f"DEBIAN_FRONTEND=noninteractive apt-get install -y {pinned}", sudo=True)
    assert "nvidia.com/gpu=all" in host.ssh("nvidia-ctk cdi list").stdout.split()

    host.ssh("nvidia-ctk runtime configure --runtime=docker --cdi.enabled", sudo=True)
    host.ssh("systemctl restart docker", sudo=True)
    run = f"docker run -d --rm --name selftest --device nvidia.com/gpu=all {recipe.RUNTIME_IMAGE} sleep 600"
    host.ssh(run, sudo=True)
    host.ssh("systemctl daemon-reload", sudo=True)
    inside = "docker exec selftest"
    assert "NVIDIA GB10" in host.ssh(f"{inside} nvidia-smi -L", sudo=True).stdout
    assert host.ssh(f"{inside} sh -c 'echo > /dev/nvidia0'", sudo=True, check=False).returncode == 0
    host.ssh("touch /run/standin-gpu/lost-in-containers", sudo=True)
    assert host.ssh(f"{inside} nvidia-smi -L", sudo=True, check=False).returncode == 255
    assert host.ssh("nvidia-smi -L", check=False).returncode == 0
    host.ssh("touch /run/standin-gpu-lost", sudo=True)
    assert host.ssh("nvidia-ctk cdi generate", sudo=True, check=False).returncode == 1
    host.ssh(
        "rm /run/standin-gpu-lost /run/standin-gpu/lost-in-containers && docker rm -f selftest", sudo=True
    )


def test_git_serves_the_pinned_commit_by_its_hash(host: LabHost) -> None:
    assert llama.served_commit() == recipe.LLAMA_COMMIT
    host.ssh("git init -q tree")
    host.ssh(f"git -C tree fetch -q --depth 1 {network.GIT_URL} {recipe.LLAMA_COMMIT}")
    assert host.ssh("git -C tree rev-parse FETCH_HEAD").stdout.strip() == recipe.LLAMA_COMMIT


def test_two_hosts_reach_each_other_and_nothing_outside(host: LabHost) -> None:
    with LabHost(TWO) as other:
        assert other.address != host.address
        for near, far in ((host, other), (other, host)):
            near.ssh(f"curl -fsS --max-time 5 http://{far.address}:10102/health")
            near.ssh(f"curl -fsS --max-time 5 {network.TOOLKIT_URL}/gpgkey")
            assert near.ssh("ip route show default").stdout == ""
            assert near.ssh("curl -sS --max-time 3 http://192.0.2.1/", check=False).returncode != 0
            assert near.ssh("getent hosts example.org", check=False).returncode != 0
    other.discard()


def test_snapshot_and_reset(host: LabHost) -> None:
    host.ssh("echo kept > /etc/selftest", sudo=True)
    host.snapshot("selftest")
    host.ssh("echo changed > /etc/selftest", sudo=True)
    host.reset(to="selftest")
    assert host.ssh("cat /etc/selftest").stdout == "kept\n"
    host.reset()
    assert host.ssh("cat /etc/selftest", check=False).returncode != 0
    assert host.ssh("docker ps -a --format '{{.Names}}'", sudo=True).stdout.split()[0] == "vllm-lane-a"


def test_reboot_from_the_inside(host: LabHost) -> None:
    before = host.ssh("cat /proc/sys/kernel/random/boot_id").stdout
    host.ssh("echo kept > /etc/selftest", sudo=True)
    host.reboot()
    assert host.ssh("cat /proc/sys/kernel/random/boot_id").stdout != before
    assert host.ssh("cat /etc/selftest").stdout == "kept\n"
    assert host.ssh("systemctl is-active docker standin-accelerator").stdout.split() == ["active"] * 2


def test_power_cut_boots_the_same_disk(host: LabHost) -> None:
    host.ssh("echo kept > /etc/selftest && sync", sudo=True)
    host.kill()
    assert not host.running
    host.up()
    assert host.ssh("cat /etc/selftest").stdout == "kept\n"
    assert host.ssh("curl -fsS http://127.0.0.1:10101/health").returncode == 0


def test_up_recovers_from_a_dead_supervisor(host: LabHost) -> None:
    refs = process.read_refs(supervisor.refs_file(ONE))
    refs["supervisor"].send(signal.SIGKILL)
    refs["nspawn"].send(signal.SIGKILL)
    assert refs["supervisor"].wait_gone(10)
    assert refs["init"].alive
    host.up()
    assert not refs["init"].alive
    assert host.ssh("systemctl is-system-running").stdout.strip() == "running"


@pytest.mark.usefixtures("no_other_host")
def test_down_leaves_nothing(host: LabHost) -> None:
    host.down()
    assert left_behind() == []
    host.up()


@pytest.mark.usefixtures("no_other_host")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_up_leaves_nothing(host: LabHost, number: signal.Signals) -> None:
    host.down()
    command = [sys.executable, "-m", "tests.lab", "up", ONE]
    with subprocess.Popen(command, cwd=paths.REPOSITORY, start_new_session=True) as running:
        while not network.bridge_is_up():
            assert running.poll() is None
            time.sleep(0.01)
        os.kill(running.pid, number)
        assert running.wait(60) != 0
    host.down()  # the signal may come when the host is already on: then it is a host like any other
    assert left_behind() == []
    host.up()
