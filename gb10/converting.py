"""The steps of a conversion on a connected box. Each looks for itself, and does only what is not done.

Whatever goes wrong is one PyinfraError of one line. Long steps are jobs on the box
(`gb10.operations.detached`): a lost connection does not end them, and the next run joins what is under way.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.context import ctx_host

from gb10.convert_job import Making
from gb10.convert_progress import ApplianceProgress, ConvertProgress
from gb10.desired import Desired
from gb10.facts.docker import ImageState
from gb10.facts.models import ModelFiles
from gb10.fetch_progress import FetchProgress
from gb10.gguf import GgufError, Header, read_header
from gb10.lock import LockedFile
from gb10.operations import placed
from gb10.operations.detached import Job, Reader, follow
from gb10.rendering import PlacedFile

Say = Callable[[str], None]
_LOOK_SECONDS = 120
_REFUSED = re.compile(r"Model \S* is not supported|Failed to detect model architecture")


def look(host: Host, making: Making) -> dict[str, Any]:
    """What the box has of it, by the program's own eyes (`look` of ``files/gb10_convert.py``)."""
    return _ask(host, making, "look")


def state_of(host: Host, box: Desired, locked: LockedFile) -> str:
    """Is the file that the lock has on the box: ok, unverified, wrong, missing?"""
    entry = {key: getattr(locked, key) for key in ("repo", "revision", "file", "size", "sha256")}
    path = f"{box.data.models_dir}/{locked.repo}/{locked.file}"
    manifest = {**box.fetch_manifest, "files": [{**entry, "path": path, "made": "gb10 convert"}]}
    program = box.program_files["gb10_fetch.py"].content
    answer = host.get_fact(ModelFiles, program=program, manifest=manifest)
    return str(answer["files"][0]["state"]) if answer["files"] else "missing"


def build(host: Host, making: Making, say: Say) -> None:
    """The appliance is in the box's Docker."""
    box = making.box
    if host.get_fact(ImageState, image=box.appliance_image, folder=box.appliance_folder) != "absent":
        return
    _place(host, making.dockerfile_file)
    _run(host, making.build_job, ApplianceProgress(), say)


def refuse_architecture(host: Host, making: Making) -> None:
    """The converter knows the model's architecture: before the source is fetched, not after.

    It is asked itself, with the config alone: it looks into more places than the name at the top. What it
    says of the weights, which are not there, does not count.
    """
    run = StringCommand(
        "printf", "%s", QuoteString(making.source.config), "|",
        *(QuoteString(word) for word in making.question_command), "2>&1", "||", "true",
    )  # fmt: skip
    for line in _output(host, run).splitlines():
        if refused := _REFUSED.search(line):
            raise PyinfraError(
                f"{making.source.repo}: {refused[0]} (says the converter of llama.cpp "
                f"{making.box.data.llama_ref}): nothing was fetched; take another model, or a llama.cpp "
                "that knows it"
            )


def fetch(host: Host, making: Making, say: Say) -> None:
    """Every file of the source is on the box, proven by size and sha256."""
    program = making.box.program_files["gb10_fetch.py"]
    if host.get_fact(ModelFiles, program=program.content, manifest=making.manifest)["ok"]:
        return
    _place(host, program)
    _place(host, making.manifest_file)
    _run(host, making.fetch_job, FetchProgress(making.fetch_job.again), say)


def make(host: Host, making: Making, say: Say) -> tuple[int, str]:
    """The part is made. Its bytes and sha256."""
    _place(host, making.program_file)
    _place(host, making.spec_file)
    _run(host, making.make_job, ConvertProgress(), say)
    part = look(host, making)["part"]
    if not part:
        raise PyinfraError(f"{host.name}: {making.part} has gone: {making.make_job.again}")
    return int(part["size"]), str(part["sha256"])


def header_of(host: Host, path: str, size: int) -> Header:
    """The header of a GGUF file on the box, read over the connection."""
    try:
        return read_header(BoxReader(host, path), file_size=size)
    except GgufError as error:
        raise PyinfraError(f"{host.name}: {path}: {error}: {_remove(path)}") from None


def accept(host: Host, making: Making) -> None:
    """The part gets its name."""
    _ask(host, making, "accept")


