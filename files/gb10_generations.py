#!/usr/bin/env python3
"""Keep each lane that has answered, and go back to one that did.

A generation is the unit file, the presets and the lane description that a verified deploy left, with the
image that they name. ``current`` is the one that answered last.

Usage:
  gb10_generations.py LANE.json keep                     what is installed has answered: keep it
  gb10_generations.py LANE.json list                     all of them, as one JSON object
  gb10_generations.py LANE.json back [--to TAG] [--unverified] [--why TEXT]
      put an earlier lane in place, restart, and see that it answers. Without --to: the current one if
      something else is installed, else the one before it. With --unverified: only if something else is
      installed. Prints one JSON object: {"state", "reason", "to", "image", "answer"}; state is back (it
      answers), stuck (it does not either) or nothing (there is nowhere to go).

The API key, the image and the model files are never touched.
Exit status: 0 done, 1 not, 2 bad usage.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# The programs lie in one folder, which is where python3 looks first.
import gb10_router

GENERATIONS_KEPT = 10
RESTART_SECONDS = 600
RECORDS_KEPT = 200


class GenerationError(Exception):
    """There is nothing to go back to, or it cannot be put in place: one line."""


@dataclass(frozen=True)
class Generation:
    """A kept lane. ``digest`` is the sha256 over its files, ``kept`` the time in UTC."""

    number: int
    image: str
    image_id: str
    digest: str
    kept: str


def lane_files(lane: dict[str, Any], lane_path: str) -> dict[str, Path]:
    """The files that make a generation: name in its folder to the place on the box."""
    return {
        "unit": Path(f"/etc/systemd/system/{lane['lane']}.service"),
        "models.ini": Path(lane["presets"]),
        "lane.json": Path(lane_path),
    }


def digest_of(files: dict[str, Path]) -> str:
    """sha256 over the named contents, in the order of the names; empty when a file is missing."""
    whole = hashlib.sha256()
    try:
        for name in sorted(files):
            content = files[name].read_bytes()
            whole.update(f"{name} {len(content)}\n".encode())
            whole.update(content)
    except OSError:
        return ""
    return whole.hexdigest()


def read_generations(folder: Path) -> list[Generation]:
    """All that are kept and whole, oldest first."""
    found = []
    for about in folder.glob("[0-9]*/about.json"):
        try:
            found.append(Generation(**json.loads(about.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue  # what a power cut left
    return sorted(found, key=lambda generation: generation.number)


def current_of(folder: Path, generations: list[Generation]) -> Generation | None:
    """The generation that answered last; None before the first one."""
    try:
        number = int((folder / "current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return next((generation for generation in generations if generation.number == number), None)


def keep(lane: dict[str, Any], lane_path: str) -> Generation:
    """Keep what is installed, unless that is the current one already. Raises `GenerationError`."""
    folder, files = Path(lane["generations"]), lane_files(lane, lane_path)
    digest = digest_of(files)
    if not digest:
        raise GenerationError("a file of the lane is missing: run the deploy again")
    generations = read_generations(folder)
    current = current_of(folder, generations)
    if current is not None and current.digest == digest:
        return current
    made = Generation(
        generations[-1].number + 1 if generations else 1,
        lane["image"],
        image_id(lane["image"]),
        digest,
        stamp(),
    )
    fresh = folder / f".{made.number:06d}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, path in files.items():
        shutil.copyfile(path, fresh / name)
    (fresh / "about.json").write_text(json.dumps(asdict(made), indent=1), encoding="utf-8")
    place = folder / f"{made.number:06d}"
    shutil.rmtree(place, ignore_errors=True)
    os.replace(fresh, place)
    write(folder / "current", f"{made.number}\n".encode())
    record(folder, {"what": "kept", "number": made.number, "image": made.image})
    for old in read_generations(folder)[:-GENERATIONS_KEPT]:
        shutil.rmtree(folder / f"{old.number:06d}", ignore_errors=True)
    return made


def choose(
    generations: list[Generation], current: Generation | None, installed: str, to: str, unverified: bool
) -> Generation:
    """Where to go back to; ``installed`` is the digest of what is in place. Raises `GenerationError`."""
    if to:
        named = [one for one in generations if to in (one.image, one.image.rpartition(":")[2])]
        if not named:
            known = ", ".join(dict.fromkeys(one.image.rpartition(":")[2] for one in generations)) or "none"
            raise GenerationError(f"no lane with image {to} is kept: there are {known}")
        if named[-1].digest == installed:
            raise GenerationError(f"the lane with image {to} is in place already")
        return named[-1]
    if current is None:
        raise GenerationError("no lane has answered yet: there is nothing to go back to")
    if current.digest != installed:
        return current
    if unverified:
        raise GenerationError("the lane is the one that answered last: going back would change nothing")
    earlier = [one for one in generations if one.number < current.number and one.digest != installed]
    if not earlier:
        raise GenerationError("there is no earlier lane: this is the first that answered")
    return earlier[-1]


def back(lane: dict[str, Any], lane_path: str, to: str, unverified: bool, why: str) -> dict[str, Any]:
    """Put an earlier generation in place and see that it answers; what the usage above says."""
    folder, files = Path(lane["generations"]), lane_files(lane, lane_path)
    generations = read_generations(folder)
    current, installed = current_of(folder, generations), digest_of(files)
    try:
        target = choose(generations, current, installed, to, unverified)
        if not image_id(target.image):
            raise GenerationError(f"image {target.image} is not on this host any more: import it, or deploy")
    except GenerationError as error:
        return {"state": "nothing", "reason": str(error), "to": 0, "image": "", "answer": None}
    source = folder / f"{target.number:06d}"
    same_unit = same(source / "unit", files["unit"])
    for name, path in files.items():
        write(path, (source / name).read_bytes())
    lane = json.loads(files["lane.json"].read_text(encoding="utf-8"))
    try:
        take_up(lane, restart=not same_unit)
        answer = gb10_router.verify(lane)
    except (gb10_router.RouterError, GenerationError, OSError) as error:
        answer = {"state": "down", "reason": str(error)}
    good = answer["state"] == "answered"
    if good:
        write(folder / "current", f"{target.number}\n".encode())
    entry = {"what": "back", "number": target.number, "image": target.image, "why": why, "answered": good}
    record(folder, {**entry, "from": installed[:12]})
    return {
        "state": "back" if good else "stuck",
        "reason": "" if good else str(answer.get("reason", "")),
        "to": target.number,
        "image": target.image,
        "answer": answer,
    }


def take_up(lane: dict[str, Any], *, restart: bool) -> None:
    """Let the running lane become what its files say. Raises `GenerationError`, RouterError."""
    unit = f"{lane['lane']}.service"
    run("systemctl", "daemon-reload")
    active = gb10_router.unit_state(lane) == "active"
    if active and not restart:
        gb10_router.reload(lane)
        return
    # Our own restarts must not count as crashes.
    subprocess.run(["systemctl", "reset-failed", unit], capture_output=True, check=False)
    run("systemctl", "restart", unit)


def run(*command: str) -> str:
    """One command. Raises `GenerationError` with its last line."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=RESTART_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise GenerationError(f"{' '.join(command)}: no answer in {RESTART_SECONDS} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise GenerationError(f"{' '.join(command)}: {last}")
    return done.stdout


