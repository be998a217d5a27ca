"""Where answers run: a transient unit on the box that sees nothing, reaches nothing, and is over soon.

A model's answer is a program that nobody has read. It runs as a user that exists only for it, in a root of
its own that holds the system's programs (read-only) and a small folder to work in, without a network, a
capability or a device.
Limits are set twice: for the unit's cgroup, and for the process, which also works where the kernel does not
hand the controllers out.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from pyinfra.api.exceptions import PyinfraError

from gb10.bench.result import Verdict
from gb10.rendering import TOP

Run = Callable[[Sequence[str], str, float], tuple[int, str, str]]
"""Runs a command as root with an input and a limit in seconds: status, output, error output."""

ROOT = "/run/gb10-sandbox"
WORK = "/work"  # inside it
UNITS = "gb10-sandbox-"
GRACE_SECONDS = 5  # between the program's own limit and the unit's end
START_SECONDS = 60
SYSTEMD_FAILED = range(200, 246)  # exit statuses of systemd itself: see systemd.exec(5)

PROPERTIES = (
    # Nobody, nowhere.
    "DynamicUser=yes",
    f"RootDirectory={ROOT}",
    "MountAPIVFS=yes",
    "BindReadOnlyPaths=/usr -/bin -/lib -/lib64 -/etc/ld.so.cache",
    # A dynamic user is given a /tmp of the host's, without a limit.
    "InaccessiblePaths=+/tmp +/var/tmp",
    f"TemporaryFileSystem={WORK}:rw,size=16m,nr_inodes=2000,mode=1777 /dev/shm:ro",
    f"WorkingDirectory={WORK}",
    f"Environment=TMPDIR={WORK} HOME={WORK}",
    "UMask=0077",
    # No way out, and nothing to talk to.
    "PrivateNetwork=yes",
    "RestrictAddressFamilies=AF_UNIX",
    "PrivateDevices=yes",
    "PrivateIPC=yes",
    "ProtectProc=invisible",
    "ProcSubset=pid",
    "KeyringMode=private",
    # No way up.
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged @resources @mount",
    "SystemCallErrorNumber=EPERM",
    # Not much of anything.
    "MemoryMax=512M",
    "MemorySwapMax=0",
    "TasksMax=64",
    "LimitAS=1G",
    "LimitNPROC=64",
    "LimitNOFILE=64",
    "LimitFSIZE=8M",
    "LimitCORE=0",
    "LimitMEMLOCK=0",
    "LimitMSGQUEUE=0",
    "Nice=10",
    "OOMScoreAdjust=1000",
    # And then it is over, with all that it started.
    "KillSignal=SIGKILL",
    "TimeoutStopSec=3",
)


@dataclass(frozen=True)
class Job:
    """A program, the tests that must pass after it, and how many seconds both may take together."""

    code: str
    tests: str
    seconds: float


@cache
def program() -> str:
    """The program that judges in the sandbox; it is sent along, so it need not be on the box."""
    return (TOP / "files" / "gb10_sandbox.py").read_text()


def command(name: str, seconds: float) -> list[str]:
    """The command that runs one job, given on its input, in a unit called ``name``."""
    limit = int(seconds + GRACE_SECONDS)
    line = [
        "systemd-run",
        "--quiet",
        "--pipe",
        "--wait",
        "--collect",
        "--service-type=exec",
        f"--unit={name}",
    ]
    for each in (*PROPERTIES, f"RuntimeMaxSec={limit}", f"LimitCPU={limit}"):
        line += ["--property", each]
    # systemd reads a $ in a command as a variable: the program has none (a test sees to it).
    make = 'mkdir -p "$0/tmp" "$0/var/tmp" && exec "$@"'  # what is to be hidden must be there
    return ["sh", "-c", make, ROOT, *line, "--", "python3", "-I", "-c", program()]


def judge(run: Run, job: Job) -> Verdict:
    """Run one job. Raises `PyinfraError` when the box has no sandbox to run it in."""
    name = UNITS + secrets.token_hex(6)
    question = json.dumps({"code": job.code, "tests": job.tests, "seconds": job.seconds})
    try:
        status, output, errors = run(command(name, job.seconds), question, job.seconds + START_SECONDS)
    except BaseException:
        # After Ctrl-C it still runs; where it has ended this says so and that is all.
        run(["systemctl", "kill", "--signal=SIGKILL", f"{name}.service"], "", START_SECONDS)
        raise
    try:
        said = json.loads(output.splitlines()[-1])
        return Verdict(passed=said["passed"] is True, why=str(said["why"]))
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        pass
    if status in SYSTEMD_FAILED:
        raise PyinfraError(f"no sandbox on the box: systemd could not set it up (status {status})")
    if errors.strip():
        raise PyinfraError(f"no sandbox on the box: {errors.strip().splitlines()[-1]}")
    return Verdict(passed=False, why="the sandbox was ended: time, memory or processes ran out")


def clean(run: Run) -> None:
    """Take the sandbox's empty root away. Raises `PyinfraError` when it stays."""
    status, _, errors = run(["rm", "-rf", "--one-file-system", ROOT], "", START_SECONDS)
    if status:
        raise PyinfraError((errors.strip().splitlines() or ["rm failed"])[-1])
