"""Without the accelerator the lane fails and says why; nothing is ever served from the CPU."""

from __future__ import annotations

import pytest

from tests.lab import lane
from tests.lab.host import LabHost

ACCELERATOR = "standin-accelerator.service"


@pytest.fixture
def host(settled: LabHost) -> LabHost:
    # What the lane does by itself: the watch would restart it meanwhile.
    settled.ssh("systemctl stop gb10-watch.service", sudo=True)
    lane.wait_answering(settled)
    return settled


def _refuses_to_start(host: LabHost, words: str) -> None:
    done = host.ssh(f"systemctl restart {lane.UNIT}", sudo=True, check=False)
    assert done.returncode != 0
    assert lane.unit(host) == "failed"
    refusal = [line for line in lane.journal(host).splitlines() if "REFUSING" in line][-1]
    assert words in refusal
    assert "Nothing is served from the CPU" in refusal
    assert lane.curl(host, "/health", limit=5)[0] == 0
    assert lane.container_id(host) == ""


def test_the_accelerator_stops_under_a_loaded_model(host: LabHost) -> None:
    host.ssh(f"systemctl stop {ACCELERATOR}", sudo=True)
    for model in ("tiny-a", "tiny-a", "tiny-b"):
        status, answer = lane.chat(host, model)
        assert status >= 500, f"{model} was served without an accelerator: {answer}"
    _refuses_to_start(host, "no accelerator RPC0")
    host.ssh(f"systemctl start {ACCELERATOR}", sudo=True)
    host.ssh(f"systemctl start {lane.UNIT}", sudo=True)
    lane.wait_answering(host)


def test_with_the_accelerator_back_a_running_router_serves_again(host: LabHost) -> None:
    before = lane.container_id(host)
    host.ssh(f"systemctl stop {ACCELERATOR}", sudo=True)
    assert lane.chat(host)[0] >= 500
    host.ssh(f"systemctl start {ACCELERATOR}", sudo=True)
    lane.wait_answering(host)
    assert lane.container_id(host) == before


def test_the_cdi_spec_is_gone(host: LabHost) -> None:
    # The refresh would write it again at the start: the driver is gone as well.
    host.ssh("touch /run/standin-gpu-lost; rm /var/run/cdi/nvidia.yaml", sudo=True)
    _refuses_to_start(host, "Docker knows no CDI device nvidia.com/gpu=all")
    host.ssh("rm /run/standin-gpu-lost; systemctl restart nvidia-cdi-refresh.service", sudo=True)
    host.ssh(f"systemctl start {lane.UNIT}", sudo=True)
    lane.wait_answering(host)


def test_a_daemon_reload_does_not_take_the_device_away(host: LabHost) -> None:
    host.ssh("systemctl daemon-reload", sudo=True)
    inside = f"docker exec {lane.CONTAINER} test -r /dev/nvidia0"
    assert host.ssh(inside, sudo=True, check=False).returncode == 0
    assert lane.chat(host, "tiny-b")[0] == 200


def test_a_router_that_crashes_again_and_again_ends_in_failed(host: LabHost) -> None:
    for _ in range(8):
        if lane.unit(host) == "failed":
            break
        container = lane.container_id(host)
        if container:
            host.ssh(f"docker kill --signal KILL {container}", sudo=True, check=False)
        host.ssh("sleep 6")
    assert lane.unit(host) == "failed"
    host.ssh(f"systemctl reset-failed {lane.UNIT} && systemctl start {lane.UNIT}", sudo=True)
    lane.wait_answering(host)


def test_a_stop_is_bounded_while_a_request_runs_without_end(host: LabHost) -> None:
    lane.begin_endless(host, "small-c")
    host.ssh(f"systemctl stop {lane.UNIT}", sudo=True, limit=60)
    assert lane.container_id(host) == ""
    host.ssh("systemctl restart standin-accelerator", sudo=True)
    host.ssh(f"systemctl reset-failed {lane.UNIT}; systemctl start {lane.UNIT}", sudo=True, check=False)
    lane.wait_answering(host)