class BoxReader:
    """A RangeReader (`gb10.gguf`) for a file on the box."""

    def __init__(self, host: Host, path: str) -> None:
        self.host, self.path = host, path

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on. Raises PyinfraError."""
        script = f'tail -c +{offset + 1} "$1" | head -c {size} | base64 -w0'
        command = StringCommand("sh", "-c", QuoteString(script), "-", QuoteString(self.path))
        return base64.b64decode(_output(self.host, command))


def _remove(path: str) -> str:
    return f"look at it, or remove {path} and run the command again"


def _ask(host: Host, making: Making, verb: str) -> dict[str, Any]:
    # Program and spec are sent along, so that the answer is about this conversion, not about an earlier one.
    program, spec = QuoteString(making.program_file.content), QuoteString(json.dumps(making.spec))
    run = StringCommand("python3", "-I", "-c", program, verb, "/dev/stdin")
    answer: dict[str, Any] = json.loads(_output(host, StringCommand("printf", "%s", spec, "|", run)))
    return answer


def _output(host: Host, command: StringCommand) -> str:
    ok, output = host.run_shell_command(command, _sudo=True, _timeout=_LOOK_SECONDS)
    if not ok:
        lines = output.stderr_lines or output.stdout_lines or ["the connection ended"]
        raise PyinfraError(f"{host.name}: {lines[-1]}")
    return "\n".join(output.stdout_lines)


def _place(host: Host, file: PlacedFile) -> None:
    """The file is on the box as it should be, put there like a deploy would."""
    with ctx_host.use(host):
        for command in placed.file_commands(file):
            done = command.execute(host.state, host, {"_sudo": True})
            if not (done[0] if isinstance(done, tuple) else done):
                raise PyinfraError(f"{host.name}: {file.path} cannot be written: is its disk full?")


def _run(host: Host, job: Job, reader: Reader, say: Say) -> None:
    """Follow a job to its end; when it fails, its own reason is the error."""
    told = _Reason(reader)
    with _spoken(say) as errors:
        try:
            good = follow(host.state, host, job, told)
        except KeyboardInterrupt:
            say(f"{job.title} goes on on {host.name} in unit {job.unit}: {job.again} to join it")
            raise
    if not good:
        reason = told.reason or "; ".join(errors) or "it failed"
        raise PyinfraError(f"{host.name}: {job.title}: {reason} (log: {job.log})")


class _Reason:
    """A reader that remembers why the job failed, in one line."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.reason = reader, ""

    def progress(self, lines: list[str]) -> str:
        return self.reader.progress(lines)

    def failure(self, lines: list[str]) -> list[str]:
        said = self.reader.failure(lines)
        self.reason = "; ".join(line.strip() for line in said[-3:])
        return said


@contextmanager
def _spoken(say: Say) -> Iterator[list[str]]:
    """Gives pyinfra's messages to ``say``, but for its errors: they are collected."""
    errors: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage().strip()
            errors.append(text) if record.levelno >= logging.ERROR else say(text)

    logger, handler = logging.getLogger("pyinfra"), Handler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield errors
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def room_fault(making: Making, found: Mapping[str, Any]) -> str:
    """Why there is no room for what is to come, with the numbers; empty when there is, or it is under way."""
    data = making.box.data
    if found["running"]:
        return ""
    free, needed = int(found["docker_free_bytes"]), data.appliance_free_gib
    if not found["image"] and free < needed * 1024**3:
        return (
            f"Docker's disk has {size_text(free)} free, and {needed} GiB are needed to build the appliance: "
            "make room, or set appliance_free_gib"
        )
    result = 0 if found["part"] else making.expected.file_bytes
    source, free = int(found["missing_bytes"]), int(found["free_bytes"])
    reserve = data.models_reserve_gib * 1024**3
    if source + result + reserve <= free:
        return ""
    return (
        f"the disk of {data.models_dir} has {size_text(free)} free, and {size_text(source)} for the source, "
        f"{size_text(result)} for the result and {size_text(reserve)} in reserve are needed: "
        "make room, `gb10 models` lists what is there"
    )


def size_text(count: int) -> str:
    """Bytes in GB or MB (powers of ten), as disks and hubs give them."""
    return f"{count / 1e9:.1f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"
