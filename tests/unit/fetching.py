"""A box's folders and a real hub on this machine, for the tests of the downloader."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.hub import Fault, Hub, HubFile, HubHandler, HubRepo, HubServer

PROGRAM = Path(__file__).parents[2] / "files" / "gb10_fetch.py"
COMMIT = "a" * 40
REPO = "lab/model"
MB = 1_000_000


class PickyHub(Hub):
    """A hub whose servers may ignore Range, and send the whole file when If-Range names another ETag.

    `cdn` (host:port): where its redirects lead, if not to itself.
    """

    ignores_range = False
    cdn = ""

    def _resolve(self, handler: HubHandler, name: str, revision: str, filename: str, fault: Fault) -> None:
        if self.cdn:
            handler.headers.replace_header("Host", self.cdn)
        super()._resolve(handler, name, revision, filename, fault)

    def _blob(self, handler: HubHandler, name: str, digest: str, fault: Fault) -> None:
        if_range = handler.headers.get("If-Range")
        if self.ignores_range or (if_range is not None and if_range != f'"{digest}"'):
            del handler.headers["Range"]
        super()._blob(handler, name, digest, fault)


@dataclass
class Run:
    """A finished run: its exit status and what it said."""

    rc: int
    events: list[dict[str, Any]]
    text: str

    def of(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.events if entry["event"] == event]

    @property
    def errors(self) -> str:
        return "\n".join(entry["message"] for entry in self.of("error"))


@dataclass
class Box:
    """`folder`/models is the models folder; `files` are on the hub as REPO at COMMIT."""

    folder: Path
    models: Path = field(init=False)
    files: dict[str, HubFile] = field(default_factory=dict)
    hub: PickyHub = field(init=False)
    url: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.models = self.folder / "models"
        self.hub = PickyHub()

    def add(self, name: str, size: int = 4 * MB) -> HubFile:
        path = self.folder / "hub" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(size))
        self.files[name] = HubFile(name, path)
        self.publish()
        return self.files[name]

    def publish(self, token: str | None = None, without: str = "") -> None:
        there = tuple(file for file in self.files.values() if file.name != without)
        self.hub.repos = {REPO: HubRepo(REPO, COMMIT, there, token)}

    def path(self, name: str) -> Path:
        return self.models / REPO / name

    def part(self, name: str) -> Path:
        return self.path(name + ".part")

    def left(self) -> list[str]:
        """Names in the model's folder."""
        return sorted(path.name for path in (self.models / REPO).iterdir())

    def part_sizes(self) -> list[int]:
        sizes = []
        for path in self.models.rglob("*.part"):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        return sizes

    def manifest(self) -> Path:
        files = [
            {
                "repo": REPO,
                "revision": COMMIT,
                "file": file.name,
                "size": file.size,
                "sha256": file.sha256,
                "path": str(self.path(file.name)),
            }
            for file in self.files.values()
        ]
        data = {
            "models_dir": str(self.models),
            "hub": self.url,
            "token_file": None,
            "parallel": 2,
            "reserve_bytes": 0,
            "search": [],
            "files": files,
            "backoff_s": 0.02,
            **self.settings,
        }
        path = self.folder / "manifest.json"
        path.write_text(json.dumps(data))
        return path

    def start(self, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), *options, str(self.manifest())]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self) -> Run:
        return finish(self.start())

    def check(self) -> dict[str, Any]:
        process = self.start("--check")
        output = process.communicate(timeout=60)[0]
        assert process.returncode == 0, output
        found: dict[str, Any] = json.loads(output)
        return found

    def states(self) -> list[str]:
        return [entry["state"] for entry in self.check()["files"]]

    def blob_requests(self, name: str) -> list[dict[str, str]]:
        """Headers of the requests for a file's bytes."""
        return [
            request.headers
            for request in self.hub.requests
            if request.path.startswith("/cdn/") and request.path.endswith(name)
        ]


def finish(process: subprocess.Popen[str]) -> Run:
    output = process.communicate(timeout=60)[0]
    events = [json.loads(line) for line in output.splitlines()]
    assert events, "the program says how it ended"
    assert events[-1]["event"] == "result"
    assert events[-1]["ok"] is (process.returncode == 0)
    return Run(process.returncode, events, output)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it never came true"
        time.sleep(0.02)


def served(box: Box) -> HubServer:
    """The box's hub on a free port; use it as a context."""
    server = HubServer(box.hub)
    box.url = server.url
    return server
