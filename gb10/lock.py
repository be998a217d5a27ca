"""The lock: what the names of catalogue and data stand for, to the byte. Written by ``gb10 pin``, committed.

It is JSON, in a stable order and one file a block, so that a difference reads well in a review.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gb10.faults import BadInput, Fault
from gb10.rendering import shown

VERSION = 1
COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_WRITE = "write it anew: `gb10 pin`"


@dataclass(frozen=True)
class Recipe:
    """How a file was made at home: from which repository (the file's revision is the source's), by the
    converter of which llama.cpp commit, by which ``--outtype``. The same recipe makes the same file anywhere.
    """

    repo: str
    converter: str
    outtype: str


@dataclass(frozen=True)
class LockedFile:
    """One file of the hub at one commit: ``size`` in bytes, ``header`` what the memory plan needs of a GGUF.

    ``size``, ``sha256`` and ``header`` are None until they are known; without size and sha256 the file is not
    fetched. ``recipe``: it is on no hub, but made at home; ``revision`` is then that of its source.
    """

    repo: str
    revision: str
    file: str
    size: int | None = None
    sha256: str | None = None
    header: dict[str, Any] | None = None
    recipe: Recipe | None = None


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp's ref and its commit; ``options``: the file in the repository that lists its preset keys."""

    ref: str
    commit: str
    options: str


@dataclass(frozen=True)
class Lock:
    """The whole lock. ``images`` maps NAME:TAG to ``sha256:…``; ``files`` is keyed by (repo, file)."""

    llama_cpp: LlamaCpp | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[tuple[str, str], LockedFile] = field(default_factory=dict)

    def with_files(self, files: Iterable[LockedFile]) -> Lock:
        """A copy in which these files are added, or replaced."""
        merged = {**self.files, **{(entry.repo, entry.file): entry for entry in files}}
        return replace(self, files=MappingProxyType(merged))


def load_lock(path: Path) -> Lock:
    """Reads a lock file. Raises `BadInput` with every fault."""
    if not path.is_file():
        raise BadInput([Fault(shown(path), "no such lock file", "write it: `gb10 pin`")])
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(
            [Fault(shown(path), f"not JSON: {error}", "take it back from git, or `gb10 pin`")]
        ) from None
    return _Reader(shown(path)).lock(data)


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.faults: list[Fault] = []

    def fault(self, key: str, what: str) -> None:
        self.faults.append(Fault(f"{self.name} {key}", what, _WRITE))

    def mapping(self, value: object, key: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self.fault(key, "should be an object")
        return {}

    def text(
        self, source: Mapping[str, Any], key: str, where: str, shape: re.Pattern[str] | None = None
    ) -> str:
        value = source.get(key)
        if not isinstance(value, str) or not value or (shape and not shape.fullmatch(value)):
            self.fault(f"{where}.{key}", f"should be {shape.pattern if shape else 'a text'}, is {value!r}")
            return ""
        return value

    def lock(self, data: object) -> Lock:
        top = self.mapping(data, "the file")
        if top.get("version") != VERSION:
            self.fault("version", f"should be {VERSION}, is {top.get('version')!r}")
        for key in sorted(set(top) - {"version", "llama.cpp", "images", "files"}):
            self.fault(key, "no such key")
        llama_cpp = None
        if top.get("llama.cpp") is not None:
            entry = self.mapping(top["llama.cpp"], "llama.cpp")
            llama_cpp = LlamaCpp(
                ref=self.text(entry, "ref", "llama.cpp"),
                commit=self.text(entry, "commit", "llama.cpp", COMMIT),
                options=self.text(entry, "options", "llama.cpp"),
            )
        images = self.mapping(top.get("images", {}), "images")
        for image in images:
            self.text(images, image, "images", DIGEST)
        files: dict[tuple[str, str], LockedFile] = {}
        entries = top.get("files", [])
        if not isinstance(entries, list):
            self.fault("files", "should be a list")
            entries = []
        for number, raw in enumerate(entries):
            locked = self.file(self.mapping(raw, f"files[{number}]"), f"files[{number}]")
            if (locked.repo, locked.file) in files:
                self.fault(f"files[{number}]", f"{locked.repo} {locked.file} is there twice")
            files[locked.repo, locked.file] = locked
        if self.faults:
            raise BadInput(self.faults)
        return Lock(llama_cpp, MappingProxyType(images), MappingProxyType(files))

    def file(self, entry: Mapping[str, Any], where: str) -> LockedFile:
        size, header = entry.get("size"), entry.get("header")
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size <= 0):
            self.fault(f"{where}.size", f"should be a number of bytes or null, is {size!r}")
        if header is not None and not isinstance(header, dict):
            self.fault(f"{where}.header", "should be an object or null")
        for key in sorted(set(entry) - {"repo", "revision", "file", "size", "sha256", "header", "recipe"}):
            self.fault(f"{where}.{key}", "no such key")
        return LockedFile(
            repo=self.text(entry, "repo", where),
            revision=self.text(entry, "revision", where, COMMIT),
            file=self.text(entry, "file", where),
            size=size,
            sha256=self.text(entry, "sha256", where, SHA256) if entry.get("sha256") is not None else None,
            header=header,
            recipe=self.recipe(entry["recipe"], f"{where}.recipe") if "recipe" in entry else None,
        )

    def recipe(self, value: object, where: str) -> Recipe:
        entry = self.mapping(value, where)
        for key in sorted(set(entry) - {"repo", "converter", "outtype"}):
            self.fault(f"{where}.{key}", "no such key")
        return Recipe(
            repo=self.text(entry, "repo", where),
            converter=self.text(entry, "converter", where, COMMIT),
            outtype=self.text(entry, "outtype", where),
        )


def render_lock(lock: Lock) -> str:
    """The lock as text: the same lock always gives the same bytes."""

    def compact(value: object) -> str:
        return json.dumps(value, sort_keys=True, ensure_ascii=False)

    def block(entries: Mapping[str, object], indent: str) -> str:
        lines = [f"{indent}  {compact(key)}: {compact(value)}" for key, value in entries.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"

    parts = [f'  "version": {VERSION}']
    if lock.llama_cpp:
        parts.append(f'  "llama.cpp": {block(vars(lock.llama_cpp), "  ")}')
    if lock.images:
        parts.append(f'  "images": {block(dict(sorted(lock.images.items())), "  ")}')
    entries = [f"    {block(_shown(entry), '    ')}" for _, entry in sorted(lock.files.items())]
    parts.append('  "files": [' + ("\n" + ",\n".join(entries) + "\n  " if entries else "") + "]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _shown(entry: LockedFile) -> dict[str, object]:
    recipe = {"recipe": vars(entry.recipe)} if entry.recipe else {}
    return {key: value for key, value in vars(entry).items() if key != "recipe"} | recipe


def write_lock(path: Path, lock: Lock) -> None:
    """Writes the lock so that an interrupted write leaves the old file."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(render_lock(lock), encoding="utf-8")
    fresh.replace(path)
