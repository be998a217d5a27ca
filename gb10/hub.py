"""The model hub as seen from here: what a revision holds, and bytes of a file by range.

Speaks the Hugging Face hub's own HTTP: ``/api/models/REPO/revision/REV?blobs=true`` for the list of files and
``/REPO/resolve/COMMIT/FILE`` for their bytes. The token goes to the hub's own origin and into no message.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gb10.gguf import GgufError, Header, join_shards, read_header
from gb10.lock import COMMIT, SHA256, LockedFile
from gb10.model import FileRef, Model, shard_number
from gb10.web import Answer, Web, WebError, WebStatusError

SMALL = 16 * 1024**2
"""Bytes. Files that are not in LFS come without a sha256; up to this size they are read to make one."""


class HubError(Exception):
    """The hub cannot say it. One line: what, and what to do."""


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it: ``size`` in bytes; ``sha256`` None for one that is not in LFS.

    ``blob`` is git's id of the content of such a one, None where the hub does not say.
    """

    size: int
    sha256: str | None
    blob: str | None = None


@dataclass(frozen=True)
class Revision:
    """A repository at one commit."""

    repo: str
    commit: str
    files: Mapping[str, HubFile]


def read_token() -> str | None:
    """The hub's token of this user: HF_TOKEN, or the file that the hub's own tools keep. None without one."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    path = Path(os.environ.get("HF_TOKEN_PATH", home / "token"))
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


class HubClient:
    """``base``: the hub's URL. ``token``: for gated repositories. Every method raises `HubError`."""

    def __init__(self, base: str, token: str | None = None, timeout_s: float = 30.0) -> None:
        if token and not re.fullmatch(r"[!-~]+", token):
            raise HubError("the hub's token is not one plain word: check HF_TOKEN, or the hub's token file")
        self.base = base.rstrip("/")
        self._has_token = token is not None
        self._web = Web(timeout_s, self.base, f"Bearer {token}" if token else None)
        self._revisions: dict[tuple[str, str], Revision] = {}

    def revision(self, repo: str, revision: str) -> Revision:
        """The commit that a branch, a tag or a commit stands for, with all its files; asked for once."""
        if (repo, revision) not in self._revisions:
            self._revisions[repo, revision] = self._ask(repo, revision)
        return self._revisions[repo, revision]

    def _ask(self, repo: str, revision: str) -> Revision:
        where = f"{self.base}/api/models/{repo}/revision/{urllib.parse.quote(revision, safe='')}?blobs=true"
        try:
            data = json.loads(self._web.get(where).body)
            commit, files = str(data["sha"]), {}
            for entry in data["siblings"]:
                digest = (entry.get("lfs") or {}).get("sha256")
                known = isinstance(digest, str) and SHA256.fullmatch(digest)
                # That of a file in LFS is of its pointer.
                blob = None if known else entry.get("blobId")
                files[str(entry["rfilename"])] = HubFile(
                    int(entry.get("size") or 0), digest if known else None, blob and str(blob)
                )
        except WebError as error:
            raise HubError(self._explain(error, repo, f"revision {revision}")) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise HubError(f"{repo}: {self.base} does not answer as a model hub does") from None
        if not COMMIT.fullmatch(commit):
            raise HubError(f"{repo}: the hub names {commit[:60]!r} as commit of {revision}, which is none")
        return Revision(repo, commit, files)

    def locked(self, repo: str, revision: str, file: str) -> LockedFile:
        """Commit, size and sha256 of one file. A small file that the hub has no sha256 for is read."""
        found = self.revision(repo, revision)
        entry = found.files.get(file)
        if entry is None:
            raise HubError(f"{repo}: no {file} at revision {revision}{_likely(file, found)}")
        sha256 = entry.sha256
        if sha256 is None:
            if entry.size > SMALL:
                raise HubError(f"{repo}: the hub has no sha256 of {file} ({entry.size} bytes)")
            content = self._get(repo, found.commit, file, {}).body
            if len(content) != entry.size or entry.blob not in (None, _blob(content)):
                raise HubError(
                    f"{repo}: {file}: what came ({len(content)} bytes) is not what the hub lists "
                    f"({entry.size} bytes): is there a login page between this network and the hub?"
                )
            return LockedFile(repo, found.commit, file, len(content), hashlib.sha256(content).hexdigest())
        return LockedFile(repo, found.commit, file, entry.size, sha256)

    def header(self, files: list[LockedFile]) -> Header:
        """The GGUF header of a model, given all its shards in order; a few MB by range requests."""
        try:
            return join_shards([read_header(HubReader(self, file), file_size=file.size) for file in files])
        except GgufError as error:
            raise HubError(f"{files[0].repo}: {files[0].file}: {error}") from None

    def _get(self, repo: str, commit: str, file: str, headers: Mapping[str, str]) -> Answer:
        where = f"{self.base}/{repo}/resolve/{commit}/{urllib.parse.quote(file)}"
        try:
            return self._web.get(where, headers)
        except WebError as error:
            raise HubError(self._explain(error, repo, file)) from None

    def read(self, file: LockedFile, offset: int, size: int) -> bytes:
        """``size`` bytes of a file from ``offset`` on; fewer at its end."""
        if size <= 0 or (file.size is not None and offset >= file.size):
            return b""
        span = {"Range": f"bytes={offset}-{offset + size - 1}"}
        answer = self._get(file.repo, file.revision, file.file, span)
        # 200: a server that ignores ranges sent the whole file.
        start = offset if answer.status == 200 else 0
        return answer.body[start : start + size]

    def _explain(self, error: WebError, repo: str, what: str) -> str:
        if isinstance(error, WebStatusError) and error.status in (401, 403):
            token = (
                "the token does not open it: ask for access with its account"
                if self._has_token
                else "gated, or no such repository: set HF_TOKEN if it is gated"
            )
            return f"{repo}: {error.status} from the hub: {token}"
        if isinstance(error, WebStatusError) and error.status == 404:
            return f"{repo}: 404 from the hub: no {what}"
        return f"{repo}: {error}"


