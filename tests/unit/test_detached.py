"""Long work on a host: started, joined, followed, lost and found again, failed, ended from outside."""

from __future__ import annotations

import base64
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paramiko import SSHException
from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import ConnectError

from gb10.operations import detached
from gb10.operations.detached import Job, follow, look_command, start_command

JOB = Job(
    "build of x:1", "gb10-image-1.service", "/var/lib/gb10/image/1", ("docker", "build", "--tag", "x:1", ".")
)


class Words:
    """A reader that notes what it is given."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def progress(self, lines: list[str]) -> str:
        self.read += lines
        return self.read[-1] if self.read else ""

    def failure(self, lines: list[str]) -> list[str]:
        return [line for line in lines if "error" in line]


class Script:
    """A host that answers each command with the next step: lines, an exception, or a failure (None)."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.said: list[str] = []
        self.ran: list[str] = []
        self.connects = 0
        self.active = True
        transport = SimpleNamespace(is_active=lambda: self.active)
        self.connector = SimpleNamespace(
            client=SimpleNamespace(get_transport=lambda: transport, close=lambda: None)
        )

    def run_shell_command(self, command: Any, **arguments: Any) -> tuple[bool, Any]:
        assert arguments["_sudo"] is True
        assert arguments["_timeout"] > 0
        self.ran.append(str(command))
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        if step is None:
            return False, SimpleNamespace(stdout_lines=[], stderr="sudo: a password is required")
        return True, SimpleNamespace(stdout_lines=step, stderr="")

    def log(self, text: str, *_: Any, **__: Any) -> None:
        self.said.append(text)

    log_styled = log

    def disconnect(self) -> None: ...

    def connect(self, **_: Any) -> None:
        self.connects += 1
        self.active = True
        if self.steps and isinstance(self.steps[0], ConnectError):
            raise self.steps.pop(0)


def look(active: str, status: str, output: str | bytes = b"") -> list[str]:
    raw = output.encode() if isinstance(output, str) else output
    return [active, status, *([base64.b64encode(raw).decode()] if raw else [])]


