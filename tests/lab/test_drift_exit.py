"""The exit status of `gb10 drift`: 0 clean, 2 drift, 1 could not tell, 130 interrupted. An unknown is never
clean."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gb10.drift.report import Report
from tests.lab import deploying, drifting, lane, paths
from tests.lab.host import LabHost

# In place of python3 on the host: what happens to one of the looks, and nothing else.
WRAPPER = """#!/bin/sh
case "$*" in *"Toolkit, apt sources and CDI"*) {what} ;; esac
exec /usr/bin/{python} "$@"
"""
Inventory = Callable[..., Path]


@pytest.fixture
def host(settled: LabHost) -> LabHost:
    lane.wait_answering(settled)
    return settled


@pytest.fixture
def inventory(host: LabHost, tmp_path: Path) -> Inventory:
    """An inventory of this host under other names, each with data of its own."""

    def write(**hosts: dict[str, Any]) -> Path:
        rows = {name: {"ssh_hostname": str(host.address), **data} for name, data in hosts.items()}
        path = tmp_path / "boxes.py"
        path.write_text(f"lab = {list(rows.items())!r}\n")
        return path

    return write


@contextmanager
def look_that(host: LabHost, what: str) -> Iterator[None]:
    """One look at the host goes wrong: ``what`` is the shell that runs in its place."""
    python = host.ssh("readlink /usr/bin/python3").stdout.strip()
    script = WRAPPER.format(what=what, python=python)
    put = "rm /usr/bin/python3; cat > /usr/bin/python3; chmod 755 /usr/bin/python3"
    host.ssh(put, sudo=True, stdin=script)
    try:
        yield
    finally:
        host.ssh(f"ln -sf {python} /usr/bin/python3", sudo=True)


@contextmanager
def held(host: LabHost) -> Iterator[None]:
    """Another deploy holds the host."""
    program = (paths.REPOSITORY / "files/gb10_lock.py").read_text()
    host.ssh("cat > /run/lock-program.py", sudo=True, stdin=program)
    line = "while sleep 1; do echo; done | python3 /run/lock-program.py ann@desk other"
    host.ssh(f"systemd-run --quiet --unit=other-deploy sh -c '{line}'", sudo=True)
    host.ssh("for i in $(seq 100); do grep -q ann /run/gb10-deploy.lock && break; sleep 0.1; done", sudo=True)
    try:
        yield
    finally:
        host.ssh("systemctl stop other-deploy", sudo=True)


def _unknown(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    report = Report.model_validate_json(done.stdout)
    said = [host.reason for host in report.hosts if host.state == "unknown"]
    assert report.exit == 1
    assert said
    for word in words:
        assert any(word in reason for reason in said), said
    assert all("\n" not in reason for reason in said)


def test_clean_and_drift(host: LabHost) -> None:
    assert drifting.run(host.name).returncode == 0
    assert drifting.run(host.name, "--quiet").stdout == ""
    host.ssh(f"chmod 644 {lane.KEY}", sudo=True)
    try:
        assert drifting.run(host.name).returncode == 2
        assert drifting.run(host.name, "--skip", "router").returncode == 0
        assert drifting.run(host.name, "--only", "toolkit,image").returncode == 0
        assert drifting.run(host.name, "--only", "router").returncode == 2
        said = drifting.run(host.name, "--explain", "router: API key")
        assert said.returncode == 2
        assert "by hand" in said.stdout
        assert "chmod 0600" in said.stdout
    finally:
        host.ssh(f"chmod 600 {lane.KEY}", sudo=True)


def test_a_host_that_does_not_answer(inventory: Inventory) -> None:
    path = inventory(away={"ssh_port": 2222})
    _unknown(drifting.run("--json", inventory=path), "Could not connect")


def test_a_wrong_host_key(host: LabHost, inventory: Inventory, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    known = tmp_path / "known_hosts"
    known.write_text(f"{host.address} {' '.join((tmp_path / 'other.pub').read_text().split()[:2])}\n")
    done = drifting.run("--json", inventory=inventory(other={"ssh_known_hosts_file": str(known)}))
    _unknown(done, "host key")
    assert done.stderr == ""


def test_a_look_that_fails(host: LabHost) -> None:
    with look_that(host, "echo no disk left >&2; exit 3"):
        _unknown(drifting.run(host.name, "--json"), "no disk left")
    with look_that(host, "echo nonsense; exit 0"):
        _unknown(drifting.run(host.name, "--json"), "JSON")
    assert drifting.run(host.name).returncode == 0


def test_a_part_of_the_look_that_fails(host: LabHost) -> None:
    host.ssh("mv /usr/bin/ss /usr/bin/ss.away", sudo=True)
    try:
        _unknown(drifting.run(host.name, "--json"), "ss -Hltnp: No such file")
    finally:
        host.ssh("mv /usr/bin/ss.away /usr/bin/ss", sudo=True)
    assert drifting.run(host.name).returncode == 0


def test_a_connection_that_is_cut_in_the_middle(host: LabHost) -> None:
    with look_that(host, "pkill -KILL -u lab sshd-session; sleep 5"):
        _unknown(drifting.run(host.name, "--json"), "connection")


def test_a_connection_that_falls_silent(host: LabHost) -> None:
    with look_that(host, "sleep 60"):
        _unknown(drifting.run(host.name, "--json", "--timeout", "4"), "no answer in 4 s")
        host.ssh("pkill -f 'sleep 60'", sudo=True, check=False)


def test_another_deploy_is_under_way(host: LabHost) -> None:
    with held(host):
        _unknown(drifting.run(host.name, "--json"), "the box is held by ann@desk, since 20")
    assert drifting.run(host.name).returncode == 0


def test_data_with_a_fault(inventory: Inventory) -> None:
    _unknown(drifting.run("--json", inventory=inventory(wrong={"lane_prot": 1})), "lane_prot")
    done = drifting.run("nobody", inventory=inventory(known={}))
    assert done.returncode == 1
    assert "no host 'nobody'" in done.stderr


def test_several_hosts(inventory: Inventory) -> None:
    drifted, away = {"lane_pids_limit": 2048}, {"ssh_port": 2222}
    path = inventory(first={}, second=drifted, third=away)
    cases = {("first",): 0, ("first", "second"): 2, ("second", "third"): 1, ("first", "third"): 1, (): 1}
    for names, status in cases.items():
        assert drifting.run(*names, inventory=path).returncode == status, names
    done = drifting.run("--json", inventory=path)
    states = {entry["host"]: entry["state"] for entry in json.loads(done.stdout)["hosts"]}
    assert states == {"first": "clean", "second": "drift", "third": "unknown"}


def test_an_interrupt(host: LabHost) -> None:
    with look_that(host, "touch /tmp/begun; sleep 30"):
        command = [*drifting.GB10, "drift", host.name, "--inventory", str(deploying.INVENTORY)]
        running = subprocess.Popen(
            command, cwd=paths.REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        host.ssh("for i in $(seq 300); do [ -e /tmp/begun ] && break; sleep 0.1; done", sudo=True)
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=20)
    assert running.returncode == 130
    assert output == ""
    assert "Interrupted" in errors
    assert "Traceback" not in errors
