"""Models that lie on the box and not in the catalogue: served with the defaults, and counted like any other.

The preset file names each of them, so that the router serves what was counted and nothing else. Its own
search is not used: it reads the cache again at every reload, hides a duplicate from the list only (it still
loads by its name), and leaves at its start when a cached model has the name of an alias.

Pure: the answer of the probe in, models out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gb10.boxdata import BoxData
from gb10.fetch_manifest import model_files
from gb10.gguf import GgufError, Header
from gb10.lock import Lock
from gb10.model import Catalogue
from gb10.plan import Found, Source
from gb10.preset_rules import refuse_text
from gb10.presets import model_path
from gb10.shape import shape_of

MOUNTS = {"cache": "/found/cache", "folder": "/found/folder"}
"""Where the container sees the two places. Not where the box has them: below /root of the container no other
user gets."""

# As the router names a cached model: OWNER/NAME:TAG.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*(:[A-Z0-9_]+)?")


@dataclass(frozen=True)
class FoundModel:
    """One model. ``path`` and ``projector`` (or "") are those in the container, ``paths`` those of all shards
    on the box; sizes in bytes."""

    name: str
    path: str
    paths: tuple[str, ...]
    size: int
    projector: str
    projector_size: int
    header: Header

    @property
    def keys(self) -> dict[str, str]:
        """Its section of the preset file; everything else comes from ``[*]``."""
        keys = {"model": self.path}
        if self.projector:
            keys["mmproj"] = self.projector
        return keys

    @property
    def counted(self) -> Found:
        """What the memory plan needs of it."""
        return Found(self.name, Source(self.header, self.size), self.projector_size, self.paths[0])


@dataclass(frozen=True)
class Passed:
    """A model file that is not served, and why; ``path`` on the box, ``size`` in bytes."""

    name: str
    path: str
    size: int
    why: str


@dataclass(frozen=True)
class FoundOnBox:
    """All that was found, sorted by name."""

    models: tuple[FoundModel, ...] = ()
    passed: tuple[Passed, ...] = ()


def places(data: BoxData) -> dict[str, str]:
    """The folders on the box by their kind, ``cache`` or ``folder``, without those that are off."""
    named = {"cache": data.models_found_cache, "folder": data.models_found_folder}
    return {kind: path for kind, path in named.items() if path}


def found_question(data: BoxData, catalogue: Catalogue, lock: Lock) -> dict[str, Any] | None:
    """The question of the probe; None where there is no place to look at.

    A model that is off in the catalogue is the catalogue's too: so one that is found is kept from serving.
    """
    if not places(data):
        return None
    known = []
    paths = []
    for model in catalogue.models:
        if model.file is not None:
            own = model_files(model, PurePosixPath(data.models_dir))
            paths += [str(path) for path in own or [model_path(PurePosixPath(data.models_dir), model)]]
        for file in model.files:
            locked = lock.files.get((file.repo, file.file))
            size, sha256 = (locked.size, locked.sha256) if locked else (None, None)
            known.append({"repo": file.repo, "file": file.file, "size": size, "sha256": sha256})
    return {
        "cache": data.models_found_cache,
        "folder": data.models_found_folder,
        "known": known,
        "paths": sorted(set(paths)),
    }


def read_found(answer: Mapping[str, Any], catalogue: Catalogue) -> FoundOnBox:
    """The answer of the probe as models. What the preset file or the plan cannot take is passed over."""
    taken = {name for model in catalogue.models for name in (model.name, *model.aliases)}
    models = []
    passed = [
        Passed(entry["name"], entry["path"], entry["bytes"], entry["why"]) for entry in answer["passed"]
    ]
    for entry in sorted(answer["models"], key=lambda entry: (entry["name"], entry["file"])):
        name = entry["name"] if entry["name"] not in taken else entry["other"]
        why = _refused(name, taken, entry)
        if why:
            passed.append(Passed(name, entry["paths"][0], entry["bytes"], why))
            continue
        taken.add(name)
        mount = MOUNTS[entry["place"]]
        models.append(
            FoundModel(
                name=name,
                path=f"{mount}/{entry['file']}",
                paths=tuple(entry["paths"]),
                size=entry["bytes"],
                projector=f"{mount}/{entry['projector']}" if entry["projector"] else "",
                projector_size=entry["projector_bytes"],
                header=Header.from_dict(entry["header"]),
            )
        )
    return FoundOnBox(tuple(models), tuple(sorted(passed, key=lambda one: one.name)))


def _refused(name: str, taken: set[str], entry: Mapping[str, Any]) -> str | None:
    if name in taken:
        return f"the name {name} is taken in the catalogue"
    if not _NAME.fullmatch(name) or name == "default":
        return "its name cannot be one of a model: rename it"
    for path in (entry["file"], entry["projector"]):
        if path and (why := refuse_text(path)):
            return f"its path {why}: rename it"
    try:
        shape_of(Header.from_dict(entry["header"]))
    except GgufError as error:
        return str(error)
    return None