class Clock:
    """Time that passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(detached, "time", clock)
    monkeypatch.setattr(detached.gevent, "sleep", clock.sleep)
    return clock


def run(*steps: Any) -> tuple[bool, Script, Words]:
    host, reader = Script(*steps), Words()
    good = follow(None, host, JOB, reader)  # type: ignore[arg-type]
    assert host.steps == []
    return good, host, reader


def test_started_and_done() -> None:
    good, host, reader = run(["started"], look("active", "none", "one\ntw"), look("active", "none", "o\n"),
                             look("inactive", "0", "three\n"))  # fmt: skip
    assert good
    assert host.said[0] == "build of x:1: started (gb10-image-1.service)"
    assert host.said[-1].startswith("build of x:1: done in ")
    assert reader.read == ["one", "two", "three"]


def test_what_a_program_of_ours_made_of_it_is_said() -> None:
    _, host, _ = run(["started"], look("inactive", "0", "one\ngb10: x:1 is proven: 9 MB\n"))
    assert host.said[-1] == "build of x:1: done in 0:00: x:1 is proven: 9 MB"


def test_done_before_the_first_look() -> None:
    good, _, reader = run(["started"], look("inactive", "0", "all\n"))
    assert good
    assert reader.read == ["all"]


def test_joined() -> None:
    good, host, _ = run(["joined"], look("inactive", "0"))
    assert good
    assert host.said[0] == "build of x:1: under way already, joining it (gb10-image-1.service)"


def test_each_look_begins_where_the_last_one_ended() -> None:
    _, host, _ = run(
        ["started"], look("active", "none", "12345"), look("active", "none"), look("inactive", "0", "é\n")
    )
    offsets = [command.partition("tail -c +")[2].split()[0] for command in host.ran[1:]]
    assert offsets == ["1", "6", "6"]


def test_progress_is_said_from_time_to_time_and_not_at_each_look(clock: Clock) -> None:
    looks = [look("active", "none", f"step {number}\n") for number in range(20)]
    _, host, _ = run(["started"], *looks, look("inactive", "0"))
    progress = [line for line in host.said if ": step " in line]
    assert 2 <= len(progress) <= 5
    assert progress[0] == "build of x:1: step 5 (0:05)"


def test_silence_is_said_too() -> None:
    _, host, _ = run(["started"], *[look("active", "none")] * 7, look("inactive", "0"))
    assert "build of x:1: still running (0:05)" in host.said


def test_much_output_is_read_to_its_end_also_after_the_job(clock: Clock) -> None:
    chunk = b"x" * (detached.CHUNK_BYTES - 1) + b"\n"
    before = clock.now
    good, _, reader = run(
        ["started"],
        look("inactive", "0", chunk),
        look("inactive", "0", chunk),
        look("inactive", "0", "end\n"),
    )
    assert good
    assert reader.read[-1] == "end"
    assert clock.now == before  # no waiting while there is more


def test_output_that_is_no_text() -> None:
    good, _, reader = run(["started"], look("inactive", "0", b"\xff\xfe\x00ok\n"))
    assert good
    assert reader.read[0].endswith("ok")


def test_failure_shows_the_telling_lines() -> None:
    good, host, _ = run(["started"], look("inactive", "1", "x\n"), ["fine", "an error here", "more"])
    assert not good
    assert host.said[-2].startswith("build of x:1 failed with exit status 1; its output is in /var/lib/gb10/")
    assert host.said[-1] == "  an error here"


def test_ended_from_outside() -> None:
    good, host, _ = run(["started"], look("active", "none", "x\n"), look("inactive", "none"), ["an error"])
    assert not good
    assert "build of x:1 was ended from outside; its output is in" in host.said[-2]


def test_a_unit_that_failed_has_ended() -> None:
    assert not run(["started"], look("failed", "none"), [])[0]


@pytest.mark.parametrize(
    "lost", [SSHException("gone"), OSError("reset"), EOFError(), TimeoutError("slow"), ConnectError("no")]
)
def test_a_lost_connection_does_not_end_the_job(lost: Exception) -> None:
    good, host, reader = run(
        ["started"], look("active", "none", "one\n"), lost, look("inactive", "0", "two\n")
    )
    assert good
    assert host.connects == 1
    assert reader.read == ["one", "two"]
    assert any("connection lost" in line and "it goes on there" in line for line in host.said)


def test_a_host_that_is_away_for_a_while() -> None:
    good, host, _ = run(
        ["started"], OSError("reset"), ConnectError("refused"), OSError("still"), look("inactive", "0")
    )
    assert good
    assert host.connects == 2


def test_an_answer_that_was_cut_off_is_a_lost_connection() -> None:
    host, reader = Script(["started"], None, look("inactive", "0")), Words()
    ran = host.run_shell_command

    def cut(command: Any, **arguments: Any) -> tuple[bool, Any]:
        if len(host.ran) == 1:
            host.active = False
        return ran(command, **arguments)

    host.run_shell_command = cut  # type: ignore[method-assign]
    assert follow(None, host, JOB, reader)  # type: ignore[arg-type]
    assert host.connects == 1


def test_a_host_that_stays_away_is_given_up_with_the_way_on(clock: Clock) -> None:
    host = Script(["started"], *[OSError("no route")] * 1000)
    assert not follow(None, host, JOB, Words())  # type: ignore[arg-type]
    assert clock.now - 1000 < detached.RECONNECT_SECONDS + 10
    assert (
        "goes on in unit gb10-image-1.service on the host: run the deploy again to join it" in host.said[-1]
    )


def test_a_host_that_refuses_says_why_at_once(clock: Clock) -> None:
    good, host, _ = run(None)
    assert not good
    assert host.said == ["build of x:1: sudo: a password is required"]
    assert clock.now == 1000


# -- the shell of it, with stand-ins for systemd ---------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(
        "it's a test",
        "gb10-test.service",
        str(tmp_path / "job"),
        ("sh", "-c", 'echo "it\'s $1"; exit 3', "-", "a b"),
    )


def shell(command: Any, folder: Path, *, active: bool) -> subprocess.CompletedProcess[str]:
    """Run a command with a systemctl that says ``active`` and a systemd-run that runs at once."""
    stand_ins = folder / "bin"
    stand_ins.mkdir(exist_ok=True)
    word, status = ("active", 0) if active else ("inactive", 3)
    scripts = {
        "systemctl": f"[ $2 = --quiet ] || echo {word}; exit {status}",
        "systemd-run": 'while [ "${1#--}" != "$1" ]; do shift; done; "$@"',
    }
    for name, script in scripts.items():
        (stand_ins / name).write_text(f"#!/bin/sh\n{script}\n")
        (stand_ins / name).chmod(0o755)
    return subprocess.run(
        ["sh", "-c", command.get_raw_value()], env={"PATH": f"{stand_ins}:/usr/bin:/bin"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_job_leaves_its_output_and_its_exit_status(job: Job, tmp_path: Path) -> None:
    started = shell(start_command(job), tmp_path, active=False)
    assert (started.stdout, started.returncode) == ("started\n", 0)
    assert Path(job.log).read_text() == "it's a b\n"
    assert Path(job.status).read_text() == "3\n"
    looked = shell(look_command(job, 5), tmp_path, active=False).stdout.splitlines()
    assert looked[:2] == ["inactive", "3"]
    assert base64.b64decode(looked[2]) == b"a b\n"


def test_a_job_under_way_is_joined_and_not_started(job: Job, tmp_path: Path) -> None:
    joined = shell(start_command(job), tmp_path, active=True)
    assert joined.stdout == "joined\n"
    assert not Path(job.folder).exists()


def test_what_an_earlier_job_left_does_not_count(job: Job, tmp_path: Path) -> None:
    Path(job.folder).mkdir()
    Path(job.status).write_text("0\n")
    Path(job.log).write_text("old output\n")
    # systemd-run comes back before the job itself has done anything.
    waiting = str(start_command(job).get_raw_value()).replace("systemd-run --quiet", "true systemd-run")
    shell(StringCommand(waiting), tmp_path, active=False)
    assert not Path(job.status).exists()
    assert Path(job.log).read_text() == ""


def test_a_status_that_a_full_disk_cut_off_is_none(job: Job, tmp_path: Path) -> None:
    Path(job.folder).mkdir()
    Path(job.status).write_text("")
    assert shell(look_command(job, 0), tmp_path, active=False).stdout.splitlines() == ["inactive", "none"]
    Path(job.status).unlink()
    # /dev/full takes the redirection and refuses the text.
    Path(f"{job.status}.new").symlink_to("/dev/full")
    shell(start_command(job), tmp_path, active=False)
    assert not Path(job.status).exists()


def test_a_look_where_nothing_is_yet(job: Job, tmp_path: Path) -> None:
    assert shell(look_command(job, 0), tmp_path, active=True).stdout.splitlines() == ["active", "none"]


def test_one_look_is_bounded(job: Job, tmp_path: Path) -> None:
    Path(job.folder).mkdir()
    Path(job.log).write_bytes(b"x" * (3 * detached.CHUNK_BYTES))
    looked = shell(look_command(job, 0), tmp_path, active=True).stdout.splitlines()
    assert len(base64.b64decode(looked[2])) == detached.CHUNK_BYTES


def test_the_unit_leaves_nothing_behind_in_systemd() -> None:
    words = shlex.split(
        shlex.split(str(start_command(JOB)))[2].partition("systemd-run")[2].partition("||")[0]
    )
    assert "--collect" in words
    assert "--unit=gb10-image-1.service" in words


def test_a_box_that_is_away_for_a_while_is_waited_for() -> None:
    """After a try to connect that failed, paramiko's client has no transport: nothing can be asked of it."""
    host, reader = Script(["started"], SSHException("gone"), look("inactive", "0")), Words()
    transport, tries = host.connector.client.get_transport(), []

    def connect(**_: Any) -> None:
        tries.append(1)
        away = len(tries) < 4
        host.connector.client.get_transport = lambda: None if away else transport
        if away:
            raise ConnectError("Could not connect")

    host.connect = connect  # type: ignore[method-assign]
    assert follow(None, host, JOB, reader)  # type: ignore[arg-type]
    assert len(tries) == 4
    assert any("the box is away" in line and "more)" in line for line in host.said)
