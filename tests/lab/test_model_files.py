"""Model files on a real host: a power cut ends a download and the next run finishes it; list and remove."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from gb10.commands.models import models
from gb10.desired import Desired
from tests.lab import deploying, paths
from tests.lab.faults import Fault, write_faults
from tests.lab.host import LabHost
from tests.lab.web import control_file

MODEL = "small-c"
RATE = 20_000_000
UNIT = "test-models.service"


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    host = LabHost("files").reset()
    yield host
    host.discard()


@pytest.fixture(scope="module")
def box(host: LabHost) -> Desired:
    return deploying.description(host)


@pytest.fixture
def slow_hub() -> Iterator[None]:
    write_faults(control_file(), {f"/{MODEL}-Q8_0.gguf": Fault(bytes_per_s=RATE)})
    yield
    write_faults(control_file(), {})


def place(host: LabHost, box: Desired) -> None:
    for placed in (box.program_files["gb10_fetch.py"], box.fetch_manifest_file):
        folder = placed.path.rpartition("/")[0]
        host.ssh(f"mkdir -p {folder} && cat > {placed.path}", sudo=True, stdin=placed.content)


def command(box: Desired) -> str:
    return f"python3 {box.program_files['gb10_fetch.py'].path} {box.fetch_manifest_file.path}"


def gb10_models(host: LabHost, *arguments: str) -> Result:
    inventory = str(paths.REPOSITORY / deploying.INVENTORY)
    return CliRunner().invoke(models, [*arguments, "--inventory", inventory, "--host", host.name])


def states(host: LabHost) -> dict[str, str]:
    result = gb10_models(host, "--json")
    assert result.exit_code == 0, result.output
    return {entry["name"]: entry["state"] for entry in json.loads(result.output)["models"]}


def test_a_power_cut_during_a_download_costs_little(host: LabHost, box: Desired, slow_hub: None) -> None:
    assert set(states(host).values()) == {"missing"}
    place(host, box)
    host.ssh(f"systemd-run --quiet --unit={UNIT} {command(box)}", sudo=True)
    part = f"{box.data.models_dir}/standin/{MODEL}-GGUF/{MODEL}-Q8_0.gguf.part"
    limit = time.monotonic() + 60
    while int(host.ssh(f"stat -c %s {part} 2>/dev/null || echo 0").stdout) < RATE:
        assert time.monotonic() < limit, "the download does not get on"
        time.sleep(0.2)
    host.kill()
    host.up()
    assert states(host)[MODEL] == "partial"
    kept = int(json.loads(host.ssh(f"cat {part}.json", sudo=True).stdout)["synced"])
    assert kept > 0
    done = host.ssh(command(box), sudo=True, check=False)
    assert done.returncode == 0, done.stdout
    progress = [json.loads(line) for line in done.stdout.splitlines()]
    begun = next(e for e in progress if e["event"] == "progress" and e["phase"] == "download")
    assert begun["done"] > kept
    for entry in box.fetch_manifest["files"]:
        digest = host.ssh(f"sha256sum {entry['path']}").stdout.split()[0]
        assert digest == entry["sha256"]
    assert host.ssh(f"find {box.data.models_dir} -name '*.part*'").stdout == ""
    assert set(states(host).values()) == {"ok"}


def test_a_stray_is_listed_and_a_model_goes_by_name_only(host: LabHost, box: Desired) -> None:
    place(host, box)
    host.ssh(command(box), sudo=True)
    folder = box.data.models_dir
    host.ssh(f"head -c 1000 /dev/zero > {folder}/old-model.gguf", sudo=True)
    assert states(host)["old-model.gguf"] == "stray"
    before = host.ssh(f"find {folder} -name '*.gguf' | sort").stdout.split()
    refused = gb10_models(host, "rm", "no-such-model", "--yes")
    assert refused.exit_code == 1
    asked = CliRunner().invoke(
        models,
        ["rm", MODEL, "--inventory", str(paths.REPOSITORY / deploying.INVENTORY), "--host", host.name],
        input="n\n",
    )
    assert asked.exit_code == 1
    assert "still served: the next deploy fetches it again" in asked.output
    assert host.ssh(f"find {folder} -name '*.gguf' | sort").stdout.split() == before
    removed = gb10_models(host, "rm", MODEL, "--yes")
    assert removed.exit_code == 0, removed.output
    assert "80.9 MB freed" in removed.output
    left = host.ssh(f"find {folder} -name '*.gguf' | sort").stdout.split()
    assert [path for path in before if path not in left] == [
        f"{folder}/standin/{MODEL}-GGUF/{MODEL}-Q8_0.gguf"
    ]
    assert states(host)[MODEL] == "missing"
