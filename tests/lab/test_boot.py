"""After a reboot and after a power cut the lane answers again, and nobody does anything."""

from __future__ import annotations

from tests.lab import lane
from tests.lab.host import LabHost


def _still_settled(host: LabHost) -> None:
    lane.wait_answering(host)
    assert lane.unit(host) == "active"
    assert host.ssh("systemctl is-system-running --wait", check=False).stdout.strip() == "running"
    for old in ("vllm-lane-a", "vllm-lane-b"):
        assert lane.unit(host, f"{old}.service") == "inactive"
    assert host.ssh("ss -Hltn '( sport = :10101 or sport = :10102 )'").stdout == ""


def test_after_a_reboot(settled: LabHost) -> None:
    settled.reboot()
    _still_settled(settled)


def test_after_a_power_cut(settled: LabHost) -> None:
    settled.kill()
    settled.up()
    _still_settled(settled)


def test_after_a_power_cut_while_a_model_answers(settled: LabHost) -> None:
    lane.begin_endless(settled, "small-c")
    settled.kill()
    settled.up()
    _still_settled(settled)


def test_the_accelerator_may_come_later_than_docker(settled: LabHost) -> None:
    settled.ssh("mkdir -p /etc/systemd/system/standin-accelerator.service.d", sudo=True)
    settled.ssh(
        "printf '[Service]\\nExecStartPre=/bin/sleep 3\\n' "
        "> /etc/systemd/system/standin-accelerator.service.d/late.conf",
        sudo=True,
    )
    settled.reboot()
    _still_settled(settled)
