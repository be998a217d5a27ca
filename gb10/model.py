"""A model of the catalogue as data, every default filled in.

What the lock adds to it (revision, size, hash of each file) is not in here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")

OWN_FOLDER = "own"
"""Folder below the models folder for GGUF files that were made at home."""


@dataclass(frozen=True)
class FileRef:
    """One file on the hub. ``revision`` None: the lock says which."""

    repo: str
    revision: str | None
    file: str


@dataclass(frozen=True)
class Clients:
    """Whom a model is for: ``count`` at the same time, each with ``tokens`` of prompt and answer together."""

    count: int
    tokens: int


@dataclass(frozen=True)
class Conversion:
    """A GGUF that is made at home: from which repository, by which ``--outtype`` of the converter."""

    repo: str
    revision: str | None
    outtype: str


@dataclass(frozen=True)
class Model:
    """One entry of the catalogue, defaults filled in.

    ``ctx_size`` and ``kv_unified_per_slot`` are in tokens, ``cache_ram_mib`` in MiB. ``repo`` is None for a
    conversion. ``own`` holds the keys that the entry itself sets, all else came from the defaults.
    ``options`` are further preset keys of llama.cpp as text, ``sampling`` likewise.
    """

    name: str
    where: str
    enabled: bool
    reason: str | None
    aliases: tuple[str, ...]
    tags: tuple[str, ...]
    repo: str | None
    revision: str | None
    file: str | None
    projector: FileRef | None
    draft: FileRef | None
    chat_template: str | None
    chat_template_file: FileRef | None
    conversion: Conversion | None
    ctx_size: int
    parallel: int
    kv_unified: bool
    kv_unified_per_slot: int | None
    cache_type: str
    cache_ram_mib: int
    load_on_startup: bool
    clients: Clients | None
    sampling: Mapping[str, str]
    options: Mapping[str, str]
    own: frozenset[str]

    @property
    def weights(self) -> tuple[FileRef, ...]:
        """The model file, all shards of it. That of a conversion is in no repository: its place stands for
        one, and its revision is that of the source."""
        if self.file is None:
            return ()
        if self.conversion is not None:
            return (FileRef(own_repo(self.name), self.conversion.revision, self.file),)
        if self.repo is None:
            return ()
        return tuple(FileRef(self.repo, self.revision, name) for name in shard_files(self.file))

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Every file that the model needs: shards, projector, chat template, draft with its shards."""
        drafts: tuple[FileRef, ...] = ()
        if self.draft:
            drafts = tuple(
                FileRef(self.draft.repo, self.draft.revision, name) for name in shard_files(self.draft.file)
            )
        more = [part for part in (self.projector, self.chat_template_file) if part]
        return (*self.weights, *more, *drafts)

    @property
    def hub_files(self) -> tuple[FileRef, ...]:
        """Those of its files that come from the hub: all but what is made at home."""
        return self.files if self.conversion is None else self.files[len(self.weights) :]


@dataclass(frozen=True)
class Catalogue:
    """All models. ``defaults`` are the preset keys that every model shares, as the ``[*]`` section holds them
    (device, models folder and the like are not in it: they are of the host)."""

    path: Path
    defaults: Mapping[str, str]
    models: tuple[Model, ...] = field(default=())

    @property
    def enabled(self) -> tuple[Model, ...]:
        """The models that are served."""
        return tuple(model for model in self.models if model.enabled)

    @property
    def off(self) -> tuple[Model, ...]:
        """The models that are not served; each has its reason."""
        return tuple(model for model in self.models if not model.enabled)

    @property
    def on_startup(self) -> tuple[Model, ...]:
        """The models that the router loads when it starts."""
        return tuple(model for model in self.enabled if model.load_on_startup)

    def model(self, name: str) -> Model | None:
        """The model with this name or alias, or None."""
        return next((m for m in self.models if name == m.name or name in m.aliases), None)


def own_repo(name: str) -> str:
    """What stands for the repository of a file that was made at home: its folder in the models folder."""
    return f"{OWN_FOLDER}/{name}"


def shard_files(file: str) -> tuple[str, ...]:
    """All shards of a model, given its first (``NAME-00001-of-00003.gguf``); the file itself if not split."""
    shard = _SHARD.fullmatch(file)
    if not shard:
        return (file,)
    count = int(shard["count"])
    return tuple(f"{shard['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1))


def shard_number(file: str) -> tuple[int, int] | None:
    """(number, count) of a shard's name, or None for a model in one file."""
    shard = _SHARD.fullmatch(file)
    return (int(shard["number"]), int(shard["count"])) if shard else None
