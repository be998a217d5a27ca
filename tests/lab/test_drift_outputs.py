"""What `gb10 drift` says, puts right when it is told to, and what the box finds by itself at night."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gb10.drift.report import Report
from tests.lab import deploying, drifting, lane, paths
from tests.lab.drift_changes import LANE, PRESETS, UNIT, by_hand_container
from tests.lab.host import LabHost

SECRETS = {
    "in the data": "s3cr3t-of-the-data-0123456789",
    "in a drop-in": "s3cr3t-of-a-drop-in-0123456789",
    "in a container": "s3cr3t-of-a-container-0123456789",
    "hub token": "hf_" + "Qx7" * 12,
}
EVERY_OUTPUT = (
    (),
    ("--json",),
    ("--diff",),
    ("--json", "--diff"),
    ("--quiet",),
    ("--watch-mode",),
    ("--explain", f"router: {LANE}.service"),
    ("--explain", "router: presets"),
    ("--explain", "router: container command"),
)


@pytest.fixture
def host(settled: LabHost) -> LabHost:
    lane.wait_answering(settled)
    return settled


@pytest.fixture
def inventory(host: LabHost, tmp_path: Path) -> Path:
    """This host with a secret in its data, and a folder of its own for what --watch-mode remembers."""
    data = {"ssh_hostname": str(host.address), "lane_environment": {"MY_TOKEN": SECRETS["in the data"]}}
    path = tmp_path / "boxes.py"
    path.write_text(f"lab = [({host.name!r}, {data!r})]\n")
    return path


def test_no_secret_is_in_any_output(host: LabHost, inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(inventory.parent))
    key = (host.root / lane.KEY.lstrip("/")).read_text().strip()
    token, named = SECRETS["hub token"], SECRETS["in a drop-in"]
    # As somebody does who tries things: the key in the unit, a token in the presets, a container with a
    # secret.
    host.ssh(
        f"mkdir -p {UNIT}.d && cat > {UNIT}.d/x.conf",
        sudo=True,
        stdin=f"[Service]\nEnvironment=A_SECRET={named}\n",
    )
    host.ssh(f"cat >> {UNIT}", sudo=True, stdin=f"# --api-key {key}\n# bare {key} too\n")
    host.ssh(f"cat >> {PRESETS}", sudo=True, stdin=f"; HF_TOKEN={token}\n")
    host.ssh("systemctl daemon-reload", sudo=True)
    inside = SECRETS["in a container"]
    argv = f"-c 'sleep 1d' mine --api-key {inside} --header 'Authorization: Basic {inside}'"
    host.ssh(by_hand_container(f"--entrypoint sh --env DB_PASS={inside}", command=argv), sudo=True)
    assert inside in host.ssh(f"docker inspect {LANE}", sudo=True).stdout
    secrets = [key, *SECRETS.values()]
    for options in EVERY_OUTPUT:
        done = drifting.run(host.name, *options, inventory=inventory)
        assert done.returncode == 2, (options, done.stdout, done.stderr)
        assert done.stdout, options
        for secret in secrets:
            assert secret not in done.stdout + done.stderr, options
    # The nightly look has its own.
    host.ssh("systemctl start gb10-drift.service", sudo=True)
    said = host.ssh(
        "cat /var/lib/gb10/drift.json /var/lib/gb10/deployed.json; journalctl -u gb10-drift", sudo=True
    )
    for secret in secrets:
        assert secret not in said.stdout
    done = deploying.deploy(host)
    assert done.returncode == 0, done.stdout
    drifting.assert_clean(host)


def test_the_json_fits_its_schema(host: LabHost) -> None:
    host.ssh(f"chmod 600 {PRESETS}", sudo=True)
    done = drifting.run(host.name, "--json", "--diff")
    report = Report.model_validate_json(done.stdout)
    assert report.exit == done.returncode == 2
    (item,) = report.hosts[0].items
    assert (item.id, item.should.split()[0], item.is_.split()[0]) == ("router: presets", "0644", "0600")
    assert report.hosts[0].remote_commands <= 12
    assert report.hosts[0].deployed is not None
    host.ssh(f"chmod 644 {PRESETS}", sudo=True)


def test_cron_hears_of_a_change_once(host: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert drifting.run(host.name, "--watch-mode").stdout == ""
    host.ssh(f"chmod 600 {PRESETS}", sudo=True)
    said = drifting.run(host.name, "--watch-mode")
    assert said.stdout.startswith(f"{host.name}: router: presets: should be 0644")
    again = drifting.run(host.name, "--watch-mode")
    assert (again.returncode, again.stdout) == (2, "")
    host.ssh(f"chmod 644 {PRESETS}", sudo=True)
    assert drifting.run(host.name, "--watch-mode").stdout == f"{host.name}: clean again\n"


def test_fix_deploys_the_stages_that_drifted(host: LabHost) -> None:
    host.ssh(f"chmod 600 {PRESETS}; rm /etc/apt/preferences.d/gb10-nvidia-container-toolkit", sudo=True)
    host.ssh("iptables -A INPUT -p tcp --dport 9 -j ACCEPT", sudo=True)
    done = drifting.run(host.name, "--fix", "--only", "router", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    ran = deploying.outcomes(done.stdout + done.stderr)
    assert {name.partition(":")[0] for name in ran} == {"preflight", "router", "verify", "history", "record"}
    assert f"{host.name}: deploy of router" in done.stdout
    # What was left out is still there, and the record does not hide it.
    status, report = drifting.look(host, "--only", "toolkit")
    assert status == 2
    assert drifting.items(report)["toolkit: version pin"] == "by-hand"
    assert drifting.items(drifting.look(host, "--only", "box")[1]) == {"box: firewall": "by-hand"}
    asked = drifting.run(host.name, "--fix")  # nobody there to say yes
    assert asked.returncode not in (0, 2)
    assert drifting.look(host)[0] == 2
    assert drifting.run(host.name, "--fix", "--yes").returncode == 0
    drifting.assert_clean(host)


def test_a_deploy_of_a_stage_that_is_none(host: LabHost) -> None:
    done = deploying.deploy(host, env={"GB10_STAGES": "ruoter"})
    assert done.returncode != 0
    assert "there is no stage ruoter" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_deep_look_finds_bytes_that_went_bad(host: LabHost) -> None:
    path = "/srv/models/standin/tiny-b-GGUF/tiny-b-F16.gguf"
    # The same size, time and inode: as a disk does it.
    write = f"printf x | dd of={path} bs=1 seek=900 conv=notrunc status=none"
    bad = f"touch -r {path} /tmp/time; {write}; touch -r /tmp/time {path}"
    host.ssh(f"cp -a {path} /root/good", sudo=True)
    host.ssh(bad, sudo=True)
    drifting.assert_clean(host)
    status, report = drifting.look(host, "--deep")
    assert status == 2
    assert f"models: {path}" in drifting.items(report)
    host.ssh(f"rm {path}", sudo=True)
    assert deploying.deploy(host).returncode == 0
    status, report = drifting.look(host, "--deep")
    assert (status, report["items"]) == (0, [])


def test_the_box_looks_at_itself_at_night(host: LabHost) -> None:
    hook = ["sh", "-c", "cat >> /root/told; echo >> /root/told"]
    data = {"notify_command": hook}
    assert deploying.deploy(host, data=data).returncode == 0
    start = "systemctl start gb10-drift.service"
    result = "cat /var/lib/gb10/drift.json"
    # Whatever an earlier night has found: it would be news that it is gone.
    host.ssh(f"rm -f /var/lib/gb10/drift.json; {start}", sudo=True)
    assert json.loads(host.ssh(result, sudo=True).stdout)["state"] == "clean"
    assert host.ssh("cat /root/told", sudo=True, check=False).stdout == ""
    host.ssh(f"chmod 644 {lane.KEY}; echo >> {PRESETS}", sudo=True)
    host.ssh(f"{start}; {start}", sudo=True)
    found = json.loads(host.ssh(result, sudo=True).stdout)
    assert [item["item"] for item in found["items"]] == ["router: API key", "router: presets"]
    assert {item["item"] for item in found["items"]} <= drifting.items(drifting.look(host)[1]).keys()
    # Nobody else may read it, and its hour is not missed by a box that is off.
    assert host.ssh("stat -c '%a %U' /var/lib/gb10/drift.json").stdout.strip() == "640 root"
    assert "Persistent=yes" in host.ssh("systemctl show -p Persistent gb10-drift.timer").stdout
    told = [json.loads(line) for line in host.ssh("cat /root/told", sudo=True).stdout.splitlines() if line]
    assert [(one["state"], len(one["new"])) for one in told] == [("drift", 2)]
    assert "gb10-drift.timer" in host.ssh("systemctl list-timers --no-legend").stdout
    assert deploying.deploy(host).returncode == 0
    host.ssh(start, sudo=True)
    assert json.loads(host.ssh(result, sudo=True).stdout)["state"] == "clean"
    assert host.ssh("systemctl is-system-running").stdout.strip() == "running"


def test_a_night_that_cannot_tell_is_never_green(host: LabHost) -> None:
    record, start = "/var/lib/gb10/deployed.json", "systemctl start gb10-drift.service"
    host.ssh(f"{start} && cp {record} /root/kept && truncate -s 100 {record}", sudo=True)
    assert host.ssh(start, sudo=True, check=False).returncode != 0
    assert json.loads(host.ssh("cat /var/lib/gb10/drift.json", sudo=True).stdout)["state"] == "unknown"
    assert "could not tell" in deploying.gb10(host, "status").stdout
    host.ssh(f"cp -p /root/kept {record}", sudo=True)
    assert set(drifting.items(drifting.look(host)[1])) == {"record: gb10-drift.service"}
    host.ssh(start, sudo=True)
    drifting.assert_clean(host)
    assert "could not tell" not in deploying.gb10(host, "status").stdout
    # An old "clean" is none; that the box has only just started is no excuse here.
    old = "touch -d '3 days ago' /var/lib/gb10/drift.json"
    host.ssh(old, sudo=True)
    assert "it has not looked at itself for 72 h" in deploying.gb10(host, "status").stdout
    host.ssh(start, sudo=True)


def test_each_file_has_its_own_diff(host: LabHost) -> None:
    paths = ("/usr/local/lib/gb10/gb10_watch.py", "/etc/systemd/system/gb10-watch-hand.socket")
    for path in paths:
        host.ssh(f"echo '# mine' >> {path}", sudo=True)
    _, report = drifting.look(host, "--diff")
    (item,) = (item for item in report["items"] if item["id"] == "watch: programs, settings and units")
    assert [f"--- {path} (box)" in item["diff"] for path in paths] == [True, True]
    changed = [
        line for line in item["diff"].splitlines() if line[:1] in "+-" and line[:3] not in ("---", "+++")
    ]
    assert changed == ["-# mine", "-# mine"]
    assert deploying.deploy(host).returncode == 0
    drifting.assert_clean(host)


def test_an_entry_that_is_ignored_until_a_day(host: LabHost, tmp_path: Path) -> None:
    entry = {"item": "router: presets", "reason": "a trial", "owner": "ann", "expires": "2999-01-01"}
    data = {"ssh_hostname": str(host.address), "drift_ignore": [entry]}
    path = tmp_path / "boxes.py"
    host.ssh(f"chmod 600 {PRESETS}", sudo=True)
    path.write_text(f"lab = [({host.name!r}, {data!r})]\n")
    done = drifting.run("--json", "--only", "router", inventory=path)
    (report,) = json.loads(done.stdout)["hosts"]
    assert (done.returncode, [one["item"]["id"] for one in report["ignored"]]) == (0, ["router: presets"])
    data["drift_ignore"] = [{**entry, "expires": "2020-01-01"}]
    path.write_text(f"lab = [({host.name!r}, {data!r})]\n")
    done = drifting.run("--json", inventory=path)
    (report,) = json.loads(done.stdout)["hosts"]
    assert done.returncode == 2
    assert {"router: presets", "box: ignored router: presets"} <= drifting.items(report).keys()
    host.ssh(f"chmod 644 {PRESETS}", sudo=True)


def test_a_pipe_gets_whole_lines(host: LabHost) -> None:
    done = subprocess.run(
        [*drifting.GB10, "drift", host.name, "--inventory", str(deploying.INVENTORY)],
        cwd=paths.REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "40"},
    )
    assert "\x1b" not in done.stdout
    assert done.stdout.count("\n") == 1
