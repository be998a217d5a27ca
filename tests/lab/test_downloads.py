"""Downloads of a deploy that go wrong: one clear line, nothing half-named, the lane serves."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import catalogue, deploying, lane, models, network, paths
from tests.lab.host import LabHost
from tests.lab.hub import Fault, Hub, HubFile, HubServer
from tests.lab.models import GATED_TOKEN, ModelSpec

# Large enough to be caught half-way, small enough to come in a second.
NEW = ModelSpec("medium-h", 512, 8, 8, 4, 1536, dtype="Q8_0", seed=8)
GATED = next(spec for spec in models.SPECS if spec.gated)
TOKEN_FILE = "/etc/gb10-hub-token"
SMALL = "/srv/small"


class NewModel:
    """The model that the deploys below bring, as the hub has it and as the host has it."""

    def __init__(self, host: LabHost, spec: ModelSpec = NEW, models_dir: str = "/srv/models") -> None:
        (path,) = models.ensure(spec)
        self.host, self.name, self.file = host, spec.name, HubFile(path.name, path)
        self.folder = f"{models_dir}/{spec.repo}"
        self.path = f"{self.folder}/{path.name}"
        self.part = f"{self.path}.part"

    def there(self) -> list[str]:
        """Names of all that the host has of it."""
        return self.host.ssh(f"ls {self.folder} 2>/dev/null", check=False).stdout.split()

    def size(self, path: str) -> int:
        """Bytes of a file on the host, 0 where there is none."""
        return int(self.host.ssh(f"stat -c %s {path} 2>/dev/null || echo 0").stdout)

    def wait_half(self) -> None:
        """Wait until half of it has come."""
        until = time.monotonic() + 120
        while self.size(self.part) < self.file.size // 2:
            assert time.monotonic() < until, "the download does not get on"
            time.sleep(0.1)

    def assert_right(self) -> None:
        """It is there, proven, under its name, and nothing beside it."""
        assert self.host.ssh(f"sha256sum {self.path}").stdout.split()[0] == self.file.sha256
        assert self.there() == [self.file.name]


@pytest.fixture(scope="module")
def server() -> Iterator[HubServer]:
    """A hub of its own, so that what goes wrong here goes wrong for no other host."""
    repos = models.repos((*models.SPECS, NEW))
    with HubServer(Hub(repos), (str(network.GATEWAY), 0)) as running:
        yield running


@pytest.fixture
def host(settled: LabHost) -> LabHost:
    """A host that serves, and has nothing of the new models."""
    lane.wait_answering(settled)
    settled.ssh(f"rm -rf /srv/models/{NEW.repo} /srv/models/{GATED.repo} {TOKEN_FILE}", sudo=True)
    return settled


@pytest.fixture
def small(host: LabHost) -> Iterator[Callable[[int], object]]:
    """Gives the host a models folder on a disk of so many MiB."""
    host.ssh(f"mkdir -p {SMALL}", sudo=True)
    yield lambda mib: host.ssh(f"mount -t tmpfs -o size={mib}m none {SMALL}", sudo=True)
    # Lazily: the lane may serve from it.
    host.ssh(f"umount --lazy {SMALL}", sudo=True)


@pytest.fixture
def data(server: HubServer, tmp_path: Path) -> dict[str, object]:
    """The deploy that brings the new model, pinned while the hub is well."""
    server.hub.faults.clear()
    extended = catalogue.extended(tmp_path, NEW, hub=server.url)
    server.hub.requests.clear()
    return {**extended, "models_hub": server.url}


def _good(host: LabHost, data: dict[str, object]) -> None:
    done = deploying.deploy(host, data=data)
    assert done.returncode == 0, done.stdout


def _bad(host: LabHost, data: dict[str, object], *words: str) -> str:
    """A deploy that fails with one line that has all the words, and leaves presets and lane alone."""
    container, presets = lane.container_id(host), host.ssh(f"cat {lane.PRESETS}").stdout
    done = deploying.deploy(host, data=data)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stdout
    lines = [line for line in done.stdout.splitlines() if all(word in line for word in words)]
    assert len(lines) == 1, done.stdout
    assert lane.container_id(host) == container
    assert host.ssh(f"cat {lane.PRESETS}").stdout == presets
    assert lane.chat(host)[0] == 200
    return done.stdout


def _begin(host: LabHost, data: dict[str, object]) -> subprocess.Popen[str]:
    """A deploy that runs beside the test."""
    return subprocess.Popen(
        deploying.command(host, "-y", data=data),
        cwd=paths.REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _offsets(server: HubServer, file: HubFile) -> list[int]:
    """Where each download of the file began, in bytes."""
    ranges = [
        request.headers.get("range", "bytes=0-")
        for request in server.hub.requests
        if request.path.endswith(f"{file.sha256}/{file.name}")
    ]
    return [int(wanted.removeprefix("bytes=").partition("-")[0]) for wanted in ranges]


def test_a_cut_is_resumed(host: LabHost, server: HubServer, data: dict[str, object]) -> None:
    new = NewModel(host)
    half = new.file.size // 2
    server.hub.faults.set(f"{new.file.sha256}/{new.file.name}", Fault(close_after=half, times=1))
    _good(host, data)
    assert _offsets(server, new.file) == [0, half]
    new.assert_right()
    assert lane.chat(host, new.name)[0] == 200


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(corrupt=True), ("the sha256 is", "the lock says", "was removed")),
        (Fault(wrong_etag=True), ("the hub's sha256 is", "the lock says", "gb10 pin --check")),
        (Fault(status=404), ("404", f"no {NEW.stem}.gguf in {NEW.repo} at revision")),
    ],
    ids=["wrong content", "another file on the hub", "no such file"],
)
def test_what_is_not_the_file_gets_no_name(
    host: LabHost, server: HubServer, data: dict[str, object], fault: Fault, words: tuple[str, ...]
) -> None:
    new = NewModel(host)
    server.hub.faults.set(new.file.name, fault)
    _bad(host, data, f"{NEW.repo}/{new.file.name}", *words)
    assert new.there() == []
    server.hub.faults.clear()
    _good(host, data)
    new.assert_right()


def test_a_gated_model_and_its_token(host: LabHost, server: HubServer, tmp_path: Path) -> None:
    gated = NewModel(host, GATED)
    server.hub.faults.clear()
    extended = catalogue.extended(tmp_path, GATED, hub=server.url, token=GATED_TOKEN)
    data = {**extended, "models_hub": server.url}
    _bad(host, data, "401", "gated", "no token file is set")
    data["models_token_file"] = TOKEN_FILE
    _bad(host, data, "401", "gated", f"the token file {TOKEN_FILE} is not there")
    host.ssh(f"cat > {TOKEN_FILE} && chmod 644 {TOKEN_FILE}", sudo=True, stdin=f"{GATED_TOKEN}\n")
    _bad(host, data, f"{TOKEN_FILE}: the token can be read by others: chmod 600 {TOKEN_FILE}")
    assert gated.there() == []

    host.ssh(f"chmod 600 {TOKEN_FILE}", sudo=True)
    server.hub.faults.set(gated.file.name, Fault(bytes_per_s=gated.file.size // 4))
    deploy = _begin(host, data)
    gated.wait_half()
    # While the token is in use: command lines and environments of all processes.
    running = host.ssh(
        "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'", sudo=True
    )
    output, _ = deploy.communicate(timeout=120)
    assert deploy.returncode == 0, output
    gated.assert_right()
    assert "gb10_fetch.py" in running.stdout
    assert GATED_TOKEN not in running.stdout
    assert GATED_TOKEN not in output
    assert GATED_TOKEN not in host.ssh("journalctl --boot --no-pager", sudo=True).stdout
    folders = "/var/lib/gb10 /etc/llamacpp-playground /etc/systemd /run/systemd /usr/local/lib /tmp /var/log"
    # On no command line: sudo logs those.
    grep = f"grep -r -l -a -F -f /dev/stdin {folders}"
    found = host.ssh(grep, sudo=True, check=False, stdin=f"{GATED_TOKEN}\n")
    assert found.returncode == 1
    assert found.stdout == ""
    assert lane.chat(host, GATED.name)[0] == 200


def test_a_power_cut_in_a_download_is_made_good(
    host: LabHost, server: HubServer, data: dict[str, object]
) -> None:
    new = NewModel(host)
    server.hub.faults.set(new.file.name, Fault(bytes_per_s=new.file.size // 8))
    deploy = _begin(host, data)
    new.wait_half()
    host.kill()
    host.up()
    output, _ = deploy.communicate(timeout=400)
    assert deploy.returncode != 0
    assert "Traceback" not in output
    assert "run the deploy again, and it goes on from there" in output
    assert new.there() == [f"{new.file.name}.part", f"{new.file.name}.part.json"]
    server.hub.faults.clear()
    server.hub.requests.clear()
    _good(host, data)
    (offset,) = _offsets(server, new.file)
    assert offset > 0
    new.assert_right()
    assert lane.chat(host, new.name)[0] == 200


def test_a_disk_that_is_too_small(
    host: LabHost, data: dict[str, object], small: Callable[[int], object]
) -> None:
    small(16)
    data |= {"models_dir": SMALL, "models_reserve_gib": 0}
    _bad(host, data, f"the disk of {SMALL} has", "are to come", "make room, or take a model")
    assert host.ssh(f"find {SMALL} -name '*.gguf*'").stdout == ""


def test_a_disk_that_fills_up_half_way(
    host: LabHost, server: HubServer, data: dict[str, object], small: Callable[[int], object]
) -> None:
    small(200)
    new = NewModel(host, models_dir=SMALL)
    data |= {"models_dir": SMALL, "models_reserve_gib": 0}
    server.hub.faults.set(new.file.name, Fault(bytes_per_s=new.file.size // 8))
    deploy = _begin(host, data)
    new.wait_half()
    host.ssh(f"cat /dev/zero > {SMALL}/others 2>/dev/null", sudo=True, check=False)
    output, _ = deploy.communicate(timeout=200)
    assert deploy.returncode != 0
    # A small model that was still under way may say the same of itself.
    (line,) = [line for line in output.splitlines() if "the disk is full" in line and new.file.name in line]
    assert "make room and run again" in line
    assert f"are kept in {new.part}" in line
    assert new.file.name not in new.there()
    assert lane.chat(host)[0] == 200

    host.ssh(f"rm {SMALL}/others", sudo=True)
    server.hub.faults.clear()
    server.hub.requests.clear()
    _good(host, data)
    (offset,) = _offsets(server, new.file)
    assert offset > 0
    new.assert_right()
    assert lane.chat(host, new.name)[0] == 200
