"""One deploy at a time on a host: who comes second is told, and whoever is gone holds nothing."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.lab import deploying, drifting, lane, paths
from tests.lab.host import LabHost
from tests.lab.test_drift_exit import look_that

LONG_DEPLOY = Path(__file__).with_name("long_deploy.py")


@pytest.fixture
def host(settled: LabHost) -> LabHost:
    lane.wait_answering(settled)
    return settled


def _slow_deploy(host: LabHost) -> subprocess.Popen[str]:
    """A deploy that has begun to execute, and stands at its first look."""
    running = subprocess.Popen(
        deploying.command(host, "-y"),
        cwd=paths.REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    host.ssh("for i in $(seq 300); do [ -e /tmp/begun ] && break; sleep 0.1; done; rm /tmp/begun", sudo=True)
    return running


WAIT = "touch /tmp/begun; for i in $(seq 300); do [ -e /tmp/go ] && break; sleep 0.1; done"


def test_two_deploys_at_once(host: LabHost) -> None:
    with look_that(host, WAIT):
        first = _slow_deploy(host)
        second = deploying.deploy(host)
        assert second.returncode != 0
        told = [line for line in second.stdout.splitlines() if "the box is held by" in line]
        assert len(told) == 1, second.stdout
        assert "@" in told[0]
        assert "since 20" in told[0]
        assert "Traceback" not in second.stdout
        status, report = drifting.look(host)
        assert (status, report["state"]) == (1, "unknown")
        host.ssh("touch /tmp/go", sudo=True)
        output, _ = first.communicate(timeout=120)
        assert first.returncode == 0, output
    assert deploying.changed(deploying.deploy(host).stdout) == []


def test_a_deploy_that_died_holds_nothing(host: LabHost) -> None:
    host.ssh("rm -f /tmp/go", sudo=True)
    with look_that(host, WAIT):
        first = _slow_deploy(host)
        first.kill()
        first.wait()
        host.ssh("touch /tmp/go", sudo=True)
        time.sleep(1)
        assert deploying.deploy(host).returncode == 0


def test_a_dry_run_takes_no_lock(host: LabHost) -> None:
    host.ssh("rm -f /run/gb10-deploy.lock", sudo=True)
    done = subprocess.run(
        deploying.command(host, "--dry"), cwd=paths.REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert host.ssh("[ ! -e /run/gb10-deploy.lock ]", sudo=True).returncode == 0


def test_a_connection_that_drops_is_no_end(host: LabHost) -> None:
    command = [str(deploying.PYINFRA), str(deploying.INVENTORY), str(LONG_DEPLOY), "--limit", host.name, "-y"]
    running = subprocess.Popen(
        command,
        cwd=paths.REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    begun = "for i in $(seq 300); do systemctl is-active --quiet gb10-try && break; sleep 0.1; done"
    host.ssh(begun, sudo=True)
    note = json.loads(host.ssh("cat /run/gb10-deploy.lock", sudo=True).stdout)
    # Every session of the login user, the deploy's among them.
    host.ssh("pkill -KILL -u lab sshd-session", sudo=True, check=False)
    until = time.monotonic() + 30
    while (now := json.loads(host.ssh("cat /run/gb10-deploy.lock", sudo=True).stdout))["pid"] == note["pid"]:
        assert time.monotonic() < until, "the lock was not taken again"
        time.sleep(0.5)
    assert now["token"] == note["token"]
    assert drifting.look(host)[0] == 1
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    assert "connection lost" in output
    assert drifting.look(host)[0] == 0
