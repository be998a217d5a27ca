"""The stand-ins that need no host: nvidia-smi, models, the hub, the data of the recipe."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

from tests.lab import models, paths, recipe
from tests.lab.errors import LabError
from tests.lab.host import LabHost
from tests.lab.hub import Fault, Hub, HubFile, HubRepo, HubServer, write_faults

SMI = paths.STANDINS / "nvidia-smi-standin"
COMMIT = "c" * 40


def smi(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SMI, *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("fields", "layout", "line"),
    [
        (
            "name,compute_cap,driver_version,memory.total",
            "csv,noheader",
            "NVIDIA GB10, 12.1, 580.95.05, [N/A]",
        ),
        ("memory.total, name", "csv,noheader,nounits", "[N/A], NVIDIA GB10"),
        ("utilization.gpu", "csv,noheader", "0 %"),
        ("utilization.gpu", "csv, noheader, nounits", "0"),
    ],
)
def test_nvidia_smi_answers_queries(fields: str, layout: str, line: str) -> None:
    answered = smi(f"--query-gpu={fields}", f"--format={layout}")
    assert (answered.returncode, answered.stdout.strip()) == (0, line)


def test_nvidia_smi_refuses_an_unknown_field() -> None:
    refused = smi("--query-gpu=name,speed", "--format=csv")
    assert refused.returncode == 2
    assert 'Field "speed" is not a valid field' in refused.stdout


def test_nvidia_smi_lists_the_gpu_and_no_apps() -> None:
    assert smi("-L").stdout.startswith("GPU 0: NVIDIA GB10 (UUID: GPU-")
    assert smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader").stdout == ""


def test_models_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    spec = models.SPECS[0]
    written = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        models.write(spec, folder)
        written.append([path.read_bytes() for path in sorted(folder.iterdir())])
    assert written[0] == written[1]


@pytest.mark.parametrize(
    "spec", [spec for spec in models.SPECS if spec.name != "small-c"], ids=lambda s: s.name
)
def test_models_have_the_shape_of_their_spec(spec: models.ModelSpec, tmp_path: Path) -> None:
    models.write(spec, tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == spec.shards
    reader = gguf.GGUFReader(files[0])
    assert reader.fields["general.architecture"].contents() == spec.architecture
    assert reader.fields[f"{spec.architecture}.block_count"].contents() == spec.layers
    assert reader.fields[f"{spec.architecture}.attention.head_count_kv"].contents() == spec.heads_kv
    names = {tensor.name for file in files for tensor in gguf.GGUFReader(file).tensors}
    assert {f"blk.{spec.layers - 1}.ffn_down.weight", "output.weight"} <= names


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    content = tmp_path / "content"
    content.write_bytes(bytes(range(256)) * 64)
    files = (HubFile("model.gguf", content),)
    repos = (HubRepo("org/open", COMMIT, files), HubRepo("org/gated", COMMIT, files, token="secret"))
    with HubServer(Hub(repos, control=tmp_path / "faults.json")) as server:
        yield server


def fetch(url: str, headers: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, dict(refused.headers), refused.read()


def test_hub_redirects_to_its_cdn_and_knows_ranges(hub: HubServer) -> None:
    file = hub.hub.repos["org/open"].files[0]
    url = f"{hub.url}/org/open/resolve/main/model.gguf"
    status, headers, body = fetch(url, {"Range": "bytes=10-19"})
    assert (status, body) == (206, bytes(range(10, 20)))
    assert headers["Content-Range"] == f"bytes 10-19/{file.size}"
    assert headers["ETag"] == f'"{file.sha256}"'
    first = hub.hub.requests[0]
    assert (first.status, first.headers["range"]) == (302, "bytes=10-19")
    assert fetch(url, {"Range": f"bytes={file.size}-"})[0] == 416


def test_hub_api_lists_blobs(hub: HubServer) -> None:
    file = hub.hub.repos["org/open"].files[0]
    listed = json.loads(fetch(f"{hub.url}/api/models/org/open/revision/{COMMIT}?blobs=true")[2])
    assert listed["sha"] == COMMIT
    assert listed["siblings"][0]["rfilename"] == "model.gguf"
    assert listed["siblings"][0]["lfs"]["sha256"] == file.sha256
    assert "size" not in json.loads(fetch(f"{hub.url}/api/models/org/open")[2])["siblings"][0]


@pytest.mark.parametrize(
    ("path", "token", "status", "code"),
    [
        ("org/gated/resolve/main/model.gguf", None, 401, "GatedRepo"),
        ("org/gated/resolve/main/model.gguf", "secret", 200, None),
        ("org/open/resolve/main/absent", None, 404, "EntryNotFound"),
        ("org/open/resolve/old/model.gguf", None, 404, "RevisionNotFound"),
        ("org/absent/resolve/main/model.gguf", None, 401, "RepoNotFound"),
    ],
)
def test_hub_refuses(hub: HubServer, path: str, token: str | None, status: int, code: str | None) -> None:
    answered, headers, _ = fetch(f"{hub.url}/{path}", {"Authorization": f"Bearer {token}"} if token else None)
    assert (answered, headers.get("X-Error-Code")) == (status, code)


def test_hub_faults_by_control_file_heal_after_their_times(hub: HubServer, tmp_path: Path) -> None:
    url = f"{hub.url}/org/open/resolve/main/model.gguf"
    write_faults(tmp_path / "faults.json", {"resolve/main/model.gguf": Fault(status=500, times=1)})
    assert [fetch(url)[0] for _ in range(2)] == [500, 200]


def test_content_key_sees_names_modes_and_bytes(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_text("a")
    keys = [recipe.content_key(file.parent)]
    file.write_text("b")
    keys.append(recipe.content_key(file.parent))
    file.chmod(0o755)
    keys.append(recipe.content_key(file.parent))
    file.rename(file.with_name("other"))
    keys.append(recipe.content_key(file.parent))
    assert len(set(keys)) == 4


@pytest.mark.parametrize("name", ["", "a", "1box", "Box", "box-", "a-name-that-is-too-long", "a/b"])
def test_host_names_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(LabError, match="host name"):
        LabHost(name)
