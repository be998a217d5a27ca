"""`gb10 pin` against a real hub, a real git repository and a real registry on this machine."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gb10.commands import pin as command
from gb10.faults import BadInput
from gb10.hub import HubClient, HubError
from gb10.inventory import box_data, load_inventory
from gb10.llama_source import LlamaSourceError, commit_of
from gb10.lock import LlamaCpp, Lock, LockedFile, load_lock, write_lock
from gb10.pinning import images_moved, lock_faults, pin_images
from gb10.preset_options import load_preset_options
from gb10.registry import RegistryClient, RegistryError, parse_image
from tests.lab.hub import Fault, Hub, HubFile, HubRepo, HubServer
from tests.unit.registry_server import RegistryServer

TOP = Path(__file__).parents[2]
TOKEN = "hf_a_secret_that_shows_up_nowhere"

CATALOGUE = """
defaults: {ctx-size: 1024, parallel: 1, kv-unified: true, cache-type: f16, cache-ram: 0, n-gpu-layers: all,
  load-mode: none}
models:
  one:
    repo: lab/one
    file: one.gguf
    projector: {repo: lab/one, file: mmproj.gguf}
    chat-template: {repo: lab/one, file: chat.jinja}
  split: {repo: lab/split, file: s-00001-of-00002.gguf}
  gated: {repo: lab/gated, file: gated.gguf}
"""

ARG_CPP = """
add_opt(common_arg(
    {"-c", "--ctx-size"}, "N",
    string_format("size of the prompt context"),
    [](common_params & params, int value) { params.n_ctx = value; }
).set_env("LLAMA_ARG_CTX_SIZE"));
"""


def gguf(name: str, padding: int, number: int = 0, count: int = 1) -> bytes:
    """A GGUF of llama architecture with one F32 tensor of 8 values."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    keys = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.name") + struct.pack("<I", 8) + text(name),
    ]
    if count > 1:
        keys += [
            text("split.no") + struct.pack("<IH", 2, number),
            text("split.count") + struct.pack("<IH", 2, count),
        ]
    tensor = text(f"{name}.{number}") + struct.pack("<IQIQ", 1, 8, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(keys)) + b"".join(keys) + tensor
    return head + bytes(padding)


@dataclass
class Bench:
    """Everything `gb10 pin` asks, on this machine."""

    folder: Path
    hub: Hub
    repository: Path
    options: Path

    @property
    def lock(self) -> Lock:
        return load_lock(self.folder / "models.lock")

    def publish(self, repo: str, files: dict[str, bytes], token: str | None = None) -> HubRepo:
        found = []
        for name, content in files.items():
            path = self.folder / "hub" / repo / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            found.append(HubFile(name, path))
        commit = hashlib.sha1(b"".join(files.values())).hexdigest()
        self.hub.repos[repo] = HubRepo(repo, commit, tuple(found), token)
        return self.hub.repos[repo]

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.repository), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(command.pin, arguments)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    repository = tmp_path / "llama.cpp"
    options = tmp_path / "preset_options.json"
    options.write_text((TOP / "gb10" / "preset_options.json").read_text())
    cmake_options = tmp_path / "cmake_options.json"
    cmake_options.write_text((TOP / "gb10" / "cmake_options.json").read_text())
    (tmp_path / "models.yaml").write_text(CATALOGUE)
    bench = Bench(tmp_path, Hub(), repository, options)
    (repository / "common").mkdir(parents=True)
    (repository / "common" / "arg.cpp").write_text(ARG_CPP)
    (repository / "CMakeLists.txt").write_text('option(LLAMA_ONE "llama: one" ON)\n')
    bench.git("init", "-q")
    bench.git("add", ".")
    bench.git("commit", "-qm", "x")
    bench.git("tag", "-a", "b1", "-m", "an annotated tag")
    bench.publish(
        "lab/one", {"one.gguf": gguf("one", 32), "mmproj.gguf": gguf("p", 40), "chat.jinja": b"{{ hello }}"}
    )
    bench.publish(
        "lab/split",
        {f"s-0000{number + 1}-of-00002.gguf": gguf("s", 32, number, 2) for number in (0, 1)},
    )
    bench.publish("lab/gated", {"gated.gguf": gguf("gated", 32)}, TOKEN)
    base = box_data(next(iter(load_inventory(TOP / "inventory.py"))))
    monkeypatch.setattr(command, "TOP", tmp_path)
    monkeypatch.setattr(command, "PRESET_OPTIONS_FILE", options)
    monkeypatch.setattr(command, "CMAKE_OPTIONS_FILE", cmake_options)
    with HubServer(bench.hub) as server:
        changes = {
            "catalogue": "models.yaml",
            "models_lock": "models.lock",
            "models_hub": server.url,
            "llama_repository": f"file://{repository}",
            "llama_ref": "b1",
            "llama_commit": bench.git("rev-parse", "HEAD"),
            "image_build_base": "local/build:1",
            "image_runtime_base": "local/run:1@sha256:" + "c" * 64,
            "appliance_base": "local/run:1@sha256:" + "c" * 64,
        }
        monkeypatch.setattr(command, "box_data", lambda host: base.model_copy(update=changes))
        yield bench


