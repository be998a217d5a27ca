#!/usr/bin/env python3
"""Makes a GGUF file out of safetensors that lie on the box, in a container, and proves that it is whole.

    python3 gb10_convert.py look SPEC.json      say what is there (JSON); changes nothing
    python3 gb10_convert.py make SPEC.json      convert; the converter's lines and JSON lines; exit 0 or 1
    python3 gb10_convert.py accept SPEC.json    the file that `make` made gets its name

The spec (JSON) has: source (folder), files (name in it to size in bytes), work (folder of this conversion
alone, all that the container can write to), part (file name in work), state (folder for what is noted),
result (path), models_dir, user (number: who writes in the container),
image, command (the whole docker run), container (its name), unit (that `make` runs in), recipe (text: what
the result follows from), tensors (how many the source has), expected_bytes, reserve_bytes (disk to leave)
and memory_bytes (what the converter may need).

How it stays safe:
- `make` may be killed at any moment: it starts anew, and what a dead run left is removed first. What it has
  finished, with its sha256, is noted in STATE/done.json, so a second `make` does nothing.
- A source file that is cut off is found before the converter runs.
- Nothing is overwritten or deleted but what lies in the work folder.
- The container has no network, and sees the source read only. What it left is opened as a plain file or not
  at all: it may have put a link there, and this runs as root.

Python 3.10 or newer, standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

PERCENT = re.compile(r"^Writing:\s*(\d+)%")
TENSOR = re.compile(r"Repacked .* quantization |-->")
EXCEPTION = re.compile(r"^[A-Za-z_.]*(Error|Exception|Interrupt)\b")
LOGGED = re.compile(r"^(ERROR|CRITICAL):[^:]*:")
LARGEST_HEADER = 100_000_000  # bytes; the format's own limit
KEPT_LINES = 200


class Failed(Exception):
    """It cannot be made. The text is the one line for the person who reads it."""


def emit(event: str, **fields: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(json.dumps({"event": event, **fields}), flush=True)


def human(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10_000_000 else f"{count} bytes"


class Spec:
    """The spec file, with the paths that follow from it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.source = Path(data["source"])
        self.work = Path(data["work"])
        self.part = self.work / data["part"]
        self.done = Path(data["state"]) / "done.json"
        self.result = Path(data["result"])
        self.models_dir = Path(data["models_dir"])
        self.recipe = str(data["recipe"])
        for path in (self.source, self.work, self.result):
            if self.models_dir not in path.parents or ".." in path.parts:
                raise Failed(f"{path} is not in {self.models_dir}")


# ------------------------------------------------------------------------------------------------ look


def look(spec: Spec) -> dict[str, Any]:
    """What is there: image, source, a finished part, a result, room and memory."""
    missing = sum(size for name, size in spec.data["files"].items() if size_of(spec.source / name) != size)
    return {
        "image": bool(run(["docker", "image", "inspect", "--format", "x", spec.data["image"]])),
        "running": run(["systemctl", "is-active", spec.data["unit"]]).strip() in ("active", "activating"),
        "missing_bytes": missing,
        "part": finished(spec),
        "result": {"size": size_of(spec.result)} if os.path.lexists(spec.result) else None,
        "free_bytes": free_bytes(spec.models_dir),
        "docker_free_bytes": free_bytes(
            Path(run(["docker", "info", "-f", "{{.DockerRootDir}}"]).strip() or "/")
        ),
        "memory_bytes": memory_available(),
    }


def run(command: Sequence[str]) -> str:
    """Standard output of a command, empty when it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def free_bytes(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    figures = os.statvfs(folder)
    return figures.f_bavail * figures.f_frsize


def memory_available() -> int:
    """Bytes that can be had without swapping; on this machine CPU and GPU share them."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def mark(figures: os.stat_result) -> dict[str, int]:
    return {"size": figures.st_size, "mtime_ns": figures.st_mtime_ns, "inode": figures.st_ino}


