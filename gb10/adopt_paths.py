"""From the path of a model file on a box to where the file comes from: a repository and a file in it.

Pure: nothing is looked up. A repository is read off the folders (this project's own layout, a Hugging Face
cache, a copy of a repository), or off the file's name where the catalogue here already has that file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from gb10.catalogue import Catalogue, shard_files
from gb10.lock import COMMIT, Lock
from gb10.model import OWN_FOLDER, FileRef

_NAME = r"[A-Za-z0-9][\w.-]*"
_CACHE = re.compile(
    rf"(?P<root>/.*?)/models--(?P<owner>{_NAME}?)--(?P<name>{_NAME})"
    r"/snapshots/(?P<revision>[^/]+)/(?P<file>.+)"
)
_REPOSITORY = re.compile(rf"(?P<owner>{_NAME})/(?P<name>{_NAME})/(?P<file>[\w.+-]+(?:/[\w.+-]+)*)")
_COPY = re.compile(rf"(?P<root>/.*?)/(?P<owner>{_NAME})/(?P<name>{_NAME}-GGUF)/(?P<file>[\w.+/-]+)")
_OLD_CACHE = re.compile(
    rf"(?P<root>/.*)/(?P<owner>[A-Za-z0-9][A-Za-z0-9.-]*)_(?P<name>{_NAME}?-GGUF)_(?P<file>[\w.+-]+)"
)


@dataclass(frozen=True)
class Place:
    """Where a file lies and where it comes from.

    ``path`` is on the host. ``ref`` is None when the repository is not known, ``own`` is the folder's name
    for a file that was made at home. ``root`` is the models folder when the path has its layout
    (ROOT/OWNER/NAME/FILE), ``search`` a folder to look in for the file when it has not. ``how`` says how the
    repository was found; empty where the layout leaves no doubt.
    """

    path: str
    ref: FileRef | None
    own: str | None = None
    root: str | None = None
    search: str | None = None
    how: str = ""


@dataclass(frozen=True)
class Places:
    """How the paths of a preset file are to be read.

    ``mounts`` are (folder in the container, folder on the host), ``roots`` the folders on the host that
    may be the models folder, ``known`` files by their name.
    """

    mounts: tuple[tuple[str, str], ...] = ()
    roots: tuple[str, ...] = ()
    known: Mapping[str, FileRef] | None = None

    def on_host(self, path: str) -> str:
        """The path on the host: the innermost mount that holds it decides, without one it is the same."""
        for inside, outside in sorted(self.mounts, key=lambda pair: -len(pair[0])):
            if PurePosixPath(path).is_relative_to(inside):
                return str(PurePosixPath(outside) / PurePosixPath(path).relative_to(inside))
        return path

    def find(self, path: str) -> Place:
        """Where the file at ``path`` (as the router sees it) comes from."""
        host = self.on_host(path)
        cached = _CACHE.fullmatch(host)
        if cached:
            revision = cached["revision"] if COMMIT.fullmatch(cached["revision"]) else None
            return Place(host, _ref(cached, revision), search=cached["root"])
        roots = [root for root in self.roots if PurePosixPath(host).is_relative_to(root)]
        for root in sorted(roots, key=len, reverse=True):
            inside = _REPOSITORY.fullmatch(str(PurePosixPath(host).relative_to(root)))
            if inside and inside["owner"] == OWN_FOLDER:
                return Place(host, None, own=inside["name"], root=root)
            if inside:
                return Place(host, _ref(inside), root=root)
        known = (self.known or {}).get(PurePosixPath(host).name)
        folder = str(PurePosixPath(host).parent)
        if known:
            how = f"{known.repo}, as the catalogue here has a file of this name"
            return Place(host, known, search=folder, how=how)
        for pattern in (_COPY, _OLD_CACHE):
            copy = pattern.fullmatch(host)
            if copy:
                how = f"{copy['owner']}/{copy['name']}, read off the path"
                root_found = copy["root"] if pattern is _COPY else None
                return Place(host, _ref(copy), root=root_found, search=folder, how=how)
        return Place(host, None, search=folder)


def _ref(match: re.Match[str], revision: str | None = None) -> FileRef:
    return FileRef(f"{match['owner']}/{match['name']}", revision, match["file"])


def known_files(catalogue: Catalogue | None, lock: Lock | None) -> dict[str, FileRef]:
    """The files of a catalogue and its lock by their name; a name that two repositories share is left out."""
    refs = [
        FileRef(part.repo, part.revision, name)
        for model in (catalogue.models if catalogue else ())
        for part in model.files
        for name in shard_files(part.file)
    ]
    refs += [FileRef(entry.repo, None, entry.file) for entry in (lock.files.values() if lock else ())]
    found: dict[str, FileRef] = {}
    shared: set[str] = set()
    for ref in refs:
        name = PurePosixPath(ref.file).name
        if name in found and (found[name].repo, found[name].file) != (ref.repo, ref.file):
            shared.add(name)
        found.setdefault(name, ref)
    return {name: ref for name, ref in found.items() if name not in shared}


def usual_root(places: Iterable[Place]) -> str | None:
    """The models folder: the root that most files have, or None when none lies in such a layout."""
    roots = Counter(place.root for place in places if place.root)
    return roots.most_common(1)[0][0] if roots else None
