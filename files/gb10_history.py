"""The lanes that have answered, as they lie on the box: each is whole there, or it is none.

The folder has for each a folder of its own (``000007``: unit, models.ini, lane.json, about.json);
``current``, a JSON list of the numbers that served one after the other, the last is the one that answered
last; ``changes.jsonl``, for people.

Whatever is written is on the disk before anything names it: after a power cut there is the old or the new.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GENERATIONS_KEPT = 10
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


def lane_files(lane: Mapping[str, Any], lane_path: str) -> dict[str, Path]:
    """The files that make a generation: name in its folder to the place on the box."""
    return {
        "unit": Path(f"/etc/systemd/system/{lane['lane']}.service"),
        "models.ini": Path(lane["presets"]),
        "lane.json": Path(lane_path),
    }


def digest(contents: Mapping[str, bytes]) -> str:
    """sha256 over the named contents, in the order of the names."""
    whole = hashlib.sha256()
    for name in sorted(contents):
        whole.update(f"{name} {len(contents[name])}\n".encode())
        whole.update(contents[name])
    return whole.hexdigest()


def digest_of(files: Mapping[str, Path]) -> str:
    """`digest` of files; empty when one is missing."""
    try:
        return digest({name: path.read_bytes() for name, path in files.items()})
    except OSError:
        return ""


def place_of(folder: Path, number: int) -> Path:
    """The folder of one generation."""
    return folder / f"{number:06d}"


def read_generations(folder: Path) -> list[Generation]:
    """All that are kept and whole, oldest first."""
    found = []
    for about in folder.glob("[0-9]*/about.json"):
        try:
            generation = Generation(**json.loads(about.read_text(encoding="utf-8")))
            if about.parent == place_of(folder, generation.number):
                contents_of(folder, generation)
                found.append(generation)
        except (OSError, ValueError, TypeError, GenerationError):
            continue  # what a power cut left
    return sorted(found, key=lambda generation: generation.number)


def damaged(folder: Path, generations: list[Generation]) -> list[int]:
    """Numbers of those that are kept and not whole."""
    whole = {place_of(folder, one.number).name for one in generations}
    return [int(name) for name in _folders(folder) if name not in whole]


def _folders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[0-9]*") if path.name.isdecimal())


def contents_of(folder: Path, generation: Generation) -> dict[str, bytes]:
    """Its files by name, as they were when it answered. Raises `GenerationError`."""
    place = place_of(folder, generation.number)
    try:
        contents = {name: (place / name).read_bytes() for name in ("unit", "models.ini", "lane.json")}
    except OSError as error:
        raise GenerationError(f"lane {generation.number} is not whole: {error}") from None
    if digest(contents) != generation.digest:
        raise GenerationError(f"lane {generation.number} is not whole: its files are not what was kept")
    return contents


def differences(kept: Mapping[str, bytes], installed: Mapping[str, bytes]) -> list[str]:
    """What a kept lane has otherwise than the one in place, for people: ``image``, ``unit``, and of the
    presets each model and key as the kept lane has it (``tiny-a: ctx-size = 4096``; ``without tiny-b``)."""
    found = []
    old, new = (_description(files.get("lane.json", b"")) for files in (kept, installed))
    if old.get("image") != new.get("image"):
        found.append("image")
    elif kept.get("unit") != installed.get("unit"):
        found.append("unit")
    was, now = (_presets(files.get("models.ini", b"")) for files in (kept, installed))
    found += [f"with {name}" for name in was if name not in now]
    found += [f"without {name}" for name in now if name not in was]
    for name in [name for name in was if name in now]:
        here = was[name].items() - now[name].items()
        gone = [f"no {key}" for key in sorted(now[name].keys() - was[name].keys())]
        keys = [f"{key} = {value}" for key, value in sorted(here)] + gone
        if keys:
            found.append(f"{'all models' if name == '*' else name}: {', '.join(keys)}")
    return found or (["description"] if digest(kept) != digest(installed) else [])


def _description(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        return {}


def _presets(content: bytes) -> dict[str, dict[str, str]]:
    """The sections of a preset file with their keys."""
    sections: dict[str, dict[str, str]] = {}
    keys: dict[str, str] = {}
    for line in content.decode(errors="replace").splitlines():
        if line.startswith("[") and line.rstrip().endswith("]"):
            keys = sections.setdefault(line.strip()[1:-1], {})
        elif "=" in line and not line.startswith((";", "#")):
            key, _, value = line.partition("=")
            keys[key.strip()] = value.strip()
    return sections


def served_of(folder: Path, generations: list[Generation]) -> list[Generation]:
    """Those that served one after the other; the last is the current one, the one before it the previous.

    Where no whole one is named, all that are whole.
    """
    whole = {one.number: one for one in generations}
    try:
        numbers = json.loads((folder / "current").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        numbers = []
    if isinstance(numbers, int):  # as the versions before this one wrote it
        numbers = [number for number in whole if number <= numbers]
    named = numbers if isinstance(numbers, list) else []
    return [whole[number] for number in named if isinstance(number, int) and number in whole] or generations


def serve(folder: Path, served: list[Generation], now: Generation) -> list[Generation]:
    """Let ``now`` be the current one. What was gone back from is not among those that served any more."""
    earlier = [one.number for one in served]
    if now.number in earlier:
        served = served[: earlier.index(now.number)]
    served = [*served, now]
    write(folder / "current", json.dumps([one.number for one in served]).encode())
    return served


def add(folder: Path, image: str, image_id: str, contents: Mapping[str, bytes]) -> Generation:
    """Keep a lane that has answered, as the current one. Of the others the oldest go, never the previous."""
    generations = read_generations(folder)
    number = generations[-1].number + 1 if generations else 1
    made = Generation(number, image, image_id, digest(contents), stamp())
    place, fresh = place_of(folder, number), folder / f".{number:06d}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    about = json.dumps(asdict(made), indent=1).encode()
    write_all({fresh / name: content for name, content in {**contents, "about.json": about}.items()})
    shutil.rmtree(place, ignore_errors=True)
    os.replace(fresh, place)
    sync(folder)
    served = serve(folder, served_of(folder, generations), made)
    needed = {place_of(folder, one.number).name for one in served[-2:]}
    for name in _folders(folder)[:-GENERATIONS_KEPT]:
        if name not in needed:
            shutil.rmtree(folder / name, ignore_errors=True)
    return made


# -- changes -------------------------------------------------------------------------------------------------


def record(folder: Path, entry: Mapping[str, Any]) -> None:
    """One more line in changes.jsonl, the newest last. A log: that it cannot be written fails nothing."""
    path = folder / "changes.jsonl"
    lines = [*_lines(path), json.dumps({"time": stamp(), **entry})][-RECORDS_KEPT:]
    with contextlib.suppress(OSError):
        write(path, ("\n".join(lines) + "\n").encode())


def read_changes(folder: Path) -> list[dict[str, Any]]:
    """What was recorded, oldest first; lines that a fault of the disk left are passed over."""
    found = []
    for line in _lines(folder / "changes.jsonl"):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and {"time", "what", "number"} <= entry.keys():
            found.append(entry)
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def stamp() -> str:
    """Now as text, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# -- files ---------------------------------------------------------------------------------------------------


def write(path: Path, content: bytes) -> None:
    """Write a file, readable for all, so that a power cut leaves the old one or the new one."""
    write_all({path: content})


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Write files, none before all of them are on the disk: a full disk changes nothing. Raises OSError."""
    staged: list[tuple[Path, Path]] = []
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.gb10-new")
            staged.append((fresh, path))
            with open(fresh, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(fresh, 0o644)
    except OSError:
        for fresh, _ in staged:
            fresh.unlink(missing_ok=True)
        raise
    for fresh, path in staged:
        os.replace(fresh, path)
    for folder in {path.parent for path in contents}:
        sync(folder)


def sync(folder: Path) -> None:
    """Let the names in a folder be on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
