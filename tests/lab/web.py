"""The lab's HTTP server: the model hub under /hub, the package repository under /libnvidia-container.

Run as `python -m tests.lab.web REFS_FILE` by `services`; it leaves the caller's session and writes its
process there.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.lab import aptrepo, models, network, paths, process
from tests.lab.hub import Hub, HubHandler, HubServer

REPOSITORY = "/libnvidia-container/"
CONTROL_FILE = "hub-faults.json"


def control_file() -> Path:
    """The file that sets faults in the running hub (see `hub.write_faults`)."""
    return paths.cache() / CONTROL_FILE


class LabHandler(HubHandler):
    """The hub's handler, and files of the package repository."""

    repository: Path

    def do_GET(self) -> None:  # noqa: N802 - the base class names it so
        """Answer by path."""
        path = unquote(urlsplit(self.path).path)
        if path.startswith(self.hub.prefix + "/"):
            super().do_GET()
        elif path.startswith(REPOSITORY):
            self._file(self.repository / path.removeprefix(REPOSITORY).lstrip("/"))
        else:
            self.plain(404, "Not Found")

    def _file(self, file: Path) -> None:
        inside = file.resolve().is_relative_to(self.repository.resolve())
        if inside and file.is_file():
            self.body(200, file.read_bytes(), "application/octet-stream")
        else:
            self.plain(404, "Not Found")

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """A line for each request, in the log that `services` opened."""
        print(f"{self.client_address[0]} {self.command} {self.path} {code}", flush=True)


def main() -> int:
    """Make what is served, listen, go into the background, and serve until SIGTERM."""
    LabHandler.repository = aptrepo.ensure()
    hub = Hub(models.repos(), prefix="/hub", control=control_file())
    server = HubServer(hub, (str(network.GATEWAY), network.HTTP_PORT), LabHandler)
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with server:
        process.write_refs(Path(sys.argv[1]), http=os.getpid())
        signal.sigwait({signal.SIGTERM})
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    sys.exit(main())
