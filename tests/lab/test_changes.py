"""What a deploy does with a settled box that differs in one thing: that one thing, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import deploying, lane, paths
from tests.lab.host import LabHost

CATALOGUE = paths.REPOSITORY / "tests/lab/models.yaml"


@pytest.fixture
def host(settled: LabHost) -> LabHost:
    lane.wait_answering(settled)
    return settled


def _deploy(host: LabHost, **data: object) -> str:
    done = deploying.deploy(host, data=data)
    assert done.returncode == 0, done.stdout
    return done.stdout


def _settled_again(host: LabHost, **data: object) -> None:
    output = _deploy(host, **data)
    assert deploying.changed(output) == [], output


def _started(host: LabHost) -> str:
    return host.ssh(
        f"systemctl show --property=ExecMainStartTimestampMonotonic --value {lane.UNIT}"
    ).stdout.strip()


def test_a_changed_preset_is_read_without_a_restart_and_without_a_loss(host: LabHost, tmp_path: Path) -> None:
    container, before = lane.container_id(host), lane.models(host)
    assert before["tiny-a"] == "loaded"
    catalogue = tmp_path / "models.yaml"
    text = CATALOGUE.read_text()
    assert "small-c" in text
    catalogue.write_text(text.replace("top-k: 40", "top-k: 41"))
    output = _deploy(host, catalogue=str(catalogue))
    assert "router: presets" in deploying.changed(output)
    assert lane.container_id(host) == container
    assert lane.models(host)["tiny-a"] == "loaded"
    assert "top-k = 41" in host.ssh(f"cat {lane.PRESETS}").stdout
    assert "top-k" in lane.curl(host, "/models")[1]
    _settled_again(host, catalogue=str(catalogue))


def test_a_changed_unit_restarts_the_lane_once(host: LabHost) -> None:
    container, began = lane.container_id(host), _started(host)
    starts = lane.journal(host).count("accelerator RPC0 is there")
    output = _deploy(host, lane_pids_limit=2048)
    changed = deploying.changed(output)
    assert "router: llamacpp-playground.service" in changed
    assert "router: runs what is described" in changed
    assert lane.container_id(host) not in ("", container)
    assert _started(host) != began
    assert lane.journal(host).count("accelerator RPC0 is there") == starts + 1
    _settled_again(host, lane_pids_limit=2048)


def test_a_deploy_that_was_cut_between_file_and_restart_is_finished_by_the_next(host: LabHost) -> None:
    # What such a deploy leaves: the new unit on the disk, the old container running.
    _deploy(host)
    unit = f"/etc/systemd/system/{lane.UNIT}"
    container = lane.container_id(host)
    box = deploying.description(host)
    host.ssh(f"cp {unit} /tmp/unit && sed -i 's/{box.lane_hash}/0123456789abcdef/' {unit}", sudo=True)
    host.ssh(f"systemctl daemon-reload && systemctl restart {lane.UNIT} && cp /tmp/unit {unit}", sudo=True)
    lane.wait_answering(host)
    assert lane.container_id(host) != container
    changed = deploying.changed(_deploy(host))
    assert changed[0] == "router: runs what is described"
    label = f"docker inspect -f '{{{{index .Config.Labels \"gb10.lane\"}}}}' {lane.CONTAINER}"
    assert host.ssh(label, sudo=True).stdout.strip() == box.lane_hash
    _settled_again(host)


def test_presets_that_were_written_but_not_read_are_read(host: LabHost) -> None:
    host.ssh(f"echo stale > /run/{lane.CONTAINER}/presets.sha256", sudo=True)
    assert deploying.changed(_deploy(host)) == ["router: runs what is described"]
    _settled_again(host)


@pytest.mark.parametrize(
    ("damage", "operation"),
    [
        (f"echo '# by hand' >> /etc/systemd/system/{lane.UNIT}", f"router: {lane.UNIT}"),
        (f"sed -i 's/ctx-size = 2048/ctx-size = 512/' {lane.PRESETS}", "router: presets"),
        (f"chmod 644 {lane.KEY}", "router: API key"),
        (f"rm {lane.KEY}", "router: API key"),
        (f": > {lane.KEY}", "router: API key"),
        (f"systemctl disable {lane.UNIT}", "router: runs what is described"),
        (f"systemctl stop {lane.UNIT}", "router: runs what is described"),
        ("rm /usr/local/lib/gb10/gb10_gate.py", "image: gb10_gate.py"),
        ("rm /etc/apt/preferences.d/gb10-nvidia-container-toolkit", "toolkit: version pin"),
        ("rm /usr/share/keyrings/gb10-nvidia-container-toolkit.gpg", "toolkit: keyring"),
        ("rm /srv/models/standin/tiny-b-GGUF/tiny-b-F16.gguf", "models: files"),
        ("rm /var/run/cdi/nvidia.yaml", "toolkit: CDI device nvidia.com/gpu=all"),
        ("apt-get -q -y remove nvidia-container-toolkit", "toolkit: packages 1.19.1-1"),
        ('echo \'{"log-driver": "json-file"}\' > /etc/docker/daemon.json', "toolkit: daemon.json"),
    ],
)
def test_a_change_by_hand_is_put_right(host: LabHost, damage: str, operation: str) -> None:
    host.ssh(damage, sudo=True)
    output = _deploy(host)
    assert operation in deploying.changed(output)
    lane.wait_answering(host)
    assert lane.unit(host) == "active"
    assert host.ssh(f"systemctl is-enabled {lane.UNIT}").stdout.strip() == "enabled"
    _settled_again(host)


def test_a_deploy_does_not_meet_the_start_limit(host: LabHost) -> None:
    restarts = f"for i in 1 2 3 4 5 6; do systemctl restart {lane.UNIT} || exit 7; done"
    assert host.ssh(restarts, sudo=True, check=False).returncode == 7, "the limit is not there"
    _deploy(host, lane_pids_limit=1001)
    lane.wait_answering(host)


def test_a_new_key_takes_the_place_of_a_lost_one_also_in_the_router(host: LabHost) -> None:
    old = host.ssh(f"cat {lane.KEY}", sudo=True).stdout.strip()
    host.ssh(f"rm {lane.KEY}", sudo=True)
    _deploy(host)
    assert lane.curl(host, "/models", key=old)[0] == 401
    assert lane.curl(host, "/models")[0] == 200


def test_a_second_source_of_the_same_repository_is_switched_off(host: LabHost) -> None:
    # What the vendor's own instructions leave: the same repository, another keyring.
    keyring = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
    line = f"deb [signed-by={keyring}] http://10.213.103.1:8100/libnvidia-container/stable/deb/amd64 /"
    path = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
    host.ssh(f"cp /usr/share/keyrings/gb10-nvidia-container-toolkit.gpg {keyring}", sudo=True)
    host.ssh(f"printf '# from the vendor\\n{line}\\n' > {path}", sudo=True)
    assert host.ssh("apt-get -q update", sudo=True, check=False).returncode != 0, "the trap is not there"
    output = _deploy(host)
    # The file stays, with its lines as comments: the record knows it then.
    assert deploying.changed(output) == [
        "toolkit: no second source of the same repository",
        "record: this deploy",
    ]
    host.ssh("apt-get -q update", sudo=True)
    assert f"# taken over by gb10: {line}" in host.ssh(f"cat {path}").stdout
    assert host.ssh(f"cat /var/lib/gb10/taken-over{path}", sudo=True).stdout.endswith(f"\n{line}\n")
    _settled_again(host)


def test_a_key_server_that_is_down_is_one_line(host: LabHost) -> None:
    host.ssh("rm /usr/share/keyrings/gb10-nvidia-container-toolkit.gpg", sudo=True)
    done = deploying.deploy(host, data={"toolkit_key_url": "http://10.213.103.1:9/gpgkey"})
    assert done.returncode != 0
    assert "the key cannot be fetched from http://10.213.103.1:9/gpgkey" in done.stdout
    assert "Traceback" not in done.stdout
    _deploy(host)


def test_an_old_lane_that_was_revived_is_taken_out_again(host: LabHost) -> None:
    host.ssh(
        "cp -a /var/lib/gb10/retired/etc/systemd/system/vllm-lane-b.service /etc/systemd/system/", sudo=True
    )
    host.ssh("systemctl daemon-reload && systemctl enable --now vllm-lane-b.service", sudo=True)
    assert lane.unit(host, "vllm-lane-b.service") == "active"
    assert deploying.changed(_deploy(host)) == ["old lane out: vllm-lane-b.service"]
    assert lane.unit(host, "vllm-lane-b.service") == "inactive"
    _settled_again(host)