@dataclass(frozen=True)
class HubReader:
    """A RangeReader (`gb10.gguf`) for a file on the hub."""

    hub: HubClient
    file: LockedFile

    def read(self, offset: int, size: int) -> bytes:
        """``size`` bytes from ``offset`` on. Raises `HubError`."""
        return self.hub.read(self.file, offset, size)


def _blob(content: bytes) -> str:
    """Git's id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _likely(file: str, revision: Revision) -> str:
    from difflib import get_close_matches

    close = get_close_matches(file, list(revision.files), n=1)
    return f": did you mean {close[0]}?" if close else ""


def resolve_model(hub: HubClient, model: Model, revision_of: Mapping[str, str]) -> list[LockedFile]:
    """Every file of a model that the hub has, with the headers of first shards. Raises `HubError`.

    ``revision_of``: which revision to take of a repository that the catalogue gives none for (``main`` else).
    """
    locked: dict[FileRef, LockedFile] = {}
    for ref in model.hub_files:
        revision = ref.revision or revision_of.get(ref.repo, "main")
        locked[ref] = hub.locked(ref.repo, revision, ref.file)
    for first in [ref for ref in locked if ref.file.endswith(".gguf") and _leads(ref)]:
        shards = [
            entry for ref, entry in locked.items() if ref.repo == first.repo and _set(ref) == _set(first)
        ]
        locked[first] = replace(locked[first], header=hub.header(shards).to_dict())
    return list(locked.values())


def _leads(file: FileRef) -> bool:
    number = shard_number(file.file)
    return number is None or number[0] == 1


def _set(file: FileRef) -> str:
    """What the shards of one set have in common; the name itself for a file that is not split."""
    return re.sub(r"-\d{5}(-of-\d{5}\.gguf)$", r"\1", file.file)
