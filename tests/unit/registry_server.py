"""An image registry on this machine: manifests by tag, behind a bearer token as Docker Hub has it."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-token-for-one-image"


class RegistryServer(ThreadingHTTPServer):
    """`manifests` maps PATH:TAG to the manifest's bytes; `lies` makes it name a wrong digest."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.manifests: dict[str, bytes] = {}
        self.lies = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def __enter__(self) -> RegistryServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: RegistryServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/token":
            assert parse_qs(url.query)["service"] == ["test"]
            return self._answer(200, json.dumps({"token": TOKEN + parse_qs(url.query)["scope"][0]}).encode())
        path, _, tag = url.path.removeprefix("/v2/").partition("/manifests/")
        scope = f"repository:{path}:pull"
        if self.headers.get("Authorization") != f"Bearer {TOKEN}{scope}":
            realm = f'Bearer realm="http://{self.server.address}/token",service="test",scope="{scope}"'
            return self._answer(401, b"{}", {"WWW-Authenticate": realm})
        body = self.server.manifests.get(f"{path}:{tag}")
        if body is None:
            return self._answer(404, b"{}")
        digest = "sha256:" + ("0" * 64 if self.server.lies else hashlib.sha256(body).hexdigest())
        assert "image.index" in self.headers["Accept"]
        return self._answer(200, body, {"Docker-Content-Digest": digest})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Quiet."""
