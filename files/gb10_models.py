#!/usr/bin/env python3
"""Model files on the box beside the catalogue's: finds them, and removes a model's files when asked by name.

    python3 gb10_models.py list QUESTION      {"folders": [...], "known": [paths of the catalogue's files],
                                               "sources": folder with what was fetched to be converted}
    python3 gb10_models.py remove QUESTION    {"models_dir": path, "paths": [files to remove]}

Question and answer are JSON. `list` changes nothing and reads no file's content; it answers with `found`:
name, path, paths (of all shards), bytes and shards of each GGUF model that is none of `known` under any name,
and of each file that the downloader has set aside.
`sources` are the repositories in that folder, by OWNER/NAME@COMMIT, with paths and bytes.
`remove` takes nothing but the files named, each in models_dir, and the downloader's parts of them; then the
folders that this left empty.

Python 3.10 or newer, standard library only.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
# Parts of a model and no model of their own, by llama.cpp's own rules for a models folder.
HELPERS = re.compile(r"mmproj|^(mtp|dspark|dflash)-")
CACHED = re.compile(r"^models--(?P<repo>.+?)/snapshots/[^/]+/(?P<file>.+)$")
# What the downloader calls a file that was another one than the lock says.
ASIDE = re.compile(r"\.gguf\.set-aside-\w+-*$")
PARTS = (".part", ".part.json", ".copy.part")


class Refused(Exception):
    """Nothing was removed; the text says why."""


def gguf_files(folders: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """(folder, file) of every GGUF under the folders; a cache's blobs show under their snapshots' names."""
    for folder in map(Path, folders):
        for place, _, names in os.walk(folder):
            for name in sorted(names):
                if name.endswith(".gguf") or ASIDE.search(name):
                    yield folder, Path(place, name)


def name_of(folder: Path, path: Path) -> str:
    """OWNER/REPO/FILE in a Hugging Face cache, else the path in its folder."""
    inside = path.relative_to(folder).as_posix()
    cached = CACHED.match(inside)
    return f"{cached['repo'].replace('--', '/')}/{cached['file']}" if cached else inside


def find(folders: Sequence[str], known: Sequence[str]) -> list[dict[str, Any]]:
    """Models that are none of `known`. A file of several names, by links, counts once."""
    seen: set[tuple[int, int]] = set()
    for path in map(Path, known):
        try:
            seen.add((path.stat().st_dev, path.stat().st_ino))
        except OSError:
            continue
    found: dict[str, dict[str, Any]] = {}
    for folder, path in gguf_files(folders):
        try:
            figures = path.stat()
        except OSError:
            continue  # a link to nothing
        mark = (figures.st_dev, figures.st_ino)
        part = HELPERS.search(path.name) and not ASIDE.search(path.name)
        if mark in seen or not stat.S_ISREG(figures.st_mode) or part:
            continue
        seen.add(mark)
        shard = SHARD.match(str(path))
        entry = found.setdefault(
            shard["stem"] if shard else str(path),
            {"name": name_of(folder, path), "path": str(path), "bytes": 0, "shards": 0, "paths": []},
        )
        entry["bytes"] += figures.st_size
        entry["shards"] += 1
        entry["paths"].append(str(path))
    return list(found.values())


def find_sources(folder: Path) -> list[dict[str, Any]]:
    """What was fetched to be converted: FOLDER/OWNER/NAME/COMMIT, whole or in part."""
    found = []
    for place in sorted(folder.glob("*/*/*")):
        paths = sorted(path for path in place.glob("*") if path.is_file() and not path.name.endswith(PARTS))
        paths += sorted(path.with_suffix("") for path in place.glob("*.part"))
        if paths:
            size = sum(path.stat().st_size for path in place.glob("*") if path.is_file())
            name = f"{place.parent.relative_to(folder).as_posix()}@{place.name}"
            found.append({"name": name, "bytes": size, "paths": [str(path) for path in paths]})
    return found


def remove(models_dir: Path, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Removes the files; what is not there is passed over. Raises `Refused` before the first one."""
    home = models_dir.resolve()
    targets = []
    for text in paths:
        path = Path(text)
        # The parent is resolved and the name is not: of a link the link goes, never what it points to.
        if path.name in ("", "..") or home not in (path.parent.resolve() / path.name).parents:
            raise Refused(f"{path} is not in {models_dir}: nothing was removed")
        if path.is_dir() and not path.is_symlink():
            raise Refused(f"{path} is a folder: nothing was removed")
        targets.append(path)
    if not home.is_dir():
        return []
    with (home / ".gb10-fetch.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise Refused(f"a download runs ({lock.read(200).strip()}): nothing was removed") from None
        return [gone for path in targets for gone in remove_file(path, home)]


def remove_file(path: Path, home: Path) -> Iterator[dict[str, Any]]:
    for each in (path, *(path.with_name(path.name + ending) for ending in PARTS)):
        try:
            figures = each.lstat()
            each.unlink()
        except FileNotFoundError:
            continue
        # Another name elsewhere, in a cache say, keeps the bytes on the disk.
        yield {"path": str(each), "freed": figures.st_size if figures.st_nlink == 1 else 0}
    folder = path.parent
    while folder.resolve() != home:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 2 or arguments[0] not in ("list", "remove"):
        print(__doc__, file=sys.stderr)
        return 2
    question = json.loads(arguments[1])
    if arguments[0] == "list":
        found = {"found": find(question["folders"], question["known"])}
        if "sources" in question:
            found["sources"] = find_sources(Path(question["sources"]))
        print(json.dumps(found))
        return 0
    try:
        print(json.dumps({"removed": remove(Path(question["models_dir"]), question["paths"])}))
    except (Refused, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