def image_id(image: str) -> str:
    """Docker's id of an image; empty when it is not there."""
    command = ["docker", "image", "inspect", "--format", "{{.Id}}", image]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def same(one: Path, other: Path) -> bool:
    """Whether two files have the same content."""
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def write(path: Path, content: bytes) -> None:
    """Write a file, readable for all, so that a power cut leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.gb10-new")
    with open(fresh, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(fresh, 0o644)
    os.replace(fresh, path)


def record(folder: Path, entry: dict[str, Any]) -> None:
    """One more line in changes.jsonl, the newest last."""
    path = folder / "changes.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    lines = [*lines, json.dumps({"time": stamp(), **entry})][-RECORDS_KEPT:]
    write(path, ("\n".join(lines) + "\n").encode())


def stamp() -> str:
    """Now as text, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def listed(lane: dict[str, Any], lane_path: str) -> dict[str, Any]:
    """{"current": number or 0, "installed": digest, "generations": [...], "changes": [...]}."""
    folder = Path(lane["generations"])
    generations = read_generations(folder)
    current = current_of(folder, generations)
    try:
        lines = (folder / "changes.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return {
        "current": current.number if current else 0,
        "installed": digest_of(lane_files(lane, lane_path)),
        "generations": [asdict(one) for one in generations],
        "changes": [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")],
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("lane")
    parser.add_argument("verb", choices=("keep", "list", "back"))
    parser.add_argument("--to", default="")
    parser.add_argument("--unverified", action="store_true")
    parser.add_argument("--why", default="")
    asked = parser.parse_args(arguments)
    try:
        lane = json.loads(Path(asked.lane).read_text(encoding="utf-8"))
        if asked.verb == "keep":
            kept = keep(lane, asked.lane)
            print(f"gb10: lane {kept.number} with {kept.image} is kept")
        elif asked.verb == "list":
            print(json.dumps(listed(lane, asked.lane)))
        else:
            done = back(lane, asked.lane, asked.to, asked.unverified, asked.why)
            print(json.dumps(done))
            return 0 if done["state"] == "back" else 1
    except GenerationError as error:
        reason = str(error)
    except (OSError, ValueError) as error:
        reason = f"{asked.lane} or a file that it names cannot be read or written: {error}"
    except (KeyError, TypeError) as error:
        reason = f"{asked.lane} is not what this program expects ({type(error).__name__}: {error})"
    else:
        return 0
    print(f"gb10: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