def open_part(spec: Spec) -> int:
    """The part's handle. Raises `Failed` when it is no plain file, OSError when there is none."""
    try:
        handle = os.open(spec.part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Failed(f"the converter left a link as {spec.part}: remove it") from None
        raise
    figures = os.fstat(handle)
    if not stat.S_ISREG(figures.st_mode) or figures.st_nlink != 1:
        os.close(handle)
        raise Failed(f"the converter left no plain file as {spec.part}: remove it")
    return handle


def give_work(spec: Spec, user: int) -> None:
    """The work folder is ``user``'s: while the container runs that of its own, afterwards root's again."""
    handle = os.open(spec.work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    os.fchown(handle, user, user)
    os.close(handle)


def finished(spec: Spec) -> dict[str, Any] | None:
    """``size`` and ``sha256`` of a part that an earlier run has finished by the same recipe, or None."""
    try:
        note = json.loads(spec.done.read_text(encoding="utf-8"))
        if note["recipe"] == spec.recipe and note["mark"] == mark(spec.part.lstat()):
            return {"size": note["mark"]["size"], "sha256": str(note["sha256"])}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


# ------------------------------------------------------------------------------------------------ make


def make(spec: Spec) -> dict[str, Any]:
    """Converts, and notes size and sha256 of what came out. Raises `Failed`."""
    ready = finished(spec)
    if ready:
        return ready
    if os.path.lexists(spec.result):
        raise Failed(f"{spec.result} is there already: nothing here overwrites it")
    end_container(spec)
    spec.done.unlink(missing_ok=True)
    if os.path.lexists(spec.work):
        shutil.rmtree(spec.work)
    spec.work.mkdir(mode=0o755, parents=True)
    check_source(spec)
    check_room(spec)
    give_work(spec, spec.data["user"])
    try:
        convert(spec)
        return prove(spec)
    except (Failed, OSError) as error:
        shutil.rmtree(spec.work, ignore_errors=True)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise Failed(full(spec)) from None
        raise


def full(spec: Spec) -> str:
    return f"the disk of {spec.models_dir} is full: make room and run again; the source is kept"


def check_room(spec: Spec) -> None:
    expected, reserve, free = (
        spec.data["expected_bytes"],
        spec.data["reserve_bytes"],
        free_bytes(spec.models_dir),
    )
    if expected + reserve > free:
        raise Failed(
            f"the disk of {spec.models_dir} has {human(free)} free, but {human(expected)} are to come and "
            f"{human(reserve)} must stay free: make room; the source is kept"
        )
    wanted, memory = spec.data["memory_bytes"], memory_available()
    if wanted > memory:
        raise Failed(
            f"{human(memory)} of memory are free and the converter may need {human(wanted)}: unload models"
        )


def check_source(spec: Spec) -> None:
    """Every file is there in its size, and a safetensors file is as long as its header says."""
    for name, size in spec.data["files"].items():
        path = spec.source / name
        found = size_of(path)
        if found != size:
            raise Failed(f"{path} has {found or 0} bytes, not {size}: run again, and it is fetched")
        if name.endswith(".safetensors"):
            check_safetensors(path)


def check_safetensors(path: Path) -> None:
    """Raises `Failed` when the file is cut off, or is none. Layout: u64 length, JSON header, data."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or not 2 <= length <= LARGEST_HEADER or 8 + length > size:
            raise Failed(f"{path}: no safetensors file, or cut off inside its header ({size} bytes)")
        try:
            header = json.loads(stream.read(length))
            ends = [int(entry["data_offsets"][1]) for key, entry in header.items() if key != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise Failed(f"{path}: its safetensors header cannot be read") from None
    promised = 8 + length + max(ends, default=0)
    if promised != size:
        word = "cut off" if promised > size else "too long"
        raise Failed(f"{path}: {word}: its header says {promised} bytes, it has {size}")


def end_container(spec: Spec) -> None:
    """A container that outlived the unit would write into the same file."""
    run(["docker", "rm", "--force", spec.data["container"]])


def convert(spec: Spec) -> None:
    """Runs the container; its lines go to stdout with progress events between them. Raises `Failed`."""

    def stop(number: int, frame: object) -> NoReturn:  # noqa: ARG001  (a signal handler gets both)
        end_container(spec)
        sys.exit(1)

    signal.signal(signal.SIGTERM, stop)
    process = subprocess.Popen(
        spec.data["command"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    tensors, told = 0, 0.0
    kept: list[str] = []
    for line in lines_of(process.stdout.fileno()):
        percent = PERCENT.match(line)
        tensors += bool(TENSOR.search(line))
        if not percent:
            kept = [*kept[-KEPT_LINES:], line]
            print(line, flush=True)
        if time.monotonic() - told >= 1.0:
            told = time.monotonic()
            if percent:
                emit("progress", phase="writing", done=int(percent[1]), size=100)
            elif tensors:
                emit("progress", phase="reading", done=tensors, size=spec.data["tensors"])
    status = process.wait()
    if status:
        raise Failed(cause(spec, status, kept))


def lines_of(handle: int) -> Iterator[str]:
    """Lines as they come; a carriage return, by which a progress bar is drawn anew, ends one too."""
    rest = b""
    while data := os.read(handle, 65536):
        *whole, rest = re.split(rb"[\r\n]", rest + data)
        yield from (line.decode(errors="replace") for line in whole if line.strip())
    if rest.strip():
        yield rest.decode(errors="replace")


def cause(spec: Spec, status: int, lines: Sequence[str]) -> str:
    """Why the converter failed, in one line, from its exit status and its output."""
    if any("No space left on device" in line or "Errno 28" in line for line in lines):
        return full(spec)
    if status == 137:
        return "the converter was killed: the box had no memory left for it, or somebody stopped it"
    logged = [LOGGED.sub("", line) for line in lines if LOGGED.match(line)]
    raised = [line for line in lines if EXCEPTION.match(line)]
    said = (logged or raised or [line for line in lines if line.strip()] or ["no output"])[-1]
    if "is not supported" in said:
        return f"the converter says: {said}: take another model, or a llama.cpp that knows it"
    return f"the converter failed (exit status {status}): {said}"


def prove(spec: Spec) -> dict[str, Any]:
    """Size and sha256 of the part, once it is on the disk; noted for the runs to come."""
    give_work(spec, os.geteuid())
    try:
        handle = open_part(spec)
    except FileNotFoundError:
        raise Failed("the converter ended well and left no file") from None
    digest, size, told = hashlib.sha256(), os.fstat(handle).st_size, 0.0
    with open(handle, "rb", buffering=0) as stream:
        os.fchown(handle, os.geteuid(), os.getegid())  # what is read now can be changed by nobody
        os.fchmod(handle, 0o644)
        os.fsync(handle)
        while data := stream.read(4 << 20):
            digest.update(data)
            # The page cache and the models share one memory.
            os.posix_fadvise(stream.fileno(), 0, stream.tell(), os.POSIX_FADV_DONTNEED)
            if time.monotonic() - told >= 1.0:
                told = time.monotonic()
                emit("progress", phase="hash", done=stream.tell(), size=size)
        note = {"recipe": spec.recipe, "mark": mark(os.fstat(handle)), "sha256": digest.hexdigest()}
    spec.done.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(spec.done, note)
    return {"size": size, "sha256": digest.hexdigest()}


def write_atomically(path: Path, data: dict[str, Any]) -> None:
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w", encoding="utf-8") as stream:
        json.dump(data, stream, indent=1, sort_keys=True)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)


# ------------------------------------------------------------------------------------------------ accept


def accept(spec: Spec) -> dict[str, Any]:
    """The finished part gets its name, and the downloader knows its sha256. Raises `Failed`."""
    ready = finished(spec)
    if not ready:
        raise Failed(f"{spec.part} is not what was made: run again")
    if os.path.lexists(spec.result):
        raise Failed(f"{spec.result} has come up meanwhile: not overwritten")
    os.close(open_part(spec))
    spec.result.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    spec.part.rename(spec.result)
    handle = os.open(spec.result.parent, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(handle)
    os.close(handle)
    spec.done.unlink()
    shutil.rmtree(spec.work, ignore_errors=True)
    with contextlib.suppress(OSError):
        spec.work.parent.rmdir()
    # Only a second reading is saved if this cannot be written.
    verified = spec.models_dir / ".gb10-verified.json"
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(verified.read_text(encoding="utf-8")) if verified.exists() else {}
        known[str(spec.result)] = {**mark(spec.result.lstat()), "sha256": ready["sha256"]}
        write_atomically(verified, known)
    return ready


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("look", "make", "accept"):
        print(__doc__, file=sys.stderr)
        return 2
    os.umask(0o022)
    try:
        spec = Spec(json.loads(Path(arguments[1]).read_text(encoding="utf-8")))
        if arguments[0] == "look":
            print(json.dumps(look(spec)))
        elif arguments[0] == "accept":
            print(json.dumps(accept(spec)))
        else:
            emit("result", ok=True, **make(spec))
    except (Failed, OSError, ValueError, KeyError) as error:
        text = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
        if arguments[0] == "make":
            emit("error", message=text)
        else:
            print(text, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