def test_everything_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    result = bench.run()
    assert result.exit_code == 0, result.output
    lock = bench.lock
    head = bench.git("rev-parse", "HEAD")
    assert lock.llama_cpp == LlamaCpp("b1", head, "preset_options.json")
    assert load_preset_options(bench.options).commit == head
    assert load_preset_options(bench.options).find("ctx-size") is not None
    assert dict(lock.images) == {"local/run:1": "sha256:" + "c" * 64}
    for (repo, name), entry in lock.files.items():
        file = bench.hub.repos[repo].file(name)
        assert file is not None
        assert (entry.size, entry.sha256) == (file.size, file.sha256)
        assert entry.revision == bench.hub.repos[repo].commit
    assert {name for _, name in lock.files} == {
        "one.gguf",
        "mmproj.gguf",
        "chat.jinja",
        "s-00001-of-00002.gguf",
        "s-00002-of-00002.gguf",
        "gated.gguf",
    }
    assert TOKEN not in result.output + (bench.folder / "models.lock").read_text()


def test_headers_stand_with_the_first_shard(bench: Bench) -> None:
    bench.run("split", "one")
    first, second = (bench.lock.files["lab/split", f"s-0000{number}-of-00002.gguf"] for number in (1, 2))
    assert first.header is not None
    assert (first.header["shards"], first.header["weight_bytes"]) == (2, 64)
    assert second.header is None
    header = bench.lock.files["lab/one", "one.gguf"].header
    assert header is not None
    assert header["metadata"]["general.name"] == "one"
    assert bench.lock.files["lab/one", "chat.jinja"].header is None


def test_only_ranges_of_a_model_travel(bench: Bench) -> None:
    bench.publish("lab/split", {})
    bench.publish(
        "lab/one", {"one.gguf": gguf("one", 20_000_000), "mmproj.gguf": gguf("p", 40), "chat.jinja": b"x"}
    )
    assert bench.run("one").exit_code == 0
    asked = [r for r in bench.hub.requests if r.path.startswith("/cdn/") and r.path.endswith("one.gguf")]
    assert [request.status for request in asked] == [206]


def test_a_gated_model_stops_no_other(bench: Bench) -> None:
    result = bench.run()
    assert result.exit_code == 1
    assert (
        "lab/gated: 401 from the hub: gated, or no such repository: set HF_TOKEN if it is gated"
        in result.output
    )
    assert ("lab/one", "one.gguf") in bench.lock.files
    assert ("lab/gated", "gated.gguf") not in bench.lock.files


