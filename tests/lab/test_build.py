"""Builds of the image that something comes in between of; the host has the compile step cached."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab import deploying, lane, paths
from tests.lab.conftest import FirstDeploy
from tests.lab.host import LabHost


@pytest.fixture(scope="module")
def host(first_deploy: FirstDeploy) -> LabHost:
    """The host that compiled llama.cpp, deployed as the project is now."""
    host = first_deploy.host.reset(to=first_deploy.compiled)
    done = deploying.deploy(host)
    assert done.returncode == 0, done.stdout
    return host


def _deploy(host: LabHost, **data: object) -> str:
    done = deploying.deploy(host, data=data)
    assert done.returncode == 0, done.stdout
    return done.stdout


def _begun(host: LabHost, log: Path, **data: object) -> subprocess.Popen[bytes]:
    """A deploy in the background whose build has started on the host."""
    with log.open("w") as stream:
        begun = subprocess.Popen(
            deploying.command(host, "-y", data=data),
            cwd=paths.REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    until = time.monotonic() + 90
    while ": started (gb10-image-" not in log.read_text():
        assert begun.poll() is None, log.read_text()
        assert time.monotonic() < until
        time.sleep(0.2)
    return begun


def test_it_outlives_the_deploy_that_began_it_and_the_next_one_joins(host: LabHost, tmp_path: Path) -> None:
    # Another runtime stage: quick to build where the compile step is cached, and slow enough to be met.
    wait = ["sleep 12"]
    container = lane.container_id(host)
    first = _begun(host, tmp_path / "log", image_runtime_prepare=wait)
    first.kill()
    first.wait()
    assert "running" in host.ssh("systemctl list-units --plain --no-legend 'gb10-image-*'").stdout
    assert lane.chat(host)[0] == 200, "a build must not disturb the lane"
    output = _deploy(host, image_runtime_prepare=wait)
    assert "under way already, joining it" in output
    assert lane.container_id(host) not in ("", container)
    assert deploying.changed(_deploy(host, image_runtime_prepare=wait)) == []


def test_an_interrupt_is_no_success_and_the_build_goes_on(host: LabHost, tmp_path: Path) -> None:
    wait = ["sleep 13"]
    deploy = _begun(host, tmp_path / "log", image_runtime_prepare=wait)
    deploy.send_signal(signal.SIGINT)
    assert deploy.wait(10) == 130
    assert "run the deploy again" in (tmp_path / "log").read_text()
    assert "joining it" in _deploy(host, image_runtime_prepare=wait)


def test_a_connection_that_drops_is_taken_up_again(host: LabHost, tmp_path: Path) -> None:
    log = tmp_path / "log"
    deploy = _begun(host, log, image_runtime_prepare=["sleep 14"])
    # Every session of the login user, the deploy's among them.
    host.ssh("pkill -KILL -u lab sshd-session", sudo=True, check=False)
    assert deploy.wait(240) == 0, log.read_text()
    assert "connection lost" in log.read_text()
    assert "tok/s on RPC0" in log.read_text()


def test_a_power_cut_ends_it_and_the_next_deploy_finishes_the_job(host: LabHost, tmp_path: Path) -> None:
    wait = ["sleep 16"]
    deploy = _begun(host, tmp_path / "log", image_runtime_prepare=wait)
    host.kill()
    deploy.kill()
    deploy.wait()
    host.up()
    lane.wait_answering(host)
    output = _deploy(host, image_runtime_prepare=wait)
    assert ": started (gb10-image-" in output
    assert "tok/s on RPC0" in output


def test_one_that_fails_leaves_the_lane_alone_and_says_why(host: LabHost) -> None:
    container = lane.container_id(host)
    done = deploying.deploy(host, data={"image_runtime_prepare": ["echo no luck today >&2; exit 7"]})
    assert done.returncode != 0
    assert "failed with exit status" in done.stdout
    assert "no luck today" in done.stdout
    assert "exit code: 7" in done.stdout
    assert "Traceback" not in done.stdout
    assert lane.container_id(host) == container
    assert lane.chat(host)[0] == 200
