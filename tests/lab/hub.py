"""A model hub on this machine that answers as the Hugging Face hub does, with faults on demand.

GET and HEAD of /{org}/{repo}/resolve/{rev}/{file} redirect (302) to a CDN-like path on the same server, with
X-Repo-Commit, X-Linked-Size and X-Linked-Etag (the file's sha256, quoted) as the hub sends for LFS files;
/api/models/{org}/{repo}/revision/{rev} lists a revision, with sizes and sha256 under ?blobs=true. The CDN
path knows Range (206, 416) and ETag. Gated repositories answer 401 without the right bearer token.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.lab.faults import Fault, Faults, write_faults

__all__ = [
    "Fault",
    "Faults",
    "Hub",
    "HubFile",
    "HubHandler",
    "HubRepo",
    "HubServer",
    "Request",
    "write_faults",
]

_BLOCK = 1 << 16


@dataclass(frozen=True)
class HubFile:
    """A file of a repository: its name there and where its bytes are."""

    name: str
    path: Path

    @cached_property
    def sha256(self) -> str:
        """Of the content, 64 hex digits."""
        with self.path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()

    @property
    def size(self) -> int:
        """In bytes."""
        return self.path.stat().st_size


@dataclass(frozen=True)
class HubRepo:
    """A repository at one revision: `name` is org/repo, `commit` 40 hex digits; `token` makes it gated."""

    name: str
    commit: str
    files: tuple[HubFile, ...]
    token: str | None = None
    branches: tuple[str, ...] = ("main",)

    def knows(self, revision: str) -> bool:
        """True for a branch, the commit, or seven and more of its digits."""
        return revision in self.branches or (len(revision) >= 7 and self.commit.startswith(revision))

    def file(self, name: str) -> HubFile | None:
        """The file of that name."""
        return next((file for file in self.files if file.name == name), None)


@dataclass
class Request:
    """A request as it was answered: method, path, status and the request's headers (names in lower case)."""

    method: str
    path: str
    status: int
    headers: dict[str, str] = field(default_factory=dict)


