"""Long work on the host that does not hang on our connection.

A job runs in a transient systemd unit and writes its output and exit status into its folder. Whoever
deploys follows the output. A dropped connection does not end the job; a second run joins the one that
is under way. A job that a power cut ended has no exit status and no unit: the next run starts it again.
"""

from __future__ import annotations

import base64
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import gevent
from paramiko import SSHException
from pyinfra import logger
from pyinfra.api.command import FunctionCommand, QuoteString, StringCommand
from pyinfra.api.exceptions import ConnectError, PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.state import State

from gb10.operations import deploy_lock
from gb10.printable import printable

POLL_SECONDS = 1.0
# A router that restarts, a laptop that changes networks.
RECONNECT_SECONDS = 600  # a box that boots again is back within minutes
PAUSE_SECONDS = 5
QUIET_SECONDS = 5.0
CHUNK_BYTES = 65536
TAIL_LINES = 1000  # the words of what failed may stand before much of what ran beside it


@dataclass(frozen=True)
class Job:
    """One piece of work: ``unit`` names it on the host, ``folder`` keeps ``job.log`` and ``job.status``.

    ``again`` says how to join it, or to go on after it failed.
    """

    title: str
    unit: str
    folder: str
    command: tuple[str, ...]
    again: str = "run the deploy again"

    @property
    def log(self) -> str:
        return f"{self.folder}/job.log"

    @property
    def status(self) -> str:
        return f"{self.folder}/job.status"


class Reader(Protocol):
    """Makes sense of a job's output for people."""

    def progress(self, lines: list[str]) -> str:
        """Where the job stands after these lines too; empty while that is not known."""

    def failure(self, lines: list[str]) -> list[str]:
        """What to show of the job's last lines when it failed."""


def start_command(job: Job) -> StringCommand:
    """Start the job unless it runs already. systemd itself settles a race: a unit's name is free or not."""
    work = " ".join(shlex.quote(part) for part in job.command)
    wrapped = (
        # A status that a full disk cut off must not get its name.
        f"{work} > {job.log} 2>&1 < /dev/null; echo $? > {job.status}.new && mv {job.status}.new {job.status}"
    )
    systemd_run = shlex.join(
        ["systemd-run", "--quiet", "--collect", f"--unit={job.unit}", "--property=TimeoutStopSec=10",
         f"--description=gb10: {job.title}", "sh", "-c", wrapped]
    )  # fmt: skip
    return StringCommand(
        "sh",
        "-c",
        QuoteString(
            f"systemctl is-active --quiet {job.unit} && {{ echo joined; exit 0; }}; "
            f"mkdir -p {job.folder} && rm -f {job.status} && : > {job.log} && "
            f"{{ {systemd_run} || systemctl is-active --quiet {job.unit}; }} && echo started"
        ),
    )


def look_command(job: Job, offset: int) -> StringCommand:
    """Exit status (or nothing), unit state and the output after ``offset`` bytes."""
    script = (
        # The unit's state first: a status that is there afterwards is then final.
        f"systemctl is-active {job.unit}; status=$(cat {job.status} 2>/dev/null); echo ${{status:-none}}; "
        f"tail -c +{offset + 1} {job.log} 2>/dev/null | head -c {CHUNK_BYTES} | base64 -w0"
    )
    return StringCommand("sh", "-c", QuoteString(script))


def commands(job: Job, reader: Reader) -> Iterator[FunctionCommand]:
    """The command of an operation that runs ``job`` and follows it to its end."""
    yield FunctionCommand(follow, (job, reader), {})


def follow(state: State, host: Host, job: Job, reader: Reader) -> bool:  # noqa: ARG001  (pyinfra passes both)
    """Start or join ``job`` and show its progress until it ends; True when it ended well."""
    try:
        return _follow(host, job, reader)
    except PyinfraError as error:
        host.log_styled(str(error), fg="red", log_func=logger.error)
        return False