def test_what_is_pinned_is_not_asked_for_again(bench: Bench) -> None:
    bench.run("one", "split")
    bench.hub.requests.clear()
    bench.publish("lab/gated", {"gated.gguf": gguf("gated", 32)})
    assert bench.run().exit_code == 0
    assert all("lab/gated" in request.path for request in bench.hub.requests)


def test_missing_parts_come_from_the_commit_that_is_pinned(bench: Bench) -> None:
    commit = bench.hub.repos["lab/one"].commit
    write_lock(bench.folder / "models.lock", Lock().with_files([LockedFile("lab/one", commit, "one.gguf")]))
    bench.run()
    assert any(f"revision/{commit}" in request.path for request in bench.hub.requests)
    assert bench.lock.files["lab/one", "one.gguf"].size is not None


def test_files_that_no_model_names_leave_the_lock(bench: Bench) -> None:
    old = LockedFile("lab/old", "a" * 40, "old.gguf", 1, "b" * 64)
    write_lock(bench.folder / "models.lock", Lock().with_files([old]))
    bench.run()
    assert ("lab/old", "old.gguf") not in bench.lock.files


def test_check_says_what_moved(bench: Bench) -> None:
    names = ("one", "split", "llama.cpp")
    assert bench.run(*names).exit_code == 0
    assert bench.run("--check", *names).exit_code == 0
    before = (bench.folder / "models.lock").read_text()
    bench.publish("lab/one", {"one.gguf": gguf("one", 33), "mmproj.gguf": gguf("p", 40), "chat.jinja": b"x"})
    bench.git("commit", "--allow-empty", "-qm", "y")
    bench.git("tag", "-f", "b1")
    result = bench.run("--check", *names)
    assert result.exit_code == 2
    assert "! one" in result.output
    assert "one.gguf at main is now sha256" in result.output
    assert "chat.jinja at main is now" in result.output
    assert "mmproj" not in result.output
    assert "= split" in result.output
    assert f"b1 is now {bench.git('rev-parse', 'HEAD')}" in result.output
    assert (bench.folder / "models.lock").read_text() == before
    assert bench.run(*names).exit_code == 0
    assert bench.run("--check", *names).exit_code == 0


def test_check_fails_when_it_cannot_look(bench: Bench) -> None:
    bench.run("one")
    bench.hub.faults.set("/api/models/lab/one/revision/main", Fault(status=500))
    assert bench.run("--check", "one").exit_code == 1


def test_a_name_that_is_none(bench: Bench) -> None:
    result = bench.run("oen")
    assert "did you mean `one`?" in str(result.exception)
    assert not (bench.folder / "models.lock").exists()


def test_a_file_that_the_repository_does_not_have(bench: Bench) -> None:
    bench.publish("lab/one", {"One.gguf": gguf("one", 32)})
    result = bench.run("one")
    assert result.exit_code == 1
    assert "no one.gguf at revision main: did you mean One.gguf?" in result.output


def test_a_hub_that_is_none(bench: Bench) -> None:
    with HubServer(bench.hub) as server:
        client = HubClient(server.url + "/x")
        with pytest.raises(HubError, match="404"):
            client.revision("lab/one", "main")
    with pytest.raises(HubError, match="refused"):
        client.revision("lab/one", "main")


def test_a_ref_that_is_none(bench: Bench) -> None:
    with pytest.raises(LlamaSourceError, match="no tag or branch b2"):
        commit_of(f"file://{bench.repository}", "b2")
    with pytest.raises(LlamaSourceError, match="git: "):
        commit_of(f"file://{bench.folder}/nowhere", "b2")