class Hub:
    """The hub's answers, apart from any server: repositories, faults, and a record of requests.

    `prefix` is the path under which a server mounts it ("/hub", or "" for a server of its own).
    """

    def __init__(
        self, repos: tuple[HubRepo, ...] = (), *, prefix: str = "", control: Path | None = None
    ) -> None:
        self.repos = {repo.name: repo for repo in repos}
        self.prefix = prefix
        self.faults = Faults(control)
        self.requests: list[Request] = []

    def answer(self, handler: HubHandler) -> None:
        """Answer one request, whose path starts with the prefix."""
        url = urlsplit(handler.path)
        path = unquote(url.path).removeprefix(self.prefix)
        fault = self.faults.hit(path)
        parts = path.strip("/").split("/")
        if fault.status is not None:
            handler.plain(fault.status, f"fault: {fault.status}")
        elif parts[:2] == ["api", "models"] and len(parts) >= 4:
            self._api(handler, parts[2:], parse_qs(url.query))
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._resolve(handler, "/".join(parts[:2]), parts[3], "/".join(parts[4:]), fault)
        elif len(parts) >= 5 and parts[0] == "cdn":
            self._blob(handler, "/".join(parts[1:3]), parts[3], fault)
        else:
            handler.error(404, "EntryNotFound", "Entry not found")
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.command, path, handler.answered, headers))

    def _open(self, handler: HubHandler, name: str, revision: str | None) -> HubRepo | None:
        """The repository if this client may see it at this revision; otherwise the refusal is sent."""
        repo = self.repos.get(name)
        if repo is None:
            # The hub does not tell an anonymous client whether a repository exists.
            handler.error(401, "RepoNotFound", "Repository not found")
        elif repo.token is not None and handler.headers.get("Authorization") != f"Bearer {repo.token}":
            handler.error(401, "GatedRepo", f"Access to model {name} is restricted. Please log in.")
        elif revision is not None and not repo.knows(revision):
            handler.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repo
        return None

    def _api(self, handler: HubHandler, parts: list[str], query: dict[str, list[str]]) -> None:
        revision = "/".join(parts[3:]) if len(parts) > 3 and parts[2] == "revision" else "main"
        repo = self._open(handler, "/".join(parts[:2]), revision)
        if repo is None:
            return
        siblings: list[dict[str, object]] = []
        for file in repo.files:
            sibling: dict[str, object] = {"rfilename": file.name}
            if query.get("blobs", ["false"])[0].lower() in ("true", "1"):
                lfs = {"sha256": file.sha256, "size": file.size, "pointerSize": 134}
                sibling |= {"size": file.size, "blobId": file.sha256[:40], "lfs": lfs}
            siblings.append(sibling)
        gated = "manual" if repo.token else False
        body = {
            "id": repo.name,
            "modelId": repo.name,
            "sha": repo.commit,
            "gated": gated,
            "siblings": siblings,
        }
        handler.body(200, json.dumps(body).encode(), "application/json; charset=utf-8")

    def _resolve(self, handler: HubHandler, name: str, revision: str, filename: str, fault: Fault) -> None:
        repo = self._open(handler, name, revision)
        if repo is None:
            return
        file = repo.file(filename)
        if file is None:
            handler.error(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": repo.commit})
            return
        # Absolute, as the hub's is: its CDN is another host.
        cdn = f"http://{handler.headers['Host']}{self.prefix}/cdn/{repo.name}"
        headers = {
            "X-Repo-Commit": repo.commit,
            "Accept-Ranges": "bytes",
            "Location": f"{cdn}/{file.sha256}/{quote(file.name)}",
        }
        if not fault.drop_headers:
            digest = "0" * 64 if fault.wrong_etag else file.sha256
            headers |= {"X-Linked-Size": str(file.size), "X-Linked-Etag": f'"{digest}"'}
        handler.body(302, b"Found. Redirecting", "text/plain; charset=utf-8", headers)

    def _blob(self, handler: HubHandler, name: str, digest: str, fault: Fault) -> None:
        repo = self.repos.get(name)
        file = next((file for file in repo.files if file.sha256 == digest), None) if repo else None
        if file is None:
            handler.plain(403, "AccessDenied")
            return
        first, last = 0, file.size - 1
        headers = {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        wanted = handler.headers.get("Range")
        status = 200
        if wanted is not None and wanted.startswith("bytes=") and "," not in wanted:
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            first = int(begin) if begin else max(0, file.size - int(end))
            last = min(int(end), last) if begin and end else last
            if first > last:
                handler.plain(416, "Range Not Satisfiable", {"Content-Range": f"bytes */{file.size}"})
                return
            status = 206
            headers["Content-Range"] = f"bytes {first}-{last}/{file.size}"
        handler.start(status, last - first + 1, "binary/octet-stream", headers)
        if handler.command != "HEAD":
            _send(handler, file.path, first, last - first + 1, fault)


def _send(handler: HubHandler, path: Path, first: int, length: int, fault: Fault) -> None:
    """Send `length` bytes of the file from `first` on, with the fault in them."""
    sent = 0
    block = _BLOCK if fault.bytes_per_s is None else max(1, min(_BLOCK, fault.bytes_per_s // 10))
    end = length if fault.close_after is None else min(length, fault.close_after)
    with path.open("rb") as handle:
        handle.seek(first)
        while sent < end:
            data = handle.read(min(block, end - sent))
            if fault.corrupt and first + sent == 0:
                data = bytes([data[0] ^ 0xFF]) + data[1:]
            handler.wfile.write(data)
            sent += len(data)
            if fault.bytes_per_s is not None:
                handler.wfile.flush()
                time.sleep(len(data) / fault.bytes_per_s)
    if sent < length:
        handler.close_connection = True


class HubHandler(BaseHTTPRequestHandler):
    """Hands requests to the server's hub; keeps connections open as the hub does."""

    protocol_version = "HTTP/1.1"
    answered = 0

    @property
    def hub(self) -> Hub:
        """The hub of the server this request came to."""
        assert isinstance(self.server, HubServer)
        return self.server.hub

    def do_GET(self) -> None:
        """Answer GET; a client that went away is no error."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.hub.answer(self)

    def do_HEAD(self) -> None:
        """Answer HEAD."""
        self.do_GET()

    def start(self, status: int, length: int, kind: str, headers: dict[str, str] | None = None) -> None:
        """Send the status line and headers for a body of `length` bytes."""
        self.answered = status
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(length), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def body(self, status: int, content: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        """Send a whole answer."""
        self.start(status, len(content), kind, headers)
        if self.command != "HEAD":
            self.wfile.write(content)

    def plain(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        """Send a text."""
        self.body(status, text.encode(), "text/plain; charset=utf-8", headers)

    def error(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        """Refuse as the hub does: X-Error-Code, X-Error-Message and the message as JSON."""
        named = {"X-Error-Code": code, "X-Error-Message": message, **(headers or {})}
        self.body(status, json.dumps({"error": message}).encode(), "application/json; charset=utf-8", named)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing: the record of requests is `Hub.requests`."""


class HubServer(ThreadingHTTPServer):
    """A hub on an address of its own, served in a thread while the context is open. Port 0: any free port."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, hub: Hub, address: tuple[str, int] = ("127.0.0.1", 0), handler: type[HubHandler] = HubHandler
    ):
        self.hub = hub
        super().__init__(address, handler)

    @property
    def url(self) -> str:
        """What a client is told as the hub's address."""
        return f"http://{self.server_address[0]!s}:{self.server_port}{self.hub.prefix}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()