def _follow(host: Host, job: Job, reader: Reader) -> bool:
    started = time.monotonic()
    word = _patiently(host, job, start_command(job))[-1]
    host.log(
        f"{job.title}: {'under way already, joining it' if word == 'joined' else 'started'} ({job.unit})"
    )
    offset, rest, last, spoke = 0, b"", "", time.monotonic()
    while True:
        active, status, output = _look(host, job, offset)
        offset += len(output)
        lines, rest = _whole_lines(rest + output)
        last = [last, *lines][-1]
        said = reader.progress(lines)
        ended = active not in ("active", "activating", "deactivating", "reloading")
        if ended and len(output) < CHUNK_BYTES:
            return _report_end(host, job, reader, status, last, time.monotonic() - started)
        if time.monotonic() - spoke >= QUIET_SECONDS:
            host.log(
                f"{job.title}: {printable(said) or 'still running'} ({_clock(time.monotonic() - started)})"
            )
            spoke = time.monotonic()
        if len(output) < CHUNK_BYTES:
            gevent.sleep(POLL_SECONDS)


def _look(host: Host, job: Job, offset: int) -> tuple[str, str, bytes]:
    lines = _patiently(host, job, look_command(job, offset))
    return lines[0], lines[1], base64.b64decode("".join(lines[2:]))


def _whole_lines(output: bytes) -> tuple[list[str], bytes]:
    whole, newline, rest = output.rpartition(b"\n")
    return (whole + newline).decode(errors="replace").splitlines(), rest


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _report_end(host: Host, job: Job, reader: Reader, status: str, last: str, seconds: float) -> bool:
    if status == "0":
        # A program of ours ends with what it made of it.
        made = f": {printable(last.removeprefix('gb10: '))}" if last.startswith("gb10: ") else ""
        host.log(f"{job.title}: done in {_clock(seconds)}{made}")
        return True
    what = "was ended from outside" if status == "none" else f"failed with exit status {status}"
    host.log_styled(f"{job.title} {what}; its output is in {job.log}:", fg="red", log_func=logger.error)
    tail = StringCommand("tail", "-n", str(TAIL_LINES), QuoteString(job.log))
    for line in reader.failure(_patiently(host, job, tail)):
        host.log(f"  {printable(line)}", log_func=logger.error)
    return False


def _patiently(host: Host, job: Job, command: StringCommand) -> list[str]:
    """Standard output lines of ``command``, over a new connection if the old one is gone."""
    deadline = time.monotonic() + RECONNECT_SECONDS
    while True:
        try:
            if not _is_connected(host):
                raise ConnectionError("the box is away")
            ok, output = host.run_shell_command(command, _sudo=True, _timeout=60)
            if ok:
                return list(output.stdout_lines)
            if not _is_connected(host):
                raise ConnectionError("the connection ended")
            raise PyinfraError(f"{job.title}: {output.stderr or 'the host refused the command'}")
        except (SSHException, OSError, EOFError, TimeoutError, ConnectError, gevent.Timeout) as error:
            if time.monotonic() >= deadline:
                raise PyinfraError(
                    f"{job.title}: no connection for {RECONNECT_SECONDS} s ({error}). It goes on in unit "
                    f"{job.unit} on the host: {job.again} to join it"
                ) from None
            left = deadline - time.monotonic()
            host.log(
                f"{job.title}: connection lost ({error}), it goes on there; connecting again "
                f"(for {_clock(left)} more)",
                logger.warning,
            )
            gevent.sleep(PAUSE_SECONDS)
            _reconnect(host)


def _is_connected(host: Host) -> bool:
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client else None
    # Connectors without a transport (a local one) have no connection to lose.
    return client is None or bool(transport and transport.is_active())


def _reconnect(host: Host) -> None:
    client = getattr(host.connector, "client", None)
    if client is not None:
        client.close()
    try:
        host.disconnect()
        host.connect(show_errors=False, raise_exceptions=True)
        deploy_lock.again(host)
    except (ConnectError, SSHException, OSError, EOFError):
        return  # the caller tries again until its time is over
