"""A model in NVFP4 that is made at home: fetched, converted by llama.cpp's converter, served, chatted with.

And what goes wrong on the way: one line each, nothing half-made gets a name, the lane serves.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from gb10.desired import Desired
from gb10.lock import LockedFile, load_lock
from tests.lab import appliance, catalogue, deploying, lane, models, network, nvfp4, paths
from tests.lab.host import LabHost
from tests.lab.hub import Fault, Hub, HubRepo, HubServer
from tests.lab.nvfp4 import Nvfp4Spec

GB10 = Path(sys.executable).with_name("gb10")
SPEC = Nvfp4Spec("tiny-n", parts=2)
OTHER = Nvfp4Spec("other-n", seed=12)
STRANGE = Nvfp4Spec("strange-n", architecture="NobodyKnowsThisForCausalLM", seed=13)
RESULT = "/srv/models/own/tiny-n/tiny-n.gguf"
SMALL = "/srv/small"


@pytest.fixture(scope="module")
def truncated(tmp_path_factory: pytest.TempPathFactory) -> HubRepo:
    """A repository whose weights lack their end: somebody has uploaded them so."""
    spec = Nvfp4Spec("truncated-n", seed=14)
    whole = next(path for path in nvfp4.ensure(spec) if path.name == "model.safetensors")
    cut = tmp_path_factory.mktemp("cut") / whole.name
    cut.write_bytes(whole.read_bytes()[:-1000])
    return nvfp4.repo(spec, instead={whole.name: cut})


@pytest.fixture(scope="module")
def server(truncated: HubRepo) -> Iterator[HubServer]:
    """A hub of its own, that has the safetensors too."""
    made = tuple(nvfp4.repo(spec) for spec in (SPEC, OTHER, STRANGE))
    with HubServer(Hub((*models.repos(), *made, truncated)), (str(network.GATEWAY), 0)) as running:
        yield running


@pytest.fixture(scope="module")
def host(settled: LabHost) -> LabHost:
    """A host that serves, and has the base of the appliance in its Docker."""
    appliance.give(settled)
    lane.wait_answering(settled)
    return settled


class Desk:
    """A laptop with a catalogue and a lock of its own."""

    def __init__(self, folder: Path, host: LabHost, server: HubServer) -> None:
        self.host, self.server, self.folder = host, server, folder
        self.catalogue, self.lock = folder / "models.yaml", folder / "models.lock"
        self.catalogue.write_text(catalogue.CATALOGUE.read_text())
        self.lock.write_text(catalogue.LOCK.read_text())
        self.data: dict[str, object] = {
            "models_hub": server.url, "catalogue": str(self.catalogue), "models_lock": str(self.lock),
        }  # fmt: skip

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """`gb10 convert` beside the test."""
        own = {"ssh_hostname": str(self.host.address), **self.data}
        inventory = self.folder / "inventory.py"
        inventory.write_text(f"lab = [({self.host.name!r}, {own!r})]\n")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        return subprocess.Popen(
            [str(GB10), "convert", *arguments, "--yes", "--inventory", str(inventory)],
            cwd=paths.REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**environment, "HF_HOME": str(self.folder)}, start_new_session=True,
        )  # fmt: skip

    def convert(self, *arguments: str) -> str:
        """`gb10 convert` that ends well; its output."""
        return self.end(self.begin(*arguments))

    def end(self, running: subprocess.Popen[str], status: int = 0) -> str:
        output, _ = running.communicate(timeout=300)
        assert running.returncode == status, output
        assert "Traceback" not in output
        return output

    def refused(self, *arguments: str, running: subprocess.Popen[str] | None = None) -> str:
        """The one line of a conversion that fails; nothing of a result is there, and the lane serves."""
        output = self.end(running or self.begin(*arguments), 1)
        (line,) = [line for line in output.splitlines() if line.startswith("gb10: ")]
        assert output.rstrip().endswith(line)
        assert self.entry() is None
        assert lane.chat(self.host)[0] == 200
        return line

    def deploy(self) -> subprocess.CompletedProcess[str]:
        return deploying.deploy(self.host, data=self.data)

    def entry(self) -> LockedFile | None:
        """What the lock says of a file that was made at home."""
        return next((entry for entry in load_lock(self.lock).files.values() if entry.recipe), None)

    def fetched(self, name: str) -> list[int]:
        """Where each download of the file began, in bytes. (A header is read by bounded ranges.)"""
        ranges = [
            request.headers.get("range", "bytes=0-")
            for request in self.server.hub.requests
            if "/cdn/" in request.path and request.path.endswith(f"/{name}")
        ]
        return [int(each[6:-1]) for each in ranges if each.endswith("-")]


@pytest.fixture(scope="module")
def desk(host: LabHost, server: HubServer, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """The desk at which the model is made and served, from test to test."""
    return Desk(tmp_path_factory.mktemp("desk"), host, server)


@pytest.fixture
def other(host: LabHost, server: HubServer, tmp_path: Path) -> Iterator[Desk]:
    """A desk for what goes wrong; what it left on the host goes."""
    server.hub.faults.clear()
    server.hub.requests.clear()
    yield Desk(tmp_path, host, server)
    server.hub.faults.clear()
    for name in ("gb10-convert-other-n", "gb10-convert-source-other-n"):
        host.ssh(f"systemctl stop {name}.service", sudo=True, check=False)
    folders = " ".join(
        f"/srv/models/{name}" for name in (".source/standin/other-n", ".convert", "own/other-n")
    )
    host.ssh(f"rm -rf {folders}", sudo=True)


@pytest.fixture
def small(host: LabHost) -> Iterator[Callable[[int], object]]:
    """Gives the host a models folder on a disk of so many MiB."""
    host.ssh(f"mkdir -p {SMALL}", sudo=True)
    yield lambda mib: host.ssh(f"mount -t tmpfs -o size={mib}m none {SMALL}", sudo=True)
    host.ssh(f"umount --lazy {SMALL}", sudo=True)


def _wait(what: str, there: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < until, f"{what}: not in {seconds} s"
        time.sleep(0.1)


def _there(host: LabHost, path: str) -> bool:
    return host.ssh(f"test -e {path}", sudo=True, check=False).returncode == 0


def _container(host: LabHost) -> bool:
    return bool(host.ssh("docker ps --quiet --filter name=^gb10-convert-", sudo=True).stdout.strip())


# -- how it should go ------------------------------------------------------------------------------------


def test_a_model_is_made_and_the_recipe_is_in_the_lock(desk: Desk, box: Desired) -> None:
    output = desk.convert(SPEC.repo)
    assert "28 NVFP4, 2 Q8_0" in output
    assert "outtype  q8_0: NVFP4 tensors are kept as they are" in output
    commit = nvfp4.repo(SPEC).commit
    entry = f"  tiny-n:\n    source: {{repo: {SPEC.repo}, revision: {commit}, outtype: q8_0}}\n"
    assert output.endswith(entry)
    desk.catalogue.write_text(f"{desk.catalogue.read_text()}\n{entry}")
    locked = desk.entry()
    assert locked is not None
    assert locked.recipe is not None
    assert (locked.revision, locked.recipe.repo, locked.recipe.outtype) == (commit, SPEC.repo, "q8_0")
    assert locked.recipe.converter == box.data.llama_commit
    there = desk.host.ssh(f"sha256sum {RESULT}; stat -c '%s %U %a' {RESULT}").stdout.split()
    assert (there[0], there[2:]) == (locked.sha256, [str(locked.size), "root", "644"])
    # Nothing half-made stays, the source does.
    assert not _there(desk.host, "/srv/models/.convert")
    kept = desk.host.ssh(f"ls /srv/models/.source/{SPEC.repo}/{commit[:12]}").stdout.split()
    assert "model-00001-of-00002.safetensors" in kept
    assert not {"pytorch_model.bin", "README.md"} & set(kept)


def test_the_weights_are_kept_to_the_bit(desk: Desk, tmp_path: Path) -> None:
    """Codes and scales of a tensor, as the file has them and as the source has them."""
    path = tmp_path / "tiny-n.gguf"
    path.write_bytes(base64.b64decode(desk.host.ssh(f"base64 -w0 {RESULT}").stdout))
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    packed = tensors["blk.3.ffn_down.weight"]
    assert packed.tensor_type == gguf.GGMLQuantizationType.NVFP4
    (rows, columns), source = (SPEC.embedding, SPEC.feed_forward), nvfp4.weights(SPEC)
    name = "model.layers.3.mlp.down_proj"
    # A block of 64 weights is four scales and 32 bytes; of each 16 weights the first eight are low halves.
    blocks = np.asarray(packed.data).reshape(rows, columns // 64, 36)
    assert blocks[:, :, :4].tobytes() == source[f"{name}.weight_scale"]
    halves = blocks[:, :, 4:].reshape(rows, columns // 16, 8)
    codes = np.concatenate([halves & 15, halves >> 4], axis=-1).reshape(rows, columns)
    pairs = np.frombuffer(source[f"{name}.weight"], np.uint8).reshape(rows, columns // 2)
    assert (codes == np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(rows, columns)).all()
    assert tensors["blk.3.ffn_down.scale"].data.tobytes() == source[f"{name}.weight_scale_2"]


def test_a_second_run_does_nothing(desk: Desk) -> None:
    before = desk.host.ssh(f"stat -c '%i %y' {RESULT}").stdout
    lock = desk.lock.read_text()
    desk.server.hub.requests.clear()
    for what in ("tiny-n", SPEC.repo):
        assert "is there already and right: nothing to do" in desk.convert(what)
    # The lock and the box know it; only a branch has to be asked for.
    assert desk.server.hub.requests == []
    assert "is there already and right: nothing to do" in desk.convert(f"{SPEC.repo}@main")
    assert desk.fetched("model-00001-of-00002.safetensors") == []
    assert (desk.host.ssh(f"stat -c '%i %y' {RESULT}").stdout, desk.lock.read_text()) == (before, lock)


def test_it_is_served_from_the_accelerator(desk: Desk) -> None:
    done = desk.deploy()
    assert done.returncode == 0, done.stdout
    status, answer = lane.chat(desk.host, "tiny-n")
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] > 0
    assert deploying.changed(desk.deploy().stdout) == []
    # Its tensors are on the stand-in accelerator: without that it cannot answer.
    desk.host.ssh("systemctl stop standin-accelerator", sudo=True)
    try:
        assert lane.chat(desk.host, "tiny-n")[0] != 200
    finally:
        desk.host.ssh("systemctl start standin-accelerator", sudo=True)
    lane.wait_answering(desk.host)
    assert lane.chat(desk.host, "tiny-n")[0] == 200


def test_a_lost_file_is_said_before_anything_is_changed_and_made_again_to_the_byte(desk: Desk) -> None:
    before = desk.entry()
    lock = desk.lock.read_text()
    assert before is not None
    desk.host.ssh(f"rm {RESULT}", sudo=True)
    done = desk.deploy()
    assert done.returncode != 0
    (line,) = [line for line in done.stdout.splitlines() if RESULT in line]
    assert "is not there, and no hub has it: run `gb10 convert tiny-n`" in line
    assert deploying.outcomes(done.stdout) == {}
    assert "no hub has it" not in (output := desk.convert("tiny-n"))
    assert "The catalogue has it: the next deploy serves it." in output
    assert desk.host.ssh(f"sha256sum {RESULT}").stdout.split()[0] == before.sha256
    assert desk.lock.read_text() == lock
    assert desk.deploy().returncode == 0
    assert lane.chat(desk.host, "tiny-n")[0] == 200


# -- what goes wrong -------------------------------------------------------------------------------------


def test_a_source_that_is_cut_off_is_found_before_it_is_fetched(other: Desk, truncated: HubRepo) -> None:
    line = other.refused(truncated.name)
    assert "model.safetensors: cut off: its header says" in line
    assert "nothing was fetched" in line
    assert other.fetched("model.safetensors") == []
    assert not _there(other.host, f"/srv/models/.source/{truncated.name}")


def test_an_unknown_architecture(other: Desk) -> None:
    line = other.refused(STRANGE.repo)
    assert f"Model {STRANGE.architecture} is not supported (says the converter of llama.cpp b11312)" in line
    assert not _there(other.host, f"/srv/models/.source/{STRANGE.repo}")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("standin/nowhere", "standin/nowhere: 401 from the hub: gated, or no such repository: set HF_TOKEN"),
        (f"{OTHER.repo}@v9", "404 from the hub: no revision v9"),
        ("standin/tiny-a-GGUF", "no model*.safetensors in it: its GGUF files are served as they are"),
        ("tiny-a", "is no model that is made at home"),
    ],
)
def test_what_cannot_be_a_source(other: Desk, what: str, words: str) -> None:
    output = other.end(other.begin(what), 1)
    assert len([line for line in output.splitlines() if words in line]) == 1, output


def test_a_disk_that_is_too_small(other: Desk, small: Callable[[int], object]) -> None:
    small(16)
    other.data |= {"models_dir": SMALL, "models_reserve_gib": 0}
    line = other.refused(OTHER.repo)
    assert f"the disk of {SMALL} has" in line
    assert "for the source" in line
    assert "make room" in line
    assert other.host.ssh(f"find {SMALL} -type f", sudo=True).stdout == ""


def test_a_disk_that_fills_up_while_it_is_made(other: Desk, small: Callable[[int], object]) -> None:
    small(100)
    other.data |= {"models_dir": SMALL, "models_reserve_gib": 0}
    running = other.begin(OTHER.repo)
    _wait("the converter runs", lambda: _container(other.host))
    other.host.ssh(f"cat /dev/zero > {SMALL}/others 2>/dev/null", sudo=True, check=False)
    line = other.refused(running=running)
    assert f"the disk of {SMALL} is full: make room and run again; the source is kept" in line
    assert other.host.ssh(f"find {SMALL} -name '*.gguf*'", sudo=True).stdout == ""
    other.host.ssh(f"rm {SMALL}/others", sudo=True)
    other.server.hub.requests.clear()
    other.convert(OTHER.repo)
    assert other.fetched("model.safetensors") == []


def test_a_connection_that_is_cut_is_made_anew(other: Desk) -> None:
    file = nvfp4.repo(OTHER).file("model.safetensors")
    assert file is not None
    other.server.hub.faults.set(f"{file.sha256}/{file.name}", Fault(bytes_per_s=file.size // 6))
    running = other.begin(OTHER.repo)
    part = f"/srv/models/.source/{OTHER.repo}/*/model.safetensors.part"
    _wait("the download runs", lambda: _there(other.host, part))
    other.host.ssh("pkill -KILL -u lab sshd-session", sudo=True, check=False)
    output = other.end(running)
    assert "connection lost" in output
    assert len(other.fetched("model.safetensors")) == 1
    assert other.entry() is not None


def test_a_run_that_is_killed_is_joined_by_the_next(other: Desk) -> None:
    file = nvfp4.repo(OTHER).file("model.safetensors")
    assert file is not None
    other.server.hub.faults.set(f"{file.sha256}/{file.name}", Fault(bytes_per_s=file.size // 6))
    running = other.begin(OTHER.repo)
    part = f"/srv/models/.source/{OTHER.repo}/*/model.safetensors.part"
    _wait("the download runs", lambda: _there(other.host, part))
    # It stands still until the next run has met it.
    unit = "gb10-convert-source-other-n.service"
    other.host.ssh(f"systemctl kill --signal=STOP {unit}", sudo=True)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    running = other.begin(OTHER.repo)
    assert running.stdout is not None
    assert any("under way already, joining it" in line for line in running.stdout)
    other.host.ssh(f"systemctl kill --signal=CONT {unit}", sudo=True)
    other.end(running)
    # One download, by whichever run.
    assert len(other.fetched("model.safetensors")) == 1
    assert other.entry() is not None


def test_a_power_cut_in_the_download_and_one_in_the_conversion(other: Desk) -> None:
    file = nvfp4.repo(OTHER).file("model.safetensors")
    assert file is not None
    other.server.hub.faults.set(f"{file.sha256}/{file.name}", Fault(bytes_per_s=file.size // 8))
    running = other.begin(OTHER.repo)
    part = f"/srv/models/.source/{OTHER.repo}/*/model.safetensors.part"
    half = f"[ $(stat -c %s {part}) -gt {file.size // 2} ]"
    _wait("half of it has come", lambda: other.host.ssh(half, sudo=True, check=False).returncode == 0)
    other.host.kill()
    other.host.up()
    running.kill()
    running.communicate()
    other.server.hub.faults.clear()
    other.server.hub.requests.clear()

    running = other.begin(OTHER.repo)
    _wait("the converter runs", lambda: _container(other.host))
    (offset,) = other.fetched("model.safetensors")
    assert offset > 0
    other.host.kill()
    other.host.up()
    running.kill()
    running.communicate()

    output = other.convert(OTHER.repo)
    entry = other.entry()
    assert entry is not None
    assert f"sha256 {entry.sha256}" in output
    lane.wait_answering(other.host)
