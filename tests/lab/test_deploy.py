"""The first deploy on a bare host, and the second one, which does nothing."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from gb10.desired import Desired
from tests.lab import deploying, lane, paths
from tests.lab.conftest import FirstDeploy
from tests.lab.host import LabHost


@pytest.fixture(scope="module")
def host(settled: LabHost) -> LabHost:
    lane.wait_answering(settled)
    return settled


def test_it_ends_with_an_answer_its_speed_and_its_device(first_deploy: FirstDeploy) -> None:
    assert re.search(r"tiny-a answered with [0-9.]+ tok/s on RPC0 \(process \d+", first_deploy.output)


def test_a_build_shows_its_progress(first_deploy: FirstDeploy) -> None:
    if first_deploy.built_here:
        assert re.search(r"compiling \d+/\d+, \d+ %, about \d+:\d\d left", first_deploy.output)
    else:
        # One that was given has to prove itself all the same.
        assert f"proof of {first_deploy.box.image}: started" in first_deploy.output


def test_a_container_that_nobody_named_is_left_alone(host: LabHost) -> None:
    assert host.ssh("docker ps -aq --filter name=^vllm-lane-b-old$", sudo=True).stdout != ""


@pytest.mark.parametrize("old", ["vllm-lane-a", "vllm-lane-b"])
def test_the_old_lanes_are_gone(host: LabHost, old: str) -> None:
    shown = host.ssh(f"systemctl show --property=LoadState --value {old}.service").stdout.strip()
    assert shown == "not-found"
    assert (
        host.ssh(f"ls /etc/systemd/system /etc/systemd/system/*.wants | grep {old}", check=False).stdout == ""
    )
    assert host.ssh(f"docker ps -aq --filter name=^{old}$", sudo=True).stdout == ""
    listening = host.ssh("ss -Hltn '( sport = :10101 or sport = :10102 )'").stdout
    assert listening == ""
    # What was taken out can be put back.
    assert host.ssh(f"find /var/lib/gb10/retired -name '{old}*'", sudo=True).stdout != ""


def test_the_toolkit_is_pinned_from_one_signed_source(host: LabHost) -> None:
    shown = host.ssh(
        "dpkg-query -W -f '${Package} ${Version}\\n' 'nvidia-container-toolkit*' 'libnvidia-*'"
    ).stdout
    assert sorted(shown.split()) == sorted(
        [
            "nvidia-container-toolkit",
            "1.19.1-1",
            "nvidia-container-toolkit-base",
            "1.19.1-1",
            "libnvidia-container-tools",
            "1.19.1-1",
            "libnvidia-container1",
            "1.19.1-1",
        ]
    )
    policy = host.ssh("apt-cache policy nvidia-container-toolkit").stdout
    assert "Candidate: 1.19.1-1" in policy
    assert "1.20.0-1" in policy  # a newer one is on offer and does not come in
    host.ssh("apt-get -q update", sudo=True)


def test_docker_keeps_its_settings_and_knows_the_device(host: LabHost) -> None:
    daemon = json.loads(host.ssh("cat /etc/docker/daemon.json").stdout)
    assert daemon["features"]["cdi"] is True
    assert len(daemon) > 1, "what stood there before is gone"
    image = host.ssh(
        "docker image ls --format '{{.Repository}}:{{.Tag}}' | grep gb10/", sudo=True
    ).stdout.split()[0]
    line = f"docker run --rm --device nvidia.com/gpu=all --entrypoint ls {image} /dev/nvidia0"
    assert host.ssh(line, sudo=True).stdout.strip() == "/dev/nvidia0"


def test_the_container_has_no_more_rights_than_it_needs(host: LabHost, box: Desired) -> None:
    shown = json.loads(host.ssh(f"docker inspect {lane.CONTAINER}", sudo=True).stdout)[0]
    config, limits = shown["Config"], shown["HostConfig"]
    assert config["Image"] == box.image
    assert config["User"] == "10103:10103"
    assert limits["ReadonlyRootfs"] is True
    assert limits["CapDrop"] == ["ALL"]
    assert "no-new-privileges" in limits["SecurityOpt"]
    assert limits["Privileged"] is False
    assert limits["AutoRemove"] is True
    assert limits["Init"] is True
    assert [bind["HostIp"] for bind in limits["PortBindings"]["10103/tcp"]] == ["127.0.0.1"]
    assert {bind.rpartition(":")[2] for bind in limits["Binds"]} == {"ro"}
    assert "LLAMA_ARG_DEVICE=RPC0" in config["Env"]
    # The model's process, not only the container's first.
    owners = host.ssh(f"docker top {lane.CONTAINER} -eo uid,pid,comm", sudo=True).stdout.splitlines()[1:]
    assert len(owners) >= 3
    assert {owner.split()[0] for owner in owners} == {"10103"}


def test_the_image_is_small_and_says_where_it_comes_from(host: LabHost, box: Desired) -> None:
    shown = json.loads(host.ssh(f"docker image inspect {box.image}", sudo=True).stdout)[0]
    assert shown["Config"]["User"] == "10103:10103"
    assert shown["Config"]["Labels"]["org.opencontainers.image.revision"] == box.data.llama_commit
    assert shown["Size"] < 400e6
    version = host.ssh(f"docker run --rm {box.image} --version 2>&1", sudo=True).stdout
    assert box.data.llama_commit[:7] in version


def test_the_key_is_on_the_box_and_nowhere_else(host: LabHost, first_deploy: FirstDeploy) -> None:
    assert host.ssh(f"stat -c '%a %u:%g' {lane.KEY}", sudo=True).stdout.strip() == "600 10103:10103"
    # Looked for from outside: a search on the host would itself leave the key in sudo's log.
    key = (host.root / lane.KEY.lstrip("/")).read_text().strip()
    assert len(key) >= 40
    assert key not in first_deploy.output
    places = [
        host.root / place for place in ("etc", "var/log", "var/lib/gb10", "usr/local", "home", "root", "tmp")
    ]
    found = subprocess.run(
        ["grep", "-rlF", "-f", "-", *places], input=key, capture_output=True, text=True, check=False
    )
    assert found.stdout.split() == [str(host.root / lane.KEY.lstrip("/"))]
    assert key not in host.ssh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", sudo=True, check=False).stdout
    assert key not in host.ssh(f"docker inspect {lane.CONTAINER}", sudo=True).stdout


def test_only_who_has_the_key_gets_in(host: LabHost) -> None:
    assert lane.curl(host, "/models", key="")[0] == 401
    assert lane.curl(host, "/models", key="wrong")[0] == 401
    assert lane.curl(host, "/models")[0] == 200


def test_a_second_deploy_changes_nothing(host: LabHost) -> None:
    before = lane.container_id(host)
    host.ssh("touch /var/tmp/before", sudo=True)
    done = deploying.deploy(host)
    assert done.returncode == 0, done.stdout
    outcomes = deploying.outcomes(done.stdout)
    assert len(outcomes) > 20
    assert set(outcomes.values()) == {"No changes"}, deploying.changed(done.stdout)
    assert "tok/s on RPC0" in done.stdout
    # The host's own word: no file was written, no container was made anew, no unit was started.
    places = "/etc /usr /opt /root /srv /var/lib/gb10 /var/lib/docker/image /var/lib/systemd/system"
    written = host.ssh(
        f"find {places} -newer /var/tmp/before -not -type d 2>/dev/null", sudo=True, check=False
    )
    assert written.stdout == ""
    assert lane.container_id(host) == before


def test_a_dry_run_on_a_settled_host_plans_nothing(host: LabHost) -> None:
    done = subprocess.run(
        deploying.command(host, "--dry", "--json"),
        cwd=paths.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    plan = json.loads(done.stdout)["plan"]
    assert len(plan) > 20
    for operation in plan:
        assert operation["hosts_with_change"] == [], operation
        assert operation["hosts_with_conditional_change"] == [], operation