@pytest.mark.parametrize(
    ("reference", "registry", "path", "tag", "name"),
    [
        ("debian", "registry-1.docker.io", "library/debian", "latest", "debian:latest"),
        ("nvidia/cuda:13.0", "registry-1.docker.io", "nvidia/cuda", "13.0", "nvidia/cuda:13.0"),
        ("host:5000/a/b@sha256:1", "host:5000", "a/b", "latest", "host:5000/a/b:latest"),
        ("ghcr.io/a/b:c", "ghcr.io", "a/b", "c", "ghcr.io/a/b:c"),
    ],
)
def test_image_references(reference: str, registry: str, path: str, tag: str, name: str) -> None:
    image = parse_image(reference)
    assert (image.registry, image.path, image.tag, image.name) == (registry, path, tag, name)


def test_image_digests() -> None:
    manifest = json.dumps({"manifests": []}).encode()
    digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
    with RegistryServer() as server:
        server.manifests["a/b:1"] = manifest
        registry, reference = RegistryClient("http"), f"{server.address}/a/b:1"
        lock, outcomes = pin_images(Lock(), [reference], registry, anew=True)
        assert [outcome.state for outcome in outcomes] == ["pinned"]
        assert dict(lock.images) == {reference: digest}
        pinned = [f"{reference}@{digest}"]
        assert [outcome.state for outcome in images_moved(lock, pinned, registry)] == ["same"]
        server.manifests["a/b:1"] += b" "
        assert [outcome.state for outcome in images_moved(lock, pinned, registry)] == ["moved"]
        server.lies = True
        with pytest.raises(RegistryError, match="but the registry calls it"):
            registry.digest(parse_image(reference))
        with pytest.raises(RegistryError, match="no such image or tag"):
            registry.digest(parse_image(f"{server.address}/a/b:2"))
    assert images_moved(lock, pinned, registry)[0].state == "failed"


def test_data_and_lock_must_name_the_same() -> None:
    lock = Lock(LlamaCpp("b1", "a" * 40, "o"), {"x/y:1": "sha256:" + "b" * 64})

    def faults(lock: Lock, ref: str, commit: str, image: str) -> list[str]:
        found = lock_faults(lock, "models.lock", llama_ref=ref, llama_commit=commit, images=[image])
        return [fault.what for fault in found]

    assert faults(lock, "b1", "a" * 40, "x/y:1@sha256:" + "b" * 64) == []
    assert faults(lock, "b1", "a" * 40, "local:1") == []
    assert "the data say b2" in faults(lock, "b2", "a" * 40, "local:1")[0]
    assert "the data say ccc" in faults(lock, "b1", "c" * 40, "local:1")[0]
    assert "the data say sha256:c" in faults(lock, "b1", "a" * 40, "x/y:1@sha256:" + "c" * 64)[0]
    assert len(faults(replace(lock, llama_cpp=None), "b1", "a" * 40, "local:1")) == 1


def test_the_committed_lock_and_data_agree() -> None:
    data = box_data(next(iter(load_inventory(TOP / "inventory.py"))))
    faults = lock_faults(
        load_lock(TOP / data.models_lock),
        data.models_lock,
        llama_ref=data.llama_ref,
        llama_commit=data.llama_commit,
        images=(data.image_build_base, data.image_runtime_base),
    )
    assert faults == []
    locked = load_lock(TOP / data.models_lock).llama_cpp
    assert locked is not None
    assert load_preset_options(TOP / locked.options).commit == locked.commit


def inventory_of(folder: Path, *hosts: str) -> Path:
    path = folder / "inventory.py"
    path.write_text(f"gb10 = {list(hosts)!r}\n")
    return path


def test_a_host_need_not_be_named_where_all_have_the_same_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = inventory_of(tmp_path, "one", "two")
    assert command._data(path, None) == box_data(next(iter(load_inventory(path))))
    own = {"one": {"llama_ref": "b1"}, "two": {"llama_ref": "b2"}}
    monkeypatch.setattr(command, "box_data", lambda host: box_data(host).model_copy(update=own[host.name]))
    assert command._data(path, "two").llama_ref == "b2"
    with pytest.raises(BadInput, match=r"it has 2 hosts \(one, two\): name one with --host"):
        command._data(path, None)
